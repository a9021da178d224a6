# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that take turns continue on GPUs that others left (SPEC 1.5, 1.8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.model import Job, JobId, Moved, Placement, StateAt, Verdict
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.policies import PolicySettings
from tests.unit.policies.ideal import Ideal, gpu_set, make_job, make_node, running, suspended


def policy(name: str = "gandiva", **migration: Any) -> Callable[[], Policy]:
    table: dict[str, Any] = {"name": name, "moves": ["balance"], "migration": migration}
    return lambda: make_policy(PolicySettings(**table))


def turns(make: Callable[[], Policy], **waiting: Any) -> Ideal:
    """Two of four jobs run in turn on the two GPUs of s0; two on s1 have theirs for themselves. `waiting`:
    what is different of those that are off their GPUs."""
    c = Ideal(make, [make_node(name, 2) for name in ("s0", "s1")], [], bound=True)
    both = gpu_set("s0:0", "s0:1")
    for number in range(1, 5):
        job = suspended(make_job(number, 1, 1e6, nodes=1, may_migrate=True), both)
        gpu = gpu_set(f"s0:{number - 1}")
        c.add(running(job, gpu) if number < 3 else replace(job, last=gpu_set("s0:0"), **waiting))
    c.add(*[running(make_job(n, 1, 1e6), gpu_set(f"s1:{n - 5}")) for n in (5, 6)])
    return c


def on(c: Ideal, name: str) -> set[int]:
    """Jobs bound to this node."""
    return {int(i) for i, j in c.jobs.items() if name in {g.node for g in j.placement.allocation}}


def test_jobs_that_wait_for_their_turn_go_to_the_gpus_of_departed_ones() -> None:
    """They need not wait, and no running job is stopped for them."""
    c = turns(policy())
    c.step()
    assert len(c.running()) == 4 and on(c, "s0") == {1, 2, 3, 4}
    c.now, preemptions = 10.0, c.timeline.preemptions
    c.remove(5, 6)
    plan = c.step()
    assert {int(moved.job_id) for moved in plan.moved} == {3, 4} == on(c, "s1")
    assert {target.keep for target in plan.targets.values()} == {StateAt.STORE}
    words = "continues on s1: there is room, and it waits for a turn where it is bound"
    assert {plan.reasons[JobId(i)] for i in (3, 4)} == {words}
    assert c.running() == {1, 2, 3, 4} and c.timeline.preemptions == preemptions
    history = c.slices(5)
    assert all(running == {1, 2, 3, 4} for running in history), "no more turns, and none goes back"


def test_where_they_cannot_save_those_that_run_go() -> None:
    """Those that they leave behind take no turns any more."""
    c = turns(policy(), may_migrate=False)
    c.step()
    assert len(c.running()) == 4 and on(c, "s0") == {1, 2, 3, 4}
    c.now = 10.0
    c.remove(5, 6)
    plan = c.step()
    first, second = plan.moved
    assert (first.move, first.verdict) == ("balance", Verdict.PLANNED)
    assert {int(first.job_id), int(second.job_id)} == {1, 2} == on(c, "s1")
    assert plan.targets[first.job_id].keep is StateAt.STORE
    assert {gpu for i in (1, 2) for gpu in plan.targets[JobId(i)].placement.gpus} == gpu_set("s1:0", "s1:1")
    words = "there is room, and job 3 waits for the GPUs that it leaves"
    assert plan.reasons[first.job_id] == f"continues on s1: {words}"
    assert c.running() == {1, 2, 3, 4}
    history = c.slices(5)
    assert all(running == {1, 2, 3, 4} for running in history), "no more turns, and none goes back"


def bound(**changes: Any) -> list[Job]:
    """Job 2 waits for the GPU of job 1, where it is bound."""
    here = gpu_set("s0:0")
    first = replace(running(make_job(1, 1, 1e6), here), **{"may_migrate": True, **changes})
    return [first, suspended(make_job(2, 1, 1e6), here)]


@pytest.mark.parametrize("name", ["tiresias-las", "fifo-skip"])
def test_a_job_makes_room_for_one_that_is_bound_to_its_gpu(name: str) -> None:
    c = Ideal(policy(name), [make_node("s0", 1), make_node("s1", 2)], [], bound=True)
    c.add(*bound())
    plan = c.step()
    assert plan.moved == (Moved("balance", Verdict.PLANNED, JobId(1)),)
    assert c.jobs[JobId(1)].placement.gpus == gpu_set("s1:0")
    assert c.jobs[JobId(2)].placement.gpus == gpu_set("s0:0")


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"cost_seconds": 201.0}, {}),
        ({"gain_ratio": 10.1}, {}),
        ({}, {"may_migrate": False}),
        ({}, {"may_stop": False}),
        ({}, {"priority_class": 1}),
        ({}, {"excluded_nodes": frozenset({"s1"})}),
    ],
)
def test_it_is_not_done(settings: dict[str, float], changes: dict[str, Any]) -> None:
    """It costs too much, the job may not go, or it outranks the one that waits."""
    c = Ideal(policy("tiresias-las", **settings), [make_node("s0", 1), make_node("s1", 2)], [], bound=True)
    c.add(*bound(**changes))
    assert not c.step().moved
    assert c.running() == {1}


def test_nothing_goes_while_no_job_waits_or_no_gpu_is_free() -> None:
    c = Ideal(policy("tiresias-las"), [make_node("s0", 1), make_node("s1", 1)], [], bound=True)
    first, second = bound()
    c.add(first)
    assert not c.step().moved
    c.add(running(make_job(3, 1, 1e6), gpu_set("s1:0")), second)
    assert not c.step().moved
    assert c.running() == {1, 3}


def test_the_gpus_that_others_gain_count() -> None:
    """A gang of four would leave its GPUs to one of a single GPU: 600 s of one against 60 s of four."""
    here = gpu_set(*(f"s0:{i}" for i in range(4)))
    gang = running(make_job(1, 4, 1e6, may_migrate=True), here)
    for waiting, goes in ((1, False), (2, True)):
        c = Ideal(policy("tiresias-las"), [make_node("s0", 4), make_node("s1", 4)], [], bound=True)
        others = [suspended(make_job(2 + n, 1, 1e6), gpu_set(f"s0:{n}")) for n in range(waiting)]
        c.add(gang, *others)
        c.step()
        assert (c.jobs[gang.id].placement.gpus != here) is goes


def test_one_that_was_helped_is_not_helped_again() -> None:
    """Two jobs run where a floating one could go on; one of them makes room."""
    pair = [running(make_job(n, 1, 1e6, may_migrate=True), gpu_set(f"s0:{n - 1}")) for n in (1, 2)]
    waits = suspended(make_job(3, 1, 1e6), gpu_set("s0:0", "s0:1"))
    c = Ideal(policy("gandiva"), [make_node("s0", 2), make_node("s1", 2)], [], bound=True)
    c.add(*pair, replace(waits, last=gpu_set("s0:0")))
    plan = c.step()
    assert len(plan.moved) == 1
    assert c.running() == {1, 2, 3}


def test_one_that_goes_on_by_itself_does_not_count() -> None:
    c = Ideal(policy("gandiva"), [make_node("s0", 2), make_node("s1", 2)], [], bound=True)
    waits = suspended(make_job(2, 1, 1e6), gpu_set("s0:0", "s0:1"))
    c.add(running(make_job(1, 1, 1e6, may_migrate=True), gpu_set("s0:0")), waits)
    plan = c.step()
    assert not plan.moved and c.running() == {1, 2}


def test_those_first_that_make_room_for_most() -> None:
    c = Ideal(policy("tiresias-las"), [make_node("s0", 3), make_node("s1", 2)], [], bound=True)
    c.add(running(make_job(1, 1, 1e6, may_migrate=True), gpu_set("s0:0")))
    c.add(running(make_job(2, 2, 1e6, may_migrate=True), gpu_set("s0:1", "s0:2")))
    c.add(*[suspended(make_job(3 + n, 1, 1e6), gpu_set(f"s0:{n}")) for n in range(3)])
    plan = c.step()
    assert [int(m.job_id) for m in plan.moved] == [2]


def test_no_more_go_than_may_at_once() -> None:
    c = turns(policy(most_at_once=1))
    c.migration_seconds = 30.0
    c.step()
    c.remove(5, 6)
    plan = c.step()
    assert len(plan.moved) == 1
    assert sum(bool(job.promised) for job in c.jobs.values()) == 1


def test_it_stays_on_its_type() -> None:
    c = Ideal(policy("tiresias-las"), [make_node("s0", 1), make_node("s1", 2, model="v100")], [], bound=True)
    c.add(*bound())
    assert not c.step().moved


def waits(**changes: Any) -> list[Job]:
    """Job 2, which can save off its GPU, waits for that of job 1."""
    here = gpu_set("s0:0")
    first = running(make_job(1, 1, 1e6, priority_class=1), here)
    return [first, replace(suspended(make_job(2, 1, 1e6, may_migrate=True), here), **changes)]


def two_nodes(make: Callable[[], Policy], jobs: list[Job]) -> Ideal:
    c = Ideal(make, [make_node("s0", 1), make_node("s1", 2)], [], bound=True)
    c.add(*jobs)
    return c


@pytest.mark.parametrize("name", ["gandiva", "tiresias-las", "fifo-skip", "gavel-las"])
def test_a_job_that_a_higher_class_keeps_off_its_gpu_goes(name: str) -> None:
    """It would have no turn there. The other one stays where it is."""
    c = two_nodes(policy(name), waits())
    plan = c.step()
    assert plan.moved == (Moved("balance", Verdict.PLANNED, JobId(2)),)
    assert plan.targets[JobId(2)].keep is StateAt.STORE
    assert c.jobs[JobId(2)].placement.gpus == gpu_set("s1:0")
    assert c.jobs[JobId(1)].placement.gpus == gpu_set("s0:0")


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"cost_seconds": 201.0}, {}),
        ({"gain_ratio": 10.1}, {}),
        ({}, {"may_migrate": False}),
        ({}, {"may_start": False}),
        ({}, {"switching": True, "may_start": False}),
        ({}, {"excluded_nodes": frozenset({"s1"})}),
    ],
)
def test_a_waiting_job_stays(settings: dict[str, float], changes: dict[str, Any]) -> None:
    """It costs too much, or the job may not go."""
    c = two_nodes(policy("tiresias-las", **settings), waits(**changes))
    assert not c.step().moved
    assert c.running() == {1}


def test_a_waiting_job_stays_on_its_type() -> None:
    c = Ideal(policy("tiresias-las"), [make_node("s0", 1), make_node("s1", 2, model="v100")], [], bound=True)
    c.add(*waits())
    assert not c.step().moved


def test_the_promise_is_kept_while_it_is_on_its_way() -> None:
    c = two_nodes(policy("gandiva"), waits())
    c.migration_seconds = 30.0
    c.step()
    assert c.jobs[JobId(2)].promised == gpu_set("s1:0") and not c.jobs[JobId(2)].placement.allocation
    c.now = 5.0
    c.add(make_job(3, 2, 1e6, submit=5.0, nodes=1))
    c.step()
    assert c.running() == {1}, "one of two GPUs is promised"
    c.now = 31.0
    c.step()
    assert c.jobs[JobId(2)].placement.gpus == gpu_set("s1:0")


def test_it_goes_once_in_a_cooldown() -> None:
    c = two_nodes(policy("gandiva"), waits())
    c.step()
    c.now = 60.0
    c.add(running(make_job(4, 1, 1e6, priority_class=1, submit=60.0), gpu_set("s1:1")))
    c.put(JobId(2), Placement(frozenset(), gpu_set("s1:0")))
    c.add(running(make_job(5, 1, 1e6, priority_class=1, submit=60.0), gpu_set("s1:0")))
    c.remove(1)
    c.changed |= set(c.jobs)
    c.step()
    assert on(c, "s1") == {2, 4, 5}
    c.now = 700.0
    c.step()
    assert on(c, "s0") == {2}


def test_the_higher_class_goes_first_then_the_larger_gang() -> None:
    here = gpu_set("s0:0", "s0:1")
    c = Ideal(policy("fifo-skip", most_at_once=1), [make_node("s0", 2), make_node("s1", 2)], [], bound=True)
    c.add(running(make_job(1, 2, 1e6, priority_class=2), here))
    for number, gpus, priority in ((2, 2, 0), (3, 1, 1), (4, 2, 1)):
        job = make_job(number, gpus, 1e6, may_migrate=True, priority_class=priority)
        own = gpu_set(*(f"s0:{i}" for i in range(gpus)))
        c.add(suspended(job, own))
    assert [int(moved.job_id) for moved in c.step().moved] == [4]


def test_a_gang_over_several_nodes_stays() -> None:
    """Its user may have asked for them."""
    here = gpu_set("s0:0", "s1:0")
    c = Ideal(
        policy("fifo-skip"), [make_node("s0", 1), make_node("s1", 1), make_node("s2", 2)], [], bound=True
    )
    c.add(running(make_job(1, 2, 1e6, nodes=2, priority_class=1), here))
    c.add(suspended(make_job(2, 2, 1e6, nodes=2, may_migrate=True), here))
    assert not c.step().moved
