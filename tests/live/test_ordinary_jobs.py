# SPDX-License-Identifier: GPL-2.0-or-later
"""Gandiva jobs and ordinary Slurm jobs on the same nodes: the facts that docs/ordinary-jobs.md rests on."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import pytest

from controller.cluster.hostlist import expand
from tests.live.support import TRAIN, Site

pytestmark = pytest.mark.live


def tres(site: Site, job_id: int) -> dict[str, str]:
    """What Slurm has given the job, and counts for it."""
    return dict(word.split("=", 1) for word in site.job(job_id)["AllocTRES"].split(","))


OPENS = (
    "{ for i in 0 1 2 3; do case $(cat /dev/nvidia$i 2>&1) in *'No such device'*) printf $i;; esac; done; "
    "echo; }"
)
"""Prints the GPUs that the control group lets through (and that have no driver behind them)."""


def opened(site: Site, user: str, job_id: int) -> set[frozenset[int]]:
    """The different sets of GPUs that the job has been able to open, once it has looked."""
    path = f"/home/{user}/{job_id}.opens"
    site.cluster.exec("login", f"until grep -qs ^ {path}; do sleep 0.1; done", timeout_seconds=60)
    text = site.cluster.read_file("login", path)
    whole = text[: text.rindex("\n") + 1]  # it may be writing
    return {frozenset(map(int, line)) for line in whole.splitlines()}


def bound(site: Site, job_id: int) -> frozenset[int]:
    """The GPUs of which Slurm has given it a shard."""
    return frozenset(map(int, re.findall(r"shard:a100_(\d+):1", site.job(job_id)["TresPerNode"])))


def cores(site: Site, job_id: int) -> set[int]:
    shown = site.cluster.exec("ctl", ["scontrol", "show", "job", "-d", str(job_id)]).stdout
    match = re.search(r"CPU_IDs=(\S+)", shown)
    assert match is not None, shown
    return {int(core) for core in expand(f"[{match[1]}]")}


def test_jobs_that_share_beside_ordinary_ones(site: Site) -> None:
    """Slurm counts a shard of each GPU for them and no `gres/gpu`, at rest too, and the time of their turns.
    It gives no ordinary job a GPU of which one has a shard. They keep to their binding when an ordinary job
    ends beside them, and never open the GPU that comes free."""
    ordinary = site.submit("bob", f"{OPENS} > $SLURM_JOB_ID.opens; sleep 600", "--gres=gpu:1", "-w", "n1")
    site.wait_state(ordinary, "RUNNING")
    train = f"{TRAIN} --gpu-process --steps 100000 --minibatch-ms 50"
    command = f"(while :; do {OPENS} >> $SLURM_JOB_ID.opens; sleep 1; done) & exec {train}"
    sharing = [site.submit("alice", command, "--gandiva", "--gres=gpu:1", "-w", "n1") for _ in range(5)]
    site.wait_on_gpu(*sharing)
    wanting = site.submit("bob", "sleep 600", "--gres=gpu:2", "-w", "n1")

    (others,) = opened(site, "bob", ordinary)
    assert len(others) == 1
    first = {job: bound(site, job) for job in sharing}
    assert sorted(len(gpus) for gpus in first.values()) == [1, 1, 1, 3, 3], "two of them float"
    assert not any(gpus & others for gpus in first.values()), first
    counted = {job: tres(site, job) for job in sharing}
    assert {job: int(seen["gres/shard"]) for job, seen in counted.items()} == {
        job: len(gpus) for job, gpus in first.items()
    }, "those that float for the same one GPU"
    assert not any("gres/gpu" in seen for seen in counted.values())

    floats, *_ = [job for job, gpus in first.items() if len(gpus) == 3]
    rest = [job for job in sharing if job != floats]

    cancelled = time.time()
    site.cluster.exec("ctl", ["scancel", str(ordinary)])
    before = {job: row["slices"] for job, row in reported(site, sharing).items()}
    at_rest: set[int] = set()

    def two_more_turns_of_each() -> bool:
        for job, state in site.states(sharing).items():
            if state == "SUSPENDED" and job not in at_rest:
                assert tres(site, job) == counted[job]
                at_rest.add(job)
        rows = reported(site, sharing)
        return at_rest == set(sharing) and all(rows[job]["slices"] >= before[job] + 2 for job in sharing)

    site.wait("two more turns of each", two_more_turns_of_each, 120)
    site.wait("one to have rested for long", lambda: bool(rested(site, rest, 6.0)), 120)
    said = re.findall(r"job (\d+): .*failed", site.log())
    assert not {int(job) for job in said} & set(sharing)
    for job, gpus in first.items():
        assert frozenset().union(*opened(site, "alice", job)) <= gpus, "it may open what it is not bound to"
        assert bound(site, job) == gpus
        turns = {h.gpu for h in site.holds() if h.job_id == job and h.end > cancelled}
        assert turns and turns <= gpus, f"job {job} was on GPUs {turns}, bound to {gpus}"

    assert site.state(wanting) == "PENDING"
    site.cluster.exec("ctl", ["scancel", *map(str, rest)])
    site.wait_ended(rest)
    told = rested(site, rest, 4.0)
    assert told
    for job in told:
        hours, minutes, seconds = map(int, site.job(job)["RunTime"].split(":"))
        # Slurm counts from its resume to its suspend, the report what lies between the switches.
        differs = hours * 3600 + minutes * 60 + seconds - reported(site, [job])[job]["run_seconds"]
        assert -4 <= differs <= 4 + switching(site, job), "time at rest is none on GPUs for Slurm either"
    site.wait_state(floats, "RUNNING")
    assert site.state(wanting) == "PENDING", "one job with a shard of three is enough"
    site.cluster.exec("ctl", ["scancel", str(floats)])
    site.wait_state(wanting, "RUNNING")


def reported(site: Site, jobs: Sequence[int]) -> dict[int, dict[str, Any]]:
    return {row["job_id"]: row for row in site.report() if row["job_id"] in jobs}


def switching(site: Site, job: int) -> float:
    """How long its operations took."""
    return sum(done.seconds for done in site.operations() if done.job_id == job)


def rested(site: Site, jobs: Sequence[int], seconds: float) -> list[int]:
    """Those that were off their GPUs for so much longer than their switches took."""
    rows = reported(site, jobs)
    return [job for job in jobs if (rows[job]["suspended_seconds"] or 0.0) > seconds + switching(site, job)]


def test_cores_of_a_suspended_job_are_given_away_and_then_shared(site: Site) -> None:
    first = site.submit("alice", "sleep 600", "-n", "4", "-w", "n1")
    site.wait_state(first, "RUNNING")
    site.cluster.exec("ctl", ["scontrol", "suspend", str(first)])
    site.wait_state(first, "SUSPENDED")
    second = site.submit("bob", "sleep 600", "-n", "16", "-w", "n1")
    site.wait_state(second, "RUNNING")
    site.cluster.exec("ctl", ["scontrol", "resume", str(first)])
    site.wait_state(first, "RUNNING")
    assert site.state(second) == "RUNNING"
    assert len(cores(site, first)) == 4 and cores(site, first) <= cores(site, second)
