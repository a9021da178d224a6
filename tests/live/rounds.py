# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests of rounds look at: what jobs are allocated, what they had, and the solver's process."""

from __future__ import annotations

import json
import marshal
import math
import re
from collections.abc import Mapping
from typing import Any

from container.execute import Completed
from controller.solver.frames import framed
from tests.live.gpu_history import Hold
from tests.live.support import PYTHON, Site
from tests.live.test_gpu_types import TYPES

FIND_SOLVER = "pgrep -f '[a]llocations.worker'"
DEADLINE_SECONDS = 40.0
"""Of an allocation whose solver hangs."""
READ_JOURNAL = """\
import json, sqlite3, sys
journal = sqlite3.connect("file:/var/lib/gandiva/journal.sqlite?mode=ro", uri=True, timeout=10)
print(json.dumps(journal.execute(sys.argv[1]).fetchall()))
"""
ANSWER = """\
import os, sys
fds, infos = (f"/proc/{sys.argv[1]}/{name}" for name in ("fd", "fdinfo"))
for fd in map(int, os.listdir(fds)):
    with open(f"{infos}/{fd}") as info:
        flags = int(dict(line.split(":", 1) for line in info)["flags"], 8)
    if fd > 2 and flags & os.O_ACCMODE == os.O_WRONLY:
        with open(f"{fds}/{fd}", "wb") as answers:
            answers.write(sys.stdin.buffer.read())
"""
"""Answers in place of the solver's process, which has one file to write to."""
LIES = {
    "no numbers": framed(marshal.dumps(("optimal", [math.nan] * 39, 0.0, ""), 2)),
    "nonsense": b"nonsense",
}
"""Thirteen jobs and three types have 39 numbers."""
FAULTS = {
    "hangs": f"not solved within {DEADLINE_SECONDS:g} s",
    "no numbers": "39 values for ",
    "nonsense": "an answer of 1936617326 bytes is announced",
}
"""How the words of the controller begin. It may state a problem of twelve jobs before."""


def fractions(told: str) -> dict[str, float]:
    """The fraction of the time on each type, of a job that is told it. Empty: nothing is said of it."""
    parts = told.split("it is allocated ")
    named = re.match(r"([01]\.\d\d) of the time on (\w+)((?:, [01]\.\d\d on \w+)*)", parts[-1])
    if named is None:
        return {}
    others = re.findall(r"([01]\.\d\d) on (\w+)", named[3])
    return {gpu_type: float(fraction) for fraction, gpu_type in [(named[1], named[2]), *others]}


def allocated(site: Site, job: int) -> dict[str, float]:
    """What `gandiva explain` says that the job is allocated."""
    return fractions(site.explained(job))


def read_journal(site: Site, query: str) -> list[Any]:
    """Rows of the controller's journal."""
    done = site.cluster.exec("ctl", [PYTHON, "-c", READ_JOURNAL, query], user="gandiva")
    return list(json.loads(done.stdout))


def accounted(site: Site) -> list[Hold]:
    """When each job was on which GPU, as the controller accounts it."""
    rows = read_journal(site, "SELECT job_id, gpus, start, end FROM slices")
    now = site.clock()
    places = (row[1].partition(":") for row in rows)
    return [
        Hold(node, int(gpu), job, start, end or now)
        for (job, _, start, end), (node, _, gpu) in zip(rows, places, strict=True)
    ]


def received(holds: list[Hold], job: int, node: str, begin: float, end: float) -> float:
    """Seconds on GPUs of this node."""
    mine = (hold for hold in holds if hold.job_id == job and hold.node == node)
    return sum(max(0.0, min(hold.end, end) - max(hold.start, begin)) for hold in mine)


def errors_of(
    holds: list[Hold], parts: Mapping[int, Mapping[str, float]], begin: float, end: float, seconds: float
) -> list[float]:
    """After each round of so many seconds: the largest difference between what a job had of the time that all
    jobs had on the two GPUs of a type, and its fraction of that type. `parts`: by job, by node."""
    errors: list[float] = []
    for number in range(1, int((end - begin) / seconds) + 1):
        until = begin + number * seconds
        had = {(job, at): received(holds, job, at, begin, until) for job, row in parts.items() for at in row}
        whole = {node: sum(time for (_, at), time in had.items() if at == node) for node in TYPES}
        errors.append(
            max(abs(2 * time / (whole[at] or 1.0) - parts[job][at]) for (job, at), time in had.items())
        )
        used = sum(whole.values()) / (6 * number * seconds)
        print(f"round {number}: largest error {errors[-1]:.2f} of the time, GPUs in use {used:.2f}")
    return errors


def turns_missed(
    holds: list[Hold], jobs: Mapping[int, tuple[str, float]], begin: float, end: float
) -> dict[int, float]:
    """Seconds of jobs that had less than a third of their part. `jobs`: node and part."""
    had = {job: received(holds, job, node, begin, end) for job, (node, _) in jobs.items()}
    return {job: seconds for job, seconds in had.items() if seconds < jobs[job][1] / 3 * (end - begin)}


def status(site: Site) -> Completed:
    """What the controller says of itself."""
    return site.cluster.exec("login", ["gandiva", "status"], user="alice", check=False)


def wait_event(site: Site, kind: str, message: str, since: float) -> float:
    """Until there is an event of this kind whose message begins so. Its time."""
    query = f"SELECT time FROM events WHERE time > {since} AND kind = '{kind}' AND message LIKE '{message}%'"
    site.wait(f"{kind}: {message}", lambda: read_journal(site, query) != [], 120)
    return float(read_journal(site, query)[0][0])
