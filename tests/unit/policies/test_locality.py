# SPDX-License-Identifier: GPL-2.0-or-later
"""Gangs that are spread over nodes are brought together when there is room (SPEC 1.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.model import (
    Configuration,
    Costs,
    GpuSet,
    Job,
    JobId,
    Moved,
    Node,
    Placement,
    Rate,
    StateAt,
    Verdict,
)
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.policies import PolicySettings
from tests.unit.policies.ideal import Ideal, gpu_set, make_job, make_node, running

BOTH = pytest.mark.parametrize("name", ["fifo-skip", "gandiva", "tiresias-las"])
SPREAD, TOGETHER = Configuration("a100", 2, 2), Configuration("a100", 2, 1)


def policy(name: str = "fifo-skip", **migration: Any) -> Callable[[], Policy]:
    assumed = {"assumed_gain_fraction": migration.pop("assumed", 0.33)}
    table: dict[str, Any] = {"name": name, "moves": ["locality"], "locality": assumed, "migration": migration}
    return lambda: make_policy(PolicySettings(**table))


def job(number: int, *gpus: str, **changes: Any) -> Job:
    own: GpuSet = gpu_set(*gpus)
    return running(make_job(number, len(own), 1e6, **{"may_migrate": True, **changes}), own)


def paper(make: Callable[[], Policy], **first: Any) -> Ideal:
    """Three of the four 2-GPU jobs are split; each has one of its GPUs beside one of the leaving job's."""
    c = Ideal(make, [make_node(f"s{i}", 4) for i in range(3)], [])
    c.add(
        job(1, "s0:0", "s1:0", **first),
        job(2, "s0:1", "s1:1"),
        job(3, "s1:2", "s2:0"),
        job(4, "s2:1", "s2:2"),
        job(5, "s0:2"),
        job(6, "s0:3"),
        job(7, "s1:3"),
        job(8, "s2:3"),
    )
    return c


def where(c: Ideal, *numbers: int) -> list[str]:
    return [",".join(sorted({g.node for g in c.jobs[JobId(n)].placement.gpus})) for n in numbers]


@BOTH
def test_the_paper_s_example(name: str) -> None:
    """Nothing moves while all is full. When the jobs leave, each split job goes on beside one of its own."""
    c = paper(policy(name))
    assert not c.step().targets
    c.now = 60.0
    c.remove(5, 7, 8)
    plan = c.step()
    assert plan.moved[0] == Moved("locality", Verdict.PLANNED, JobId(1), 1.33)
    target = plan.targets[JobId(1)]
    assert target.keep is StateAt.STORE and target.placement.gpus == gpu_set("s0:0", "s0:2")
    words = "it was spread over 2 nodes, and is expected to do 1.33 times as much there"
    assert plan.reasons[JobId(1)] == f"continues on s0: {words}"
    assert where(c, 1, 2, 3, 4) == ["s0", "s1", "s2", "s2"]


@BOTH
def test_its_new_gpus_are_its_own_while_it_is_on_its_way(name: str) -> None:
    c = paper(policy(name))
    c.migration_seconds = 30.0
    c.step()
    c.remove(5)
    c.now = 5.0
    c.step()
    c.add(make_job(20, 1, 1e6, submit=6.0), make_job(21, 1, 1e6, submit=6.0))
    c.now = 10.0
    c.restart()
    c.step()
    c.now = 36.0
    c.step()
    assert c.jobs[JobId(1)].placement.gpus == gpu_set("s0:0", "s0:2")


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"assumed": 0.29}, {}),
        ({"cost_seconds": 67.0}, {}),
        ({}, {"may_migrate": False}),
        ({}, {"may_stop": False}),
        ({}, {"switching": True}),
        ({}, {"excluded_nodes": frozenset({"s0"})}),
    ],
)
def test_it_is_not_done(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    """It gains too little, costs too much, or the job may not."""
    c = paper(policy(**settings))
    c.remove(2, 3)
    c.change(1, **changes)
    c.remove(5, 7)
    c.add(job(9, "s1:1"), job(10, "s1:2"), job(11, "s1:3"))
    c.step()
    assert where(c, 1) == ["s0,s1"]


def test_a_gang_whose_user_wants_two_nodes_stays_on_two() -> None:
    c = paper(policy(), request=make_job(1, 2, 1e6, nodes=2).request)
    c.remove(5)
    c.step()
    assert where(c, 1) == ["s0,s1"]


@pytest.mark.parametrize(("together", "goes"), [(1.0, False), (1.29, False), (1.31, True)])
def test_the_gain_is_the_one_that_was_measured(together: float, goes: bool) -> None:
    """600 s of 0.3 are three times 60 s."""
    request = make_job(1, 2, 1e6, model="m").request
    c = paper(policy(assumed=5.0 * (not goes)), request=request)
    c.rates = {"m": {SPREAD: Rate(1.0), TOGETHER: Rate(together)}}
    c.remove(2, 3, 5)
    c.add(job(9, "s1:1"), job(10, "s1:2"))
    c.step()
    assert where(c, 1) == ["s0" if goes else "s0,s1"]


def test_a_cheap_migration_pays_for_a_small_gain() -> None:
    c = paper(policy(assumed=0.06))
    c.remove(2, 3, 5)
    c.step()
    assert where(c, 1) == ["s0,s1"]
    c.costs = {"": Costs(checkpoint_seconds=5.0, start_seconds=2.0, load_seconds=4.0)}
    c.now = 1.0
    c.change(1, name="seen anew")
    c.step()
    assert where(c, 1) == ["s0"]


def test_those_first_that_gain_most_and_no_more_than_may_at_once() -> None:
    c = paper(policy(most_at_once=1), request=make_job(1, 2, 1e6, model="slow").request)
    c.rates = {"slow": {SPREAD: Rate(1.0), TOGETHER: Rate(1.31)}}
    c.migration_seconds = 30.0
    c.remove(5, 7, 8)
    c.step()
    assert [int(i) for i, j in c.jobs.items() if j.promised] == [2], "the third job has no more to gain"
    c.now = 31.0
    c.step()
    assert where(c, 2) != ["s0,s1"]


def test_it_does_not_go_to_another_type() -> None:
    c = paper(policy())
    c.change_node(replace(make_node("s3", 4, model="v100")))
    c.step()
    assert where(c, 1, 2, 3) == ["s0,s1", "s0,s1", "s1,s2"]
    c.change_node(make_node("s4", 4))
    c.now = 1.0
    c.step()
    assert where(c, 1) == ["s4"]


def test_a_gang_of_eight_goes_to_two_nodes_under_one_switch() -> None:
    def node(number: int) -> Node:
        return make_node(f"s{number}", 4, switch="ab"[number % 2])

    c = Ideal(policy(), [node(i) for i in range(6)], [])
    c.add(job(1, *[f"s{n}:{g}" for n in range(4) for g in (0, 1)]))
    c.add(job(2, "s4:0"))
    c.step()
    assert where(c, 1) in (["s0,s2"], ["s1,s3"], ["s1,s5"], ["s3,s5"])


def test_a_job_migrates_once_in_a_cool_down() -> None:
    c = paper(policy())
    c.change(2, may_migrate=False)
    c.change(3, may_migrate=False)
    c.remove(5)
    c.step()
    assert where(c, 1) == ["s0"]
    split = gpu_set("s0:0", "s1:0")
    c.change(1, placement=Placement(split, split), last=split)
    plan = c.step()
    assert where(c, 1) == ["s0,s1"] and plan.wake_at == 600.0
    c.now = 600.0
    c.step()
    assert where(c, 1) == ["s0"]
