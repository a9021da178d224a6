# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests of rounds look at: what jobs are allocated, what they had, and the solver's process."""

from __future__ import annotations

import itertools
import json
import marshal
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from container.execute import Completed
from controller.journal.records import parse_gpus
from controller.solver.frames import framed
from tests.live.gpu_history import Hold
from tests.live.support import PYTHON, Site

TYPES = {"n1": "v100", "n2": "p100", "n3": "k80"}
"""By node. A v100 is twice as fast as a p100, and that twice as fast as a k80."""
FIND_SOLVER = "pgrep -f '[a]llocations.worker'"
ASK_JOBS = "import urllib.request as u; print(u.urlopen('http://ctl:6822/v1/gpus').read().decode())"
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
    "hangs": "not solved within ",
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


def wait_allocated(site: Site, rows: Mapping[int, Mapping[str, float]]) -> None:
    """Until the controller says it of all of these jobs at once. (What `gandiva explain` says is from when
    something was last done with a job.)"""

    def said() -> dict[int, dict[str, float]]:
        answer = site.cluster.exec("login", ["python3", "-c", ASK_JOBS], user="alice").stdout
        return {job["job_id"]: fractions(job["reason"]) for job in json.loads(answer)["jobs"]}

    def have() -> bool:
        now = said()
        return all(now.get(job) == pytest.approx(row, abs=0.011) for job, row in rows.items())

    site.wait(f"fractions {rows}", have, 120)


def read_journal(site: Site, query: str) -> list[Any]:
    """Rows of the controller's journal."""
    done = site.cluster.exec("ctl", [PYTHON, "-c", READ_JOURNAL, query], user="gandiva")
    return list(json.loads(done.stdout))


def accounted(site: Site) -> list[Hold]:
    """When each job was on which GPUs, as the controller accounts it."""
    rows = read_journal(site, "SELECT job_id, gpus, start, end FROM slices")
    now = site.clock()
    return [
        Hold(gpu.node, gpu.ordinal, job, start, end or now)
        for job, gpus, start, end in rows
        for gpu in parse_gpus(gpus)
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
        errors.append(error_of(holds, parts, begin, until))
        used = sum(received(holds, job, node, begin, until) for job, row in parts.items() for node in row)
        used /= 6 * number * seconds
        print(f"round {number}: largest error {errors[-1]:.2f} of the time, GPUs in use {used:.2f}")
    return errors


def error_of(
    holds: list[Hold],
    parts: Mapping[int, Mapping[str, float]],
    begin: float,
    end: float,
    gpus: int = 1,
) -> float:
    """The largest difference between a job's part of what all had of a type, and its fraction. `gpus`: what
    each job has of the two of a type."""
    had = {(job, at): received(holds, job, at, begin, end) for job, row in parts.items() for at in row}
    whole = {node: sum(time for (_, at), time in had.items() if at == node) for node in TYPES}
    return max(abs(2 / gpus * time / (whole[at] or 1.0) - parts[job][at]) for (job, at), time in had.items())


def turns_missed(
    holds: list[Hold], jobs: Mapping[int, tuple[str, float]], begin: float, end: float
) -> dict[int, float]:
    """Seconds of jobs that had less than a third of their part. `jobs`: node and part."""
    had = {job: received(holds, job, node, begin, end) for job, (node, _) in jobs.items()}
    return {job: seconds for job, seconds in had.items() if seconds < jobs[job][1] / 3 * (end - begin)}


def status(site: Site) -> Completed:
    """What the controller says of itself."""
    return site.cluster.exec("login", ["gandiva", "status"], user="alice", check=False)


def solvers(site: Site) -> list[str]:
    """Process numbers."""
    return site.cluster.exec("ctl", FIND_SOLVER, check=False).stdout.split()


def answer_for(site: Site, pid: str, fault: str) -> None:
    """A wrong answer to the problem that is stated next."""
    site.cluster.exec("ctl", [PYTHON, "-c", ANSWER, pid], user="gandiva", stdin=LIES[fault])


def wait_event(site: Site, kind: str, message: str, since: float) -> float:
    """Until there is an event of this kind whose message begins so. Its time."""
    query = f"SELECT time FROM events WHERE time > {since} AND kind = '{kind}' AND message LIKE '{message}%'"
    site.wait(f"{kind}: {message}", lambda: read_journal(site, query) != [], 120)
    return float(read_journal(site, query)[0][0])


def step_times(site: Site, user: str, name: str) -> list[float]:
    """When each step ended, as the job itself wrote it."""
    text = site.cluster.read_file("login", f"/home/{user}/{name}")
    lines = text[: text.rfind("\n") + 1].splitlines()  # it may be writing
    return [json.loads(line)["time"] for line in lines]


def intervals(site: Site, user: str, log: str, holds: Iterable[Hold]) -> list[float]:
    """From each step to the next one, in these times."""
    logged = step_times(site, user, log)
    runs = [[at for at in logged if hold.start <= at <= hold.end] for hold in holds]
    return [two - one for run in runs for one, two in itertools.pairwise(run)]
