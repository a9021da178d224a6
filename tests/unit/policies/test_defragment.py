# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs migrate so that one that waits finds its GPUs on one node (SPEC 1.5, 5.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.model import GpuSet, Job, JobId, Moved, StateAt, Verdict
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.policies import PolicySettings
from tests.unit.policies.ideal import Ideal, gpu_set, make_job, make_node, running, suspended

USED = {"s0": [1], "s1": [2, 1], "s2": [1, 1]}
"""Sizes of the jobs on nodes of four GPUs: three, one and two are free."""
WAITS = 9
BOTH = pytest.mark.parametrize("name", ["fifo-skip", "gandiva", "tiresias-las"])


def policy(name: str, *, free_fraction: float = 0.75, **migration: Any) -> Callable[[], Policy]:
    table: dict[str, Any] = {"name": name, "moves": ["defragment"], "migration": migration}
    table["defragment"] = {"free_fraction": free_fraction}
    return lambda: make_policy(PolicySettings(**table))


def placed(used: dict[str, list[int]], **changes: Any) -> list[Job]:
    """Numbered from 1 on, node by node."""
    jobs: list[Job] = []
    for name, sizes in used.items():
        at = 0
        for gpus in sizes:
            own: GpuSet = gpu_set(*(f"{name}:{i}" for i in range(at, at + gpus)))
            job = make_job(len(jobs) + 1, gpus, 1e6, nodes=1, **{"may_migrate": True, **changes})
            jobs.append(running(job, own))
            at += gpus
    return jobs


def ideal(make: Callable[[], Policy], jobs: list[Job], **waits: Any) -> Ideal:
    c = Ideal(make, [make_node(name, 4) for name in USED], [], bound=True)
    c.add(*jobs)
    c.add(make_job(WAITS, 4, 1e6, submit=1.0, nodes=1, **waits))
    return c


def where(c: Ideal) -> dict[int, str]:
    return {int(i): ",".join(sorted({g.node for g in job.placement.gpus})) for i, job in c.jobs.items()}


@BOTH
def test_the_example(name: str) -> None:
    """The job of s0 goes to s1, where the fewest GPUs are free, and s0 is idle: the gang starts there."""
    c = ideal(policy(name), placed(USED))
    plan = c.step()
    assert {int(i) for i in plan.targets} == {1} or name == "gandiva"
    assert plan.targets[JobId(1)].keep is StateAt.STORE
    assert plan.targets[JobId(1)].placement.gpus == gpu_set("s1:3")
    assert plan.reasons[JobId(1)] == "continues on s1: s0 is cleared for job 9 (4 GPUs)"
    assert plan.moved == (Moved("defragment", Verdict.PLANNED, JobId(1)),)
    assert where(c) == {1: "s1", 2: "s1", 3: "s1", 4: "s2", 5: "s2", WAITS: "s0"}


@BOTH
def test_what_it_goes_to_is_its_own_while_it_is_on_its_way(name: str) -> None:
    c = ideal(policy(name), placed(USED))
    c.migration_seconds = 30.0
    c.step()
    late = [make_job(number, 1, 1e6, submit=2.0, nodes=1) for number in (10, 11, 12)]
    c.now = 5.0
    c.add(*late)
    c.step()
    assert all(gpu_set("s1:3").isdisjoint(job.placement.gpus) for job in c.jobs.values())
    c.restart()
    c.step()
    c.now = 31.0
    c.step()
    assert c.jobs[JobId(1)].placement.gpus == gpu_set("s1:3")
    assert where(c)[WAITS] == "s0"


@BOTH
@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"free_fraction": 0.8}, {}),
        ({"cost_seconds": 900.0}, {}),
        ({}, {"may_migrate": False}),
        ({}, {"priority_class": 1}),
        ({}, {"may_stop": False, "may_migrate": False}),
    ],
)
def test_it_is_not_done(name: str, settings: dict[str, float], changes: dict[str, Any]) -> None:
    """Too little is free, it costs too much, or the job of s0 may not."""
    jobs = placed(USED)
    c = ideal(policy(name, **settings), [replace(jobs[0], **changes), *jobs[1:]])
    c.step()
    assert where(c)[1] == "s0"


def test_the_cost_counts_by_gpu() -> None:
    """4 GPUs for 150 s are 600 GPU-seconds: more than three times those of one GPU for less than 200 s."""
    for seconds, goes in ((199.0, True), (201.0, False)):
        c = ideal(policy("fifo-skip", cost_seconds=seconds, horizon_seconds=150.0), placed(USED))
        c.step()
        assert (where(c)[1] == "s1") is goes


def test_it_is_not_done_for_what_happens_soon_anyway() -> None:
    """The job of s0 ends in 30 s: the gang waits no longer for it, and the migration takes 60 s."""
    jobs = placed(USED)
    soon = replace(jobs[0], request=replace(jobs[0].request, duration_seconds=30.0))
    c = ideal(policy("fifo-skip"), [soon, *jobs[1:]])
    c.step()
    assert where(c)[1] == "s0"


def test_no_more_migrate_than_may_at_once() -> None:
    used = {"s0": [1, 1], "s1": [2], "s2": [3]}
    for most, goes in ((1, False), (2, True)):
        c = ideal(policy("fifo-skip", free_fraction=0.5, most_at_once=most), placed(used))
        c.step()
        assert (where(c)[1] != "s0") is (where(c)[2] != "s0") is goes


def test_nothing_migrates_while_a_node_takes_the_job() -> None:
    jobs = placed({"s0": [1], "s1": [2, 1]})
    c = ideal(policy("fifo-skip"), jobs)
    c.step()
    assert where(c) == {1: "s0", 2: "s1", 3: "s1", WAITS: "s2"}


def test_all_that_have_to_go_have_a_place_or_none_goes() -> None:
    c = ideal(policy("fifo-skip", free_fraction=0.5), placed({"s0": [1, 1], "s1": [3], "s2": [4]}))
    c.step()
    assert where(c)[1] == where(c)[2] == "s0"


def test_only_as_many_go_as_are_needed() -> None:
    jobs = placed({"s0": [1, 1], "s1": [2, 1], "s2": [2, 1]})
    c = ideal(policy("fifo-skip", free_fraction=0.5), jobs, request=make_job(WAITS, 3, 1e6, nodes=1).request)
    c.step()
    assert where(c) == {1: "s1", 2: "s0", 3: "s1", 4: "s1", 5: "s2", 6: "s2", WAITS: "s0"}


def test_a_job_migrates_once_in_a_cooldown() -> None:
    c = ideal(policy("fifo-skip"), placed(USED))
    c.step()
    c.remove(WAITS, 2, 3, 4, 5)
    c.now = 60.0
    c.add(
        *[
            running(make_job(20 + n, 3, 1e6, nodes=1), gpu_set(*(f"s{n}:{i}" for i in range(3))))
            for n in (0, 2)
        ]
    )
    c.add(make_job(30, 4, 1e6, submit=60.0, nodes=1))
    c.step()
    assert where(c)[1] == "s1" and not c.jobs[JobId(30)].placement.gpus
    c.now = 700.0
    c.step()
    assert where(c)[1] == "s0" and where(c)[30] == "s1"


def shared_gpu(**changes: Any) -> list[Job]:
    """Job 1 has a GPU of s0 to which job 2 is bound too. One GPU is free on each of s1 and s2."""
    jobs = placed({"s0": [1], "s1": [3], "s2": [3]})
    behind = suspended(make_job(5, 1, 1e6, nodes=1, may_migrate=True), gpu_set("s0:0"))
    return [*jobs, replace(behind, **changes)]


def test_a_suspended_job_is_cleared_off_too() -> None:
    """Else it would continue on the GPU that the other one leaves."""
    c = ideal(policy("gandiva"), shared_gpu())
    plan = c.step()
    assert {int(moved.job_id) for moved in plan.moved} == {1, 5}
    assert {target.keep for target in plan.targets.values()} == {StateAt.STORE}
    assert plan.reasons[JobId(5)].endswith(": s0 is cleared for job 9 (4 GPUs)")
    assert {where(c)[1], where(c)[5]} == {"s1", "s2"} and where(c)[WAITS] == "s0"


@pytest.mark.parametrize("changes", [{"may_migrate": False}, {"may_start": False}, {"priority_class": 1}])
def test_none_goes_where_a_suspended_job_would_stay(changes: dict[str, Any]) -> None:
    """It may not go, an operation on it is under way, or it outranks the job that waits."""
    c = ideal(policy("gandiva"), shared_gpu(**changes))
    plan = c.step()
    assert not plan.moved and not c.jobs[JobId(WAITS)].placement.gpus


def test_no_suspended_job_goes_for_gpus_that_others_keep() -> None:
    """Three GPUs of s0 are wanted: those without job 2, which may not go. Job 0 waits for that one."""
    jobs = placed({"s0": [1, 1], "s1": [2, 1], "s2": [2, 1]})
    jobs[1] = replace(jobs[1], may_migrate=False)
    behind = suspended(make_job(0, 1, 1e6, nodes=1, may_migrate=True), gpu_set("s0:1"))
    waits = {"request": make_job(WAITS, 3, 1e6, nodes=1).request}
    c = ideal(policy("gandiva", free_fraction=0.5), [*jobs, behind], **waits)
    plan = c.step()
    assert {int(moved.job_id) for moved in plan.moved} == {1}
    assert c.jobs[JobId(0)].placement.allocation == gpu_set("s0:1")
