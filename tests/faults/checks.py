# SPDX-License-Identifier: GPL-2.0-or-later
"""What must hold after any fault, once all jobs have ended."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from container.errors import MiniClusterError
from tests.faults.moves import check_moves
from tests.faults.stage import JOURNAL, Stage
from tests.live.gpu_history import Hold, overlaps

SWITCH_SECONDS = 0.2
"""By so much more than the switch itself took may a slice of ours and the same time in another book differ:
we count from the end of the restore to the acknowledgement that the GPU is empty, Slurm from call to call, a
GPU from its first byte to its last."""
ROUNDING_SECONDS = 0.41
"""Standard deviation of a difference of two times that are each cut to whole seconds, as Slurm's are."""
ENDED_SECONDS = 180.0
PYTHON = "/opt/gandiva/venv/bin/python"
TIDY_SECONDS = 60.0

CHECKS = (
    "jobs completed",
    "results those of an undisturbed run",
    "none suspended",
    "one owner per GPU at every instant",
    "GPU time as the GPUs saw it",
    "GPU time as Slurm accounts it",
    "slices closed, `gandiva journal verify` content",
    "nodes idle",
    "no control block and no reservation left",
    "jobs that migrate: at one place at a time, each start from a saved step",
)


def check_round(stage: Stage) -> list[str]:
    """Wait for the end of all jobs, look at everything; what is wrong, in sentences."""
    jobs = stage.round.jobs
    wrong: list[str] = []
    try:
        states = stage.site.wait_ended([j.id for j in jobs], ENDED_SECONDS) if jobs else {}
    except AssertionError as error:
        return [f"not all jobs ended: {error}"]
    for job in jobs:
        if job.may_fail:
            continue
        if states[job.id] != "COMPLETED":
            wrong.append(f"job {job.id} ({job.workload.name}) is {states[job.id]}")
        else:
            found, expected = stage.digest(job.user, job.id), stage.expected_digest(job)
            if found != expected:
                wrong.append(f"job {job.id} ({job.workload.name}) computed {found}, undisturbed {expected}")
    found_holds = stage.holds()
    wrong += [f"two owners of one GPU: {a} and {b}" for a, b in overlaps(found_holds)[:3]]
    for job in jobs:
        if job.workload.moves and not job.may_fail:
            wrong += check_moves(stage, job, found_holds)
    wrong += _tidy(stage)
    if stage.round.books:
        wrong += _accounting(stage, found_holds)
    wrong += _journal(stage)
    return wrong


def _tidy(stage: Stage) -> Iterator[str]:
    """Nodes idle, control blocks and owner files gone, soon."""
    try:
        stage.cluster.wait_nodes_idle(TIDY_SECONDS)
    except MiniClusterError as error:
        yield str(error)
    for node in stage.site.nodes:
        # (Other files there are the agent's own.)
        script = "ls /run/gandiva | grep -x '[0-9]*'; cat /run/gpustat/* 2> /dev/null; true"
        if not _soon(lambda node=node, script=script: not stage.sh(node, script).text.strip()):  # type: ignore[misc]
            yield f"left on {node}: {stage.sh(node, script).text.split()}"
    if not _soon(lambda: not stage.reservations()):
        yield f"left in Slurm: {stage.reservations()}"


def _journal(stage: Stage) -> Iterator[str]:
    """The product's own examination: its tables, totals against slices, no open slice of an ended job."""
    said = stage.sh("ctl", f"gandiva journal verify {JOURNAL}", user="gandiva", check=False)
    if said.status != 0:
        yield f"gandiva journal verify: {said.text.strip()}"
    script = (
        f"import sqlite3; print(*sqlite3.connect('{JOURNAL}').execute("
        '"SELECT job_id FROM slices JOIN jobs USING (job_id) WHERE slices.end IS NULL AND jobs.end NOT NULL"'
        ").fetchall())"
    )
    still_open = stage.sh("ctl", f"{PYTHON} -c {shlex.quote(script)}", user="gandiva").text.strip()
    if still_open:
        yield f"slices of ended jobs are still open: {still_open}"


def _soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIDY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _accounting(stage: Stage, found_holds: list[Hold]) -> Iterator[str]:
    """Our seconds on GPUs against those that the GPUs saw, job by job, and against Slurm's, in sum."""
    jobs = stage.round.jobs
    wanted = {j.id for j in jobs}
    if not wanted:
        return

    def reported() -> bool:
        rows.clear()
        rows.update({row["job_id"]: row for row in stage.site.report() if row["job_id"] in wanted})
        return len(rows) == len(wanted) and not any(
            r["state"] in ("RUNNING", "SUSPENDED") for r in rows.values()
        )

    rows: dict[int, dict[str, object]] = {}
    if not _soon(reported):
        missing = sorted(wanted - set(rows))
        states = {job_id: row["state"] for job_id, row in rows.items()}
        yield f"the report lacks jobs {missing} or has them at work: {states}"
        return
    on_gpu: dict[int, float] = defaultdict(float)
    slices: dict[int, int] = defaultdict(int)
    for hold in found_holds:
        on_gpu[hold.job_id] += hold.seconds
        slices[hold.job_id] += 1
    switching = _switching_seconds(stage)
    ours_in_all = 0.0
    for job in jobs:
        ours = float(rows[job.id]["run_seconds"])  # type: ignore[arg-type]
        ours_in_all += ours
        if job.workload.name == "without GPU memory":
            continue
        seen = on_gpu[job.id] / len(job.workload.nodes)
        each = SWITCH_SECONDS * (2 + slices[job.id] / len(job.workload.nodes))
        allowed = each + switching.get(job.id, 0.0) + stage.round.trouble_seconds
        if abs(ours - seen) > allowed:
            yield f"job {job.id} ({job.workload.name}): {ours:.1f} s in the report, {seen:.1f} s on the GPU"
    slurm = _slurm_seconds(stage, wanted)
    switches = sum(int(r.get("suspends", 0) or 0) for r in rows.values()) + len(rows)  # type: ignore[call-overload]
    rounding = 4 * ROUNDING_SECONDS * math.sqrt(switches)
    allowed = SWITCH_SECONDS * switches + sum(switching.values()) + rounding + stage.round.trouble_seconds
    if abs(slurm - ours_in_all) > allowed:
        yield f"{ours_in_all:.1f} s in the report, {slurm:.0f} s in Slurm's accounting (±{allowed:.0f} s)"


def _switching_seconds(stage: Stage) -> dict[int, float]:
    """How long the operations on each job took, in sum."""
    script = (
        f"import json, sqlite3; print(json.dumps(sqlite3.connect('{JOURNAL}').execute("
        '"SELECT job_id, sum(end - begin) FROM operations WHERE end NOT NULL GROUP BY job_id").fetchall()))'
    )
    said = stage.sh("ctl", f"{PYTHON} -c {shlex.quote(script)}", user="gandiva")
    return dict(json.loads(said.text))


def _slurm_seconds(stage: Stage, wanted: set[int]) -> float:
    """Elapsed time minus suspended time, over all runs of each job."""
    command = [
        "sacct",
        "-D",
        "-X",
        "-n",
        "-P",
        "-o",
        "JobName%40,ElapsedRaw",
        "-j",
        ",".join(map(str, wanted)),
    ]
    total = 0.0
    for line in stage.sh("ctl", shlex.join(command)).text.splitlines():
        name, _, seconds = line.rpartition("|")
        # A slurmctld that was killed has given the number of a reservation of its last seconds to a job, too:
        # to the accounting it runs for ever.
        if not name.startswith("gandiva-reservation-"):
            # (It is without the suspended time, which sacct has taken off.)
            total += int(seconds)
    return total
