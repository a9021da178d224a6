# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that has become slower beside others of its node goes elsewhere on trial (SPEC 1.5, 1.7)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.model import Costs, Job, JobId, Moved, Placement, StateAt, Verdict
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.policies import PolicySettings
from tests.unit.policies.ideal import Ideal, gpu_set, make_job, make_node, running

CHEAP = {"": Costs(checkpoint_seconds=2.0, start_seconds=1.0, load_seconds=2.0)}
SLOWED = 0.8
"""The rate of the first job beside the second one, relative to that alone."""


def policy(name: str = "fifo-skip", migration: Any = (), **separate: Any) -> Callable[[], Policy]:
    table: dict[str, Any] = {"name": name, "moves": ["separate"], "migration": dict(migration)}
    table["separate"] = separate
    return lambda: make_policy(PolicySettings(**table))


def job(number: int, *gpus: str, **changes: Any) -> Job:
    own = gpu_set(*gpus)
    made = running(make_job(number, len(own), 1e6, model=changes.pop("model", None)), own)
    return replace(made, **{"may_migrate": True, **changes})


Speed = Callable[[Ideal, Job], float]


def second_slows_first(c: Ideal, one: Job) -> float:
    """On s0."""
    disturbed = one.id == 1 and JobId(2) in c.jobs and where(c, 1) == where(c, 2) == {"s0"}
    return 10.0 * (SLOWED if disturbed else 1.0)


def ideal(make: Callable[[], Policy], nodes: int, speed: Speed) -> Ideal:
    c = Ideal(make, [make_node(f"s{i}", 4) for i in range(nodes)], [])
    c.costs, c.speed = dict(CHEAP), lambda one, _sharing: speed(c, one)
    return c


def interfering(make: Callable[[], Policy], speed: Speed = second_slows_first, **changes: Any) -> Ideal:
    """Two jobs of two GPUs each on s0; a third job has one GPU of s1. The first was alone for 30 s."""
    c = ideal(make, 2, speed)
    c.add(job(1, "s0:0", "s0:1", **changes), job(3, "s1:0", may_migrate=False))
    c.step()
    look(c, 30.0)
    c.add(job(2, "s0:2", "s0:3", may_migrate=False))
    return c


def look(c: Ideal, seconds: float) -> list[Moved]:
    """What moves do when rates were measured for so long."""
    c.now += seconds
    moved: list[Moved] = []
    c.on_plan = lambda _snapshot, plan: moved.extend(plan.moved)
    c.step()
    c.on_plan = lambda _snapshot, _plan: None
    return moved


def where(c: Ideal, number: int) -> set[str]:
    """Its nodes."""
    return {gpu.node for gpu in c.jobs[JobId(number)].placement.gpus}


@pytest.mark.parametrize("name", ["fifo-skip", "gandiva", "tiresias-las"])
def test_a_job_that_others_slow_goes_and_the_trial_shows_the_gain(name: str) -> None:
    c = interfering(policy(name))
    plans = []
    c.on_plan = lambda _snapshot, plan: plans.append(plan)
    c.now += 30.0
    c.step()
    plan = next(plan for plan in plans if plan.moved)
    assert plan.moved == (Moved("separate", Verdict.TRIED, JobId(1)),)
    target = plan.targets[JobId(1)]
    assert target.keep is StateAt.STORE and target.placement.gpus == gpu_set("s1:1", "s1:2")
    words = "beside job 2 on s0 it does 0.80 times what it did before"
    assert plan.reasons[JobId(1)] == f"continues on s1: {words}"
    (judged,) = look(c, 61.0)
    assert (judged.verdict, judged.job_id) == (Verdict.KEPT, JobId(1))
    assert judged.gain == pytest.approx(1 / SLOWED)
    assert c.reasons[JobId(1)] == "stays where it went to: it does 1.25 times what it did on s0"
    assert not [moved for _ in range(30) for moved in look(c, 61.0)], "and comes to rest"


def test_it_is_looked_at_though_nothing_happens() -> None:
    """A new rate alone has no plan made."""
    c = interfering(policy(), lambda c, one: 10.0 if c.now < 60.0 or one.id != 1 else 8.0)
    moved: list[float] = []
    c.on_plan = lambda snapshot, plan: moved.extend(snapshot.time for _ in plan.moved)
    c.run(until=200.0)
    assert moved[0] == 90.0
    c = interfering(policy(), may_migrate=False)
    assert c.plan().wake_at == math.inf, "none could go"
    c = interfering(policy())
    c.remove(2)
    assert c.plan().wake_at == math.inf, "none is beside another"


@pytest.mark.parametrize(
    ("settings", "migration", "changes"),
    [
        ({"loss_fraction": 0.21}, {}, {}),
        ({}, {"gain_ratio": 30.1}, {}),
        ({}, {"horizon_seconds": 59.0}, {}),
        ({}, {}, {"may_migrate": False}),
        ({}, {}, {"may_stop": False}),
        ({}, {}, {"excluded_nodes": frozenset({"s1"})}),
    ],
)
def test_it_is_not_done(settings: Any, migration: Any, changes: Any) -> None:
    """It is not slow enough, the gain of 0.25 x 600 s is too small for 5 s, or the job may not."""
    c = interfering(policy(migration=migration, **settings), **changes)
    assert not look(c, 30.0) and where(c, 1) == {"s0"}


def test_a_job_that_was_always_alone_is_not_moved() -> None:
    """It is slow, but no other job is on its node."""
    c = interfering(policy(), lambda c, one: 10.0 if c.now < 60.0 or one.id != 1 else 5.0)
    c.remove(2)
    assert not look(c, 30.0) and not look(c, 60.0)


def test_it_does_not_go_where_as_many_gpus_are_in_use() -> None:
    c = interfering(policy())
    c.add(job(4, "s1:3", may_migrate=False))
    assert not look(c, 30.0)
    c.remove(4)
    assert look(c, 30.0)


def test_the_rate_of_another_job_of_its_model_tells() -> None:
    """Job 5 has never been alone; job 3 of its model does 10 samples/s on one GPU, where it does 8."""
    c = interfering(policy(), lambda _c, one: 8.0 if one.id == 5 else 10.0)
    request = make_job(3, 1, 1e6, model="m").request
    c.change(3, request=request)
    c.change(1, may_migrate=False)
    c.remove(2)
    c.add(job(5, "s0:2", model="m"))
    c.step()
    assert [int(moved.job_id) for moved in look(c, 30.0)] == [5]


def slow_by_itself(c: Ideal, one: Job) -> float:
    return 8.0 if one.id == 1 and c.now >= 60.0 else 10.0


def tried_in_vain(c: Ideal) -> None:
    """Job 1 went from s0 to s2, where it is as slow; then another comes beside it there, and s0 is idle."""
    c.step()
    look(c, 30.0)
    (tried,) = look(c, 30.0)
    assert tried.verdict is Verdict.TRIED and where(c, 1) == {"s2"}
    (judged,) = look(c, 61.0)
    assert judged.verdict is Verdict.KEPT and judged.gain == pytest.approx(1.0)
    c.remove(2)
    c.add(job(4, "s2:2", "s2:3", may_migrate=False))
    c.step()


def tries_until(c: Ideal, end: float) -> list[float]:
    found: list[float] = []
    while c.now < end:
        found += [c.now for moved in look(c, 61.0) if moved.verdict is Verdict.TRIED]
    return found


def test_one_that_gains_nothing_stays_for_good() -> None:
    """That it is slow is not the others' doing."""
    c = ideal(policy(), 3, slow_by_itself)
    c.add(job(1, "s0:0", model="m"), job(2, "s0:1", "s0:2", may_migrate=False))
    c.add(job(3, "s1:0", may_migrate=False))
    tried_in_vain(c)
    assert not tries_until(c, 9000.0)


def test_its_like_are_left_alone_for_a_while() -> None:
    """Another job of its model is still faster: after the cool-down it is tried once more."""
    c = ideal(policy(), 3, slow_by_itself)
    c.add(job(1, "s0:0", model="m"), job(2, "s0:1", "s0:2", may_migrate=False))
    c.add(job(3, "s1:0", model="m", may_migrate=False))
    tried_in_vain(c)
    again = tries_until(c, 7000.0)
    assert len(again) == 1 and again[0] > 3600.0


def test_a_trial_that_did_not_come_to_pass_is_not_judged() -> None:
    """Its migration failed: it is where it was."""
    c = interfering(policy())
    look(c, 30.0)
    there = gpu_set("s0:0", "s0:1")
    c.change(1, placement=Placement(there, there), last=there)
    assert not [moved for _ in range(20) for moved in look(c, 30.0) if moved.verdict is Verdict.KEPT]


def test_a_job_moves_once_in_a_cool_down() -> None:
    """Where it went to it is disturbed, too."""

    def disturbed(c: Ideal, one: Job) -> float:
        others = [o for o in c.jobs if o != one.id and where(c, o) == where(c, one.id)]
        return 10.0 * (SLOWED if one.id == 1 and others else 1.0)

    c = ideal(policy(migration={"cooldown_seconds": 1000.0}), 2, disturbed)
    c.add(job(1, "s0:0"))
    c.step()
    look(c, 30.0)
    c.add(job(2, "s0:1", "s0:2", may_migrate=False))
    look(c, 30.0)
    assert where(c, 1) == {"s1"}
    look(c, 61.0)
    c.add(job(3, "s1:1", "s1:2", "s1:3", may_migrate=False))
    c.step()
    (again,) = tries_until(c, 3000.0)
    assert 1060.0 <= again <= 1130.0


def test_no_more_go_than_may_at_once() -> None:
    def slowed(c: Ideal, one: Job) -> float:
        return 8.0 if one.may_migrate and c.now > 31.0 else 10.0

    for most in (1, 2):
        c = ideal(policy(migration={"most_at_once": most}), 4, slowed)
        c.migration_seconds = 50.0
        for number, name in ((1, "s0"), (3, "s1")):
            c.add(job(number, f"{name}:0"), job(number + 1, f"{name}:1", f"{name}:2", may_migrate=False))
        c.step()
        look(c, 30.0)
        assert len(look(c, 30.0)) == most


def test_it_stays_on_its_type() -> None:
    c = interfering(policy())
    c.change_node(make_node("s1", 4, model="v100"))
    assert not look(c, 30.0)


def test_one_job_leaves_a_node_at_a_time() -> None:
    """Each slows the other; the one that stays is as fast as before then."""

    def slowed(c: Ideal, one: Job) -> float:
        others = [o for o in c.jobs if o != one.id and where(c, o) == where(c, one.id)]
        return 10.0 if c.now < 31.0 else 10.0 * SLOWED ** len(others)

    c = ideal(policy(), 3, slowed)
    c.add(job(1, "s0:0"), job(2, "s0:1"))
    c.step()
    look(c, 30.0)
    moved = look(c, 30.0)
    assert [m.verdict for m in moved] == [Verdict.TRIED]
    assert len(where(c, 1) | where(c, 2)) == 2
    assert not [m for _ in range(30) for m in look(c, 61.0) if m.verdict is Verdict.TRIED]


def test_a_restart_and_a_damaged_memory_change_nothing() -> None:
    c = interfering(policy())
    c.restart()
    assert look(c, 30.0)
    c = interfering(policy())
    c.common["moves"] = {"separate": {"best": ["x"]}, "migrations": 7, "trials": None}
    c.restart()
    assert not look(c, 30.0), "what it did before is forgotten"
