# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's shares in Gavel's rounds: water filling over the tree of associations, and all other presets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.model import Job, Share
from controller.policies.allocations.settings import KEYS
from controller.policies.mechanisms.rounds.in_force import InForce
from controller.policies.presets import WEIGHED
from tests.unit.policies.ideal import cluster, make_job
from tests.unit.policies.presets import preset
from tests.unit.policies.test_shares import FACTORS, World, jobs_of, shared, slowdown, tree

SHORT: dict[str, Any] = {"round_seconds": 20.0}
NESTED = tree(
    Share("dept", "root", 9.0),
    Share("left", "dept", 1.0),
    Share("right", "dept", 1.0),
    Share("other", "root", 1.0),
)


def given(job: Job, world: World) -> float:
    """The fraction that the job was allocated."""
    return sum(InForce(world.common["fractions"]).of(job.id).values())


def allocated(jobs: list[Job], shares: Any, **settings: Any) -> list[float]:
    """By water filling on one GPU."""
    world = World(preset("gavel-hierarchical", **SHORT, **settings), cluster(1, 1), jobs)
    world.shares = shares
    world.run(until=30.0)
    return [given(job, world) for job in jobs]


def test_water_filling_is_over_the_tree_of_accounts() -> None:
    names = ("left", "right", "other")
    jobs = [make_job(i, 1, 1e6, user=f"u{i}", account=name) for i, name in enumerate(names, 1)]
    assert allocated(jobs, NESTED) == pytest.approx([0.45, 0.45, 0.1], abs=1e-3)
    assert allocated(jobs, {}) == pytest.approx([1 / 3] * 3, abs=1e-3), "Slurm tells nothing"


def test_users_of_an_account_share_what_it_has_however_many_jobs_they_have() -> None:
    jobs = [*jobs_of("alice", 4, 1, 1e6, account="left"), make_job(9, 1, 1e6, user="bob", account="left")]
    jobs.append(make_job(10, 1, 1e6, user="carol", account="right"))
    assert allocated(jobs, NESTED) == pytest.approx([1 / 16] * 4 + [1 / 4, 1 / 2], abs=1e-3)


@pytest.mark.parametrize("settings", [{"inside": "fifo"}, {"inside_of": {"left": "fifo"}}])
def test_an_account_can_have_its_jobs_one_after_the_other(settings: dict[str, Any]) -> None:
    jobs = [make_job(i, 1, 1e6, user=f"u{i}", account="left", submit=-float(i)) for i in (1, 2)]
    jobs.append(make_job(3, 1, 1e6, user="u3", account="right"))
    assert allocated(jobs, NESTED, **settings) == pytest.approx([0.0, 0.5, 0.5], abs=1e-3)


def test_another_tree_is_another_problem() -> None:
    jobs = [make_job(1, 1, 1e6, user="a", account="left"), make_job(2, 1, 1e6, user="b", account="other")]
    world = World(preset("gavel-hierarchical", **SHORT), cluster(1, 1), jobs)
    world.shares = NESTED
    world.run(until=30.0)
    assert given(jobs[0], world) == pytest.approx(0.9, abs=1e-3)
    world.shares = {**NESTED, "dept": replace(NESTED["dept"], weight=3.0)}
    world.run(until=60.0)
    assert given(jobs[0], world) == pytest.approx(0.75, abs=1e-3)


@pytest.mark.parametrize("name", sorted(set(KEYS) - WEIGHED))
def test_without_weights_users_come_by_their_factor(name: str) -> None:
    """alice has twelve jobs. bob submits one of ten minutes a moment later."""
    jobs = [*jobs_of("alice", 12, 1, 6000.0, account="lab")]
    jobs.append(make_job(100, 1, 600.0, user="bob", account="lab", submit=1.0))
    world = World(shared(name, **SHORT), cluster(1, 1), jobs)
    world.shares = FACTORS
    world.run(until=1000.0)
    assert slowdown(world, jobs[-1]) < 1.1


@pytest.mark.parametrize("name", sorted(set(KEYS) & WEIGHED))
def test_with_weights_users_have_equal_parts(name: str) -> None:
    jobs = [*jobs_of("alice", 12, 1, 6000.0), make_job(100, 1, 600.0, user="bob", submit=1.0)]
    world = World(shared(name, **SHORT), cluster(1, 1), jobs)
    world.run(until=2000.0)
    assert slowdown(world, jobs[-1]) < 2.2
