# SPDX-License-Identifier: GPL-2.0-or-later
"""Gandiva jobs and ordinary Slurm jobs on the same nodes: the facts that docs/ordinary-jobs.md rests on."""

from __future__ import annotations

import re

import pytest

from controller.slurm_config.hostlist import expand
from tests.live.support import Site

pytestmark = pytest.mark.live


def tres(site: Site, job_id: int) -> dict[str, str]:
    """What Slurm has given the job, and counts for it."""
    return dict(word.split("=", 1) for word in site.job(job_id)["AllocTRES"].split(","))


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
    ordinary = site.submit("bob", "sleep 600", "--gres=gpu:1", "-w", "n1")
    site.wait_state(ordinary, "RUNNING")
    sharing = [site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n1") for _ in range(5)]
    site.wait_on_gpu(*sharing)
    site.cluster.exec("ctl", ["scancel", str(ordinary)])
    before = {row["job_id"]: row["slices"] for row in site.report()}
    site.wait(
        "two more turns of each",
        lambda: all(
            row["slices"] >= before[row["job_id"]] + 2 for row in site.report() if row["job_id"] in sharing
        ),
    )
    assert "failed" not in site.log()


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
