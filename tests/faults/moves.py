# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that migrates runs once: its steps, where it started from, and where it was."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.faults.stage import JOURNAL, LiveJob, Stage
from tests.live.gpu_history import Hold

PYTHON = "/opt/gandiva/venv/bin/python"


def check_moves(stage: Stage, job: LiveJob, found: Sequence[Hold]) -> Iterator[str]:
    """What is wrong with it, in sentences."""
    home = f"/shared/home/{job.user}"
    log = stage.sh("ctl", f"cat {home}/{job.id}.beat").text
    steps = [json.loads(line)["step"] for line in log.splitlines() if line.endswith("}")]
    own = [hold for hold in found if hold.job_id == job.id]
    wrong = [*twice_at_once(own), *wrong_steps(steps, job.workload.steps(job.gpu_seconds))]
    if job.workload.store:
        output = stage.sh("ctl", f"cat {home}/{job.id}.out").text
        saved, broken = _saved_steps(stage, job)
        starts = [int(step) for step in re.findall(r"goes on from step (\d+)", output)]
        wrong += [*wrong_starts(starts, steps, saved), *broken]
        if not stage.round.node_deaths:
            wrong += done_twice(steps)
    yield from (f"job {job.id} ({job.workload.name}): {words}" for words in wrong)


def twice_at_once(own: Sequence[Hold]) -> Iterator[str]:
    """Holds of one job on two nodes at the same instant."""
    ordered = sorted(own, key=lambda hold: hold.start)
    for before, after in pairwise(ordered):
        if after.start < before.end and after.node != before.node:
            yield f"on {before.node} and {after.node} at once"


def wrong_steps(steps: Sequence[int], last: int) -> Iterator[str]:
    """Each step follows the one before, or is one that was done already, by a start from an earlier step."""
    for before, after in pairwise([0, *steps]):
        if after > before + 1:
            yield f"step {after} follows step {before}"
    if not steps or steps[-1] != last:
        yield f"its last step was {steps[-1] if steps else 'none'}, not {last}"


def wrong_starts(starts: Sequence[int], steps: Sequence[int], saved: frozenset[int]) -> Iterator[str]:
    """Each start is from nothing, or from a step that was saved, and nothing is done anew without a start."""
    for start in starts:
        if start and start not in saved:
            yield f"it went on from step {start}; saved were {sorted(saved)}"
    if list(starts) != sorted(starts):
        yield f"it went on from steps {starts}: a newer generation was there"
    for before, after in pairwise(steps):
        if after <= before and after - 1 not in starts:
            yield f"step {after} was done anew, and no start was from there"


def done_twice(steps: Sequence[int]) -> Iterator[str]:
    """No step is, where no node lost its memory: the job stops at the step that it saves."""
    twice = sorted(step for step, times in Counter(steps).items() if times > 1)
    if twice:
        yield f"steps done twice: {twice[:3]}, {len(twice)} in all"


def _saved_steps(stage: Stage, job: LiveJob) -> tuple[frozenset[int], list[str]]:
    """The steps of all generations, those removed since then too; and what is wrong with the last ones."""
    script = (
        f"import sqlite3; print(*sqlite3.connect('{JOURNAL}').execute("
        f"\"SELECT message FROM events WHERE job_id = {job.id} AND kind = 'checkpointed'\").fetchall())"
    )
    events = stage.sh("ctl", f"{PYTHON} -c {shlex.quote(script)}", user="gandiva").text
    saved = {int(step) for step in re.findall(r"step (\d+) is generation", events)}
    store = f"/home/{job.user}/store-{job.id}"
    script = f"[ ! -e {store} ] || gandiva checkpoint verify --json {store}"
    said = stage.sh("login", script, user=job.user, check=False)
    rows = json.loads(said.text)["rows"] if said.text.strip().startswith("{") else []
    saved |= {int(row["step"]) for row in rows if not row["problem"]}
    return frozenset(saved), [
        f"generation {row['number']}: {row['problem']}" for row in rows if row["problem"]
    ]
