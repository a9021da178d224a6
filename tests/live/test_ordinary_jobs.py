# SPDX-License-Identifier: GPL-2.0-or-later
"""Gandiva jobs and ordinary Slurm jobs on the same nodes: the facts that docs/ordinary-jobs.md rests on."""

from __future__ import annotations

import re
import time

import pytest

from controller.slurm.hostlist import expand
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


def cores(site: Site, job_id: int) -> set[int]:
    shown = site.cluster.exec("ctl", ["scontrol", "show", "job", "-d", str(job_id)]).stdout
    match = re.search(r"CPU_IDs=(\S+)", shown)
    assert match is not None, shown
    return {int(core) for core in expand(f"[{match[1]}]")}


def test_a_gpu_with_a_resting_job_is_not_given_to_an_ordinary_one(site: Site) -> None:
    ordinary = site.submit("bob", "sleep 600", "--gres=gpu:3", "-w", "n1")
    site.wait_state(ordinary, "RUNNING")
    sharing = [site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n1") for _ in range(2)]
    site.wait_on_gpu(*sharing)
    wanting = site.submit("bob", "sleep 600", "--gres=gpu:1", "-w", "n1")
    site.wait("one of them to rest", lambda: "SUSPENDED" in site.states(sharing).values())
    (resting,) = [job for job, state in site.states(sharing).items() if state == "SUSPENDED"][:1]
    site.cluster.exec("ctl", ["scancel", *(str(job) for job in sharing if job != resting)])
    site.wait("the other one's end", lambda: len(site.holds()) > 0 and site.state(resting) == "RUNNING")
    assert site.state(wanting) == "PENDING", "one job with a shard of it is enough"
    site.cluster.exec("ctl", ["scancel", str(resting)])
    site.wait_state(wanting, "RUNNING")


def test_what_slurm_counts_for_jobs_that_share(site: Site) -> None:
    """No `gres/gpu`, a shard of each GPU for those that float; for resting ones the same, cores too."""
    exact = [site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n1") for _ in range(4)]
    site.wait_on_gpu(*exact)
    floating = site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n1")
    site.wait_on_gpu(floating)
    assert [tres(site, job).get("gres/shard") for job in exact] == ["1"] * 4
    assert tres(site, floating)["gres/shard"] == "4", "for the same one GPU"
    assert not any("gres/gpu" in tres(site, job) for job in [*exact, floating])
    before = tres(site, floating)
    site.wait_state(floating, "SUSPENDED")
    assert tres(site, floating) == before


def test_jobs_that_share_keep_to_their_binding_when_an_ordinary_job_ends_beside_them(site: Site) -> None:
    """The GPU that comes free is in no control group of theirs; they could not use it."""
    ordinary = site.submit("bob", f"{OPENS} > $SLURM_JOB_ID.opens; sleep 600", "--gres=gpu:1", "-w", "n1")
    site.wait_state(ordinary, "RUNNING")
    command = f"(while :; do {OPENS} >> $SLURM_JOB_ID.opens; sleep 1; done) & exec {TRAIN} --steps 100000"
    sharing = [
        site.submit("alice", f"{command} --minibatch-ms 50", "--gandiva", "--gres=gpu:1", "-w", "n1")
        for _ in range(5)
    ]
    site.wait_on_gpu(*sharing)
    (others,) = opened(site, "bob", ordinary)
    assert len(others) == 1
    bindings = {job: opened(site, "alice", job) for job in sharing}
    assert all(len(seen) == 1 for seen in bindings.values()), bindings
    first = {job: seen.pop() for job, seen in bindings.items()}
    assert sorted(len(gpus) for gpus in first.values()) == [1, 1, 1, 3, 3], "two of them float"
    assert all(gpus and not gpus & others for gpus in first.values()), first
    cancelled = time.time()
    site.cluster.exec("ctl", ["scancel", str(ordinary)])
    before = {row["job_id"]: row["slices"] for row in site.report()}
    site.wait(
        "two more turns of each",
        lambda: all(
            row["slices"] >= before[row["job_id"]] + 2 for row in site.report() if row["job_id"] in sharing
        ),
    )
    assert "failed" not in site.log()
    for job, gpus in first.items():
        assert opened(site, "alice", job) == {gpus}, "what it may open has changed"
        turns = {h.gpu for h in site.holds() if h.job_id == job and h.end > cancelled}
        assert turns and turns <= gpus, f"job {job} was on GPUs {turns}, bound to {gpus}"


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
