# SPDX-License-Identifier: GPL-2.0-or-later
"""The Gandiva preset against the test vectors of the specification (section 5.2) and its invariants."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import Job, JobId, Phase, Plan, Reason, Snapshot, reason_of
from controller.policies.placement.affinity import get_nodes
from tests.unit.draws import draws
from tests.unit.policies.ideal import GIB, Ideal, gpu_set, make_job, make_node, running, suspended
from tests.unit.policies.presets import preset

SLICE = 60.0


def gandiva(*gpus: int, max_jobs_per_gpu: int = 8, jobs: Iterable[Job] = ()) -> Ideal:
    """Nodes s0, s1, … with so many GPUs; stopped jobs stay bound."""
    make = preset("gandiva", slice_seconds=SLICE, max_jobs_per_gpu=max_jobs_per_gpu)
    return Ideal(make, [make_node(f"s{i}", n) for i, n in enumerate(gpus)], jobs, bound=True)


def job(number: int, gpus: int = 1, **changes: Any) -> Job:
    return make_job(number, gpus, **{"nodes": 1, **changes})


def letters(history: list[set[int]]) -> list[str]:
    return ["".join(chr(ord("A") + n - 1) for n in sorted(jobs)) for jobs in history]


def test_g6_six_one_gpu_jobs_on_four_gpus_each_run_four_of_six_slices() -> None:
    c = gandiva(4, jobs=[job(n) for n in range(1, 7)])
    assert letters(c.slices(6)) == ["ABCD", "ABEF", "CDEF"] * 2


def test_g7_weights_2_1_1_on_one_gpu() -> None:
    c = gandiva(1, jobs=[job(1, weight=2), job(2), job(3)])
    assert letters(c.slices(8)) == list("ABCA") * 2


def test_g8_three_two_gpu_jobs_on_four_gpus() -> None:
    c = gandiva(4, jobs=[job(n, 2) for n in (1, 2, 3)])
    assert letters(c.slices(6)) == ["AB", "AC", "BC"] * 2


def test_g9_a_two_gpu_job_and_two_one_gpu_jobs_on_two_gpus() -> None:
    # Affinity keeps sizes apart on arrival, so the mix is set up as it would be after stage 3.
    both = gpu_set("s0:0", "s0:1")
    jobs = [suspended(job(1, 2), both)]
    for number, last in ((2, gpu_set("s0:0")), (3, gpu_set("s0:1"))):
        jobs.append(replace(suspended(job(number), both), last=last))
    assert letters(gandiva(2, max_jobs_per_gpu=4, jobs=jobs).slices(4)) == ["A", "BC", "A", "BC"]


def test_g10_algorithm_1_stage_order() -> None:
    sizes = [1, 1, 2, 4, 1, 1, 1, 2, 1, 1, 1, 1, 2, 2, 4, 8]
    jobs = [
        job(number, size, submit=float(number), nodes=None if size == 8 else 1)
        for number, size in enumerate(sizes, start=1)
    ]
    c = gandiva(4, 4, 4, 4, jobs=jobs)
    c.run(until=16.5)
    expected = ["s0", "s0", "s1", "s2", "s0", "s0", "s3", "s1", "s3", "s3", "s3"]
    expected += ["s0", "s1", "s1", "s2", "QUEUE"]  # over-subscription, then the queue
    assert [where(c, number) for number in range(1, 17)] == expected
    assert allocated(c) == {"s0": 5, "s1": 8, "s2": 8, "s3": 4}


def where(c: Ideal, number: int) -> str:
    """The node a job was assigned to, bound to or promised."""
    return next((gpu.node for gpu in c.jobs[JobId(number)].allocation), "QUEUE")


def allocated(c: Ideal, plan: Plan | None = None) -> dict[str, int]:
    """M of each node, now or once this plan is carried out."""
    totals = dict.fromkeys(c.nodes, 0)
    for each in c.jobs.values():
        target = plan.targets.get(each.id) if plan is not None else None
        # One that waits for its first turn at a node may start on another one after all.
        names = {gpu.node for gpu in (target.placement.allocation if target else ()) or each.allocation}
        for name in names:
            totals[name] += each.gpus // len(names)
    return totals


def test_a_newcomer_on_free_gpus_is_bound_to_exactly_these_and_a_sharing_one_floats() -> None:
    c = gandiva(2, jobs=[job(1), job(2), job(3)])
    c.slices(3)
    assert [len(c.jobs[JobId(n)].placement.allocation) for n in (1, 2, 3)] == [1, 1, 2]


def test_where_no_job_can_be_kept_to_its_gpus_all_are_bound_to_exactly_so_many_and_take_turns_on_these() -> (
    None
):
    make = preset("gandiva", slice_seconds=SLICE)
    node = make_node("s0", 2, unconfined="the kernel has no device control groups")
    c = Ideal(make, [node], [job(1), job(2), job(3)], bound=True)
    assert letters(c.slices(4)) == ["AB", "BC"] * 2
    assert [len(c.jobs[JobId(n)].placement.allocation) for n in (1, 2, 3)] == [1, 1, 1]


def test_nothing_is_suspended_while_all_jobs_fit() -> None:
    c = gandiva(4, jobs=[job(1, 2), job(2), job(3)])
    assert c.slices(5) == [{1, 2, 3}] * 5
    assert not c.timeline.preemptions


def test_a_higher_class_is_never_suspended_for_a_lower_one_and_takes_over_at_once() -> None:
    c = gandiva(1, jobs=[job(1), job(2, priority_class=1, submit=5)])
    c.run(until=5)
    c.step()
    assert c.running() == {2}
    assert c.slices(5) == [{2}] * 5


def test_a_job_that_could_not_be_suspended_keeps_its_gpu() -> None:
    c = gandiva(1, jobs=[job(1), job(2)])
    c.step()
    c.change(1, may_stop=False)
    c.now += 200
    assert c.slices(4) == [{1}] * 4


def test_a_floating_job_that_could_not_be_suspended_is_not_moved_either() -> None:
    c = gandiva(2, jobs=[job(1), job(2), job(3, submit=60)])
    c.run(until=121)
    while 3 not in c.running():
        c.slices(1)
    here = c.jobs[JobId(3)].placement.gpus
    c.change(3, may_stop=False)
    for _ in range(4):
        c.slices(1)
        assert c.jobs[JobId(3)].placement.gpus == here
        assert len(c.running()) == 2


def test_a_job_that_cannot_move_waits_for_the_gpu_it_was_on() -> None:
    c = gandiva(2, jobs=[job(n, may_move=False) for n in (1, 2, 3)])
    homes: dict[int, set[object]] = {}
    ran: set[int] = set()
    for _ in range(8):
        c.slices(1)
        ran |= c.running()
        for each in c.jobs.values():
            if each.placement.gpus:
                homes.setdefault(int(each.id), set()).add(each.placement.gpus)
    assert all(len(places) == 1 for places in homes.values())
    assert ran == {1, 2, 3}


def test_jobs_in_transition_are_left_alone() -> None:
    c = gandiva(1, jobs=[job(1), job(2)])
    c.step()
    c.change(1, may_stop=False, switching=True)
    c.now += 100
    assert not c.step().targets
    assert c.running() == {1}


def test_a_slice_begins_when_the_switch_is_over() -> None:
    """Else slow switches eat the next job's time."""
    c = gandiva(1, jobs=[job(1), job(2)])
    c.step()
    c.now = 60.0
    c.step()
    assert c.running() == {2}
    c.change(2, phase=Phase.STARTING, may_stop=False, switching=True)
    c.now = 75.0
    c.step()
    c.change(2, phase=Phase.RUNNING, may_stop=True, switching=False)
    assert c.step().wake_at == 135.0


def test_gang_over_two_nodes_shares_as_a_whole() -> None:
    c = gandiva(4, 4, jobs=[job(1, 8, nodes=2), job(2, 8, nodes=2)])
    assert c.slices(4) == [{1}, {2}, {1}, {2}]


def test_an_impossible_request_waits_with_a_reason() -> None:
    c = gandiva(4, jobs=[job(1, 8)])
    assert not c.step().targets
    assert "only 4 usable GPUs" in c.reasons[JobId(1)]


def test_more_memory_than_any_node_has_is_told_from_memory_that_others_have_now() -> None:
    jobs = [job(1, memory_per_node_bytes=999 * GIB), job(2, memory_per_node_bytes=32 * GIB)]
    c = gandiva(4, jobs=jobs)
    c.nodes["s0"] = make_node("s0", 4, memory_bytes=64 * GIB, memory_free_bytes=16 * GIB)
    c.step()
    assert c.reasons[JobId(1)] == "no node can take its GPU: only 64 GiB of host memory"
    assert c.reasons[JobId(2)] == "no node can take its GPU: not enough free host memory"


def test_a_departure_lets_a_waiting_job_start_elsewhere() -> None:
    c = gandiva(1, 1, jobs=[job(1), job(2), job(3)])
    c.step()
    assert c.running() == {1, 2}
    c.remove(2)
    c.step()
    assert c.running() == {1, 3}
    assert c.jobs[JobId(3)].placement.allocation == gpu_set("s1:0")


def test_full_nodes_queue_and_the_depth_is_respected() -> None:
    c = gandiva(1, max_jobs_per_gpu=2, jobs=[job(1), job(2), job(3)])
    c.step()
    assert reason_of(c.reasons[JobId(3)]) is Reason.WAITS_FOR_GPUS
    c.slices(4)
    assert c.jobs[JobId(3)].phase is Phase.QUEUED and not c.jobs[JobId(3)].promised


def test_gpus_of_ordinary_jobs_and_unhealthy_ones_are_not_used() -> None:
    c = gandiva(3, jobs=[job(1)])
    gpus = c.nodes["s0"].gpus
    cards = (
        replace(gpus[0], ordinary_job=JobId(99)),
        replace(gpus[1], healthy=False),
        gpus[2],
    )
    c.nodes["s0"] = replace(c.nodes["s0"], gpus=cards)
    c.step()
    assert c.jobs[JobId(1)].placement.gpus == gpu_set("s0:2")


def test_foreign_and_damaged_memory_is_ignored() -> None:
    # (That memory is JSON and makes the same plan is the ideal cluster's own check.)
    for common in (
        {"lanes": {"other": 1}},
        {"lanes": 3},
        {"lanes": {"affinity": {"s0": "x"}, "slices": [1]}},
    ):
        c = gandiva(1, jobs=[job(1), job(2)])
        c.common = common
        c.step()
        assert c.running() == {1}


gangs = st.lists(st.sampled_from([1, 1, 1, 2, 2, 4]), min_size=1, max_size=14)


@settings(max_examples=draws(40, 1000))
@given(
    sizes=gangs,
    seed=st.integers(0, 2**16),
    weights=st.lists(st.sampled_from([0.5, 1, 2, 4]), min_size=14, max_size=14),
)
def test_invariants_under_random_arrivals_and_departures(
    sizes: list[int], seed: int, weights: list[float]
) -> None:
    rng = random.Random(seed)
    c = gandiva(4, 4)

    def watch(snapshot: Snapshot, plan: Plan) -> None:
        movable = all(each.may_move for each in snapshot.jobs.values())
        for job_id, target in plan.targets.items():
            before = snapshot.jobs[job_id]
            if before.placement.gpus and not target.placement.gpus and movable:
                node = next(iter(before.allocation)).node
                assert allocated(c, plan)[node] > 4, "suspended although all jobs of the node fit"
            if before.placement.allocation and target.placement.gpus:
                assert target.placement.allocation == before.placement.allocation, "without a migration"

    c.on_plan = watch
    for number, size in enumerate(sizes, start=1):
        c.add(job(number, size, submit=c.now, weight=weights[number - 1], may_move=rng.random() < 0.7))
        c.step()
        c.now += rng.choice([1.0, 30.0, 60.0, 61.0])
        if rng.random() < 0.3 and c.jobs:
            c.remove(rng.choice([int(i) for i in c.jobs]))
    c.slices(4)


@pytest.mark.parametrize(("jobs", "gpus"), [(5, 2), (6, 4), (3, 1), (9, 4)])
def test_equal_jobs_differ_by_at_most_one_slice(jobs: int, gpus: int) -> None:
    c = gandiva(gpus, max_jobs_per_gpu=16, jobs=[job(n) for n in range(1, jobs + 1)])
    c.slices(5 * jobs)
    ran = [c.usage[i].ran(c.now) / SLICE for i in c.jobs]
    assert max(ran) - min(ran) <= 1 + 1e-9
    assert sum(ran) == pytest.approx(5 * jobs * min(jobs, gpus))


def test_a_plan_leaves_its_input_as_it_was() -> None:
    c = gandiva(2, jobs=[job(n) for n in range(1, 5)])
    c.slices(2)
    snapshot, before = c.snapshot(c.jobs), json.dumps(c.common)
    c.policy.plan(snapshot, c.memory())
    assert json.dumps(c.common) == before


def test_a_long_queue_costs_one_search_per_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    def counting(*args: Any, **options: Any) -> object:
        nonlocal searches
        searches += 1
        return get_nodes(*args, **options)

    monkeypatch.setattr("controller.policies.mechanisms.queue.get_nodes", counting)
    c = gandiva(1, max_jobs_per_gpu=1, jobs=[job(n) for n in range(1, 500)])
    c.check = False
    c.events()
    plan = c.policy.plan(c.snapshot(()), c.memory())
    assert searches <= 3
    assert len(plan.reasons) == 499


def take_for_ordinary(c: Ideal, *ordinals: int) -> None:
    """Ordinary jobs have just these GPUs of s0."""
    node = c.nodes["s0"]
    gpus = tuple(
        replace(gpu, ordinary_job=JobId(9000 + gpu.id.ordinal) if gpu.id.ordinal in ordinals else None)
        for gpu in node.gpus
    )
    c.change_node(replace(node, gpus=gpus))


def test_a_floating_job_stays_within_its_binding_when_an_ordinary_job_ends_beside_it() -> None:
    c = gandiva(4)
    take_for_ordinary(c, 0)
    c.add(*(job(n) for n in range(1, 6)))
    c.slices(3)
    usable = gpu_set("s0:1", "s0:2", "s0:3")
    assert c.jobs[JobId(5)].placement.allocation == usable, "what was usable when it began"
    take_for_ordinary(c)
    history = c.slices(10)
    # (That they run on GPUs of their binding only is the ideal cluster's own check.)
    assert {len(jobs) for jobs in history} == {3}
    ran = [sum(number in jobs for jobs in history) for number in range(1, 6)]
    assert max(ran) - min(ran) <= 1, ran
    c.add(job(6))
    assert all(6 in jobs for jobs in c.slices(5)), "the GPU that became free is for jobs that can have it"


def test_jobs_that_may_use_different_parts_of_a_node_use_all_of_it() -> None:
    c = gandiva(4)
    take_for_ordinary(c, 0, 1)
    c.add(*(job(n) for n in (1, 2, 3)))
    c.slices(2)
    take_for_ordinary(c)
    c.add(*(job(n) for n in (4, 5, 6, 7)))
    history = c.slices(14)
    assert {len(jobs) for jobs in history} == {4}, "two of 1, 2, 3 beside two others, or none idle"


@settings(max_examples=draws(40, 1000))
@given(data=st.data())
def test_ordinary_jobs_come_and_go_beside_jobs_that_share(data: st.DataObject) -> None:
    c = gandiva(4, max_jobs_per_gpu=3)
    number = 0
    for _ in range(data.draw(st.integers(3, 14))):
        bound = {gpu.ordinal for each in c.jobs.values() for gpu in each.placement.allocation}
        may = sorted({0, 1, 2, 3} - bound)
        # Slurm gives whole GPUs to ordinary jobs where no shard is in use.
        take_for_ordinary(c, *(data.draw(st.lists(st.sampled_from(may), unique=True)) if may else []))
        for _ in range(data.draw(st.integers(0, 3))):
            number += 1
            c.add(job(number, data.draw(st.integers(1, 2))))
        if data.draw(st.booleans()) and c.jobs:
            c.remove(int(data.draw(st.sampled_from(sorted(c.jobs)))))
        c.slices(data.draw(st.integers(1, 3)))
        bound_jobs = any(each.placement.allocation for each in c.jobs.values())
        assert c.running() or not bound_jobs, "a job that is bound can always run"


def test_the_clock_may_be_set_back() -> None:
    c = gandiva(1, jobs=[job(1), job(2)])
    c.slices(3)
    c.usage = {i: replace(u, since=None if u.since is None else u.since - 1000) for i, u in c.usage.items()}
    c.now -= 1000
    c.restart()
    assert c.step().wake_at <= c.now + SLICE
    before = c.running()
    c.now += SLICE
    c.step()
    assert c.running() != before


def test_running_and_suspended_jobs_of_an_earlier_controller_go_on_where_they_are() -> None:
    jobs = [running(job(1, may_stop=True), gpu_set("s0:0")), suspended(job(2), gpu_set("s0:0"))]
    c = gandiva(1, jobs=jobs)
    c.slices(2)
    assert {int(i): len(j.placement.allocation) for i, j in c.jobs.items()} == {1: 1, 2: 1}


def two_node_gangs() -> Ideal:
    """Two endless 4-GPU jobs that take turns on one node, since the other one was taken when they came; it is
    empty since 130 s. Two endless gangs want both nodes."""
    singles = [job(1, 4), make_job(2, 4, 130.0, nodes=1), job(3, 4, submit=1.0)]
    return gandiva(4, 4, jobs=[*singles, job(4, 8, nodes=2, submit=140.0), job(5, 8, nodes=2, submit=140.0)])


def test_gangs_do_not_wait_for_ever_beside_an_idle_node() -> None:
    """Algorithm 1 alone lets them share with gangs of their size only, of which there is none."""
    c = two_node_gangs()
    c.run(until=139)
    assert {gpu.node for i in (1, 3) for gpu in c.jobs[JobId(i)].placement.allocation} == {"s0"}
    c.run(until=200)
    no_peer = "no node has 4 free GPUs, and no 8-GPU job is there to take turns with"
    assert c.reasons[JobId(4)].startswith(no_peer)
    patience = SLICE * 8
    c.run(until=140 + patience + 4 * SLICE)
    ran = {i: c.usage[i].ran(c.now) for i in c.jobs}
    assert ran[JobId(4)] > 0 and ran[JobId(5)] > 0
    begin = dict(ran)
    c.run(until=c.now + 40 * SLICE)
    had = {int(i): (c.usage[i].ran(c.now) - begin[i]) / SLICE for i in c.jobs}
    # Four jobs that all need the same node: each has a quarter of the time.
    assert had == pytest.approx({1: 10, 3: 10, 4: 10, 5: 10}, abs=1.01)


def test_a_job_that_waited_long_shares_a_node_of_another_size() -> None:
    c = gandiva(2, max_jobs_per_gpu=4, jobs=[job(1), job(2), job(3, 2, submit=1.0)])
    c.run(until=1 + SLICE * 4)
    assert c.running() == {1, 2}
    c.run(until=1 + SLICE * 8)
    assert c.usage[JobId(3)].ran(c.now) > 0
    assert c.jobs[JobId(1)].placement.allocation == gpu_set("s0:0"), "those that were there stay as they are"


def test_it_shares_no_node_that_is_full() -> None:
    c = gandiva(2, max_jobs_per_gpu=1, jobs=[job(1), job(2), job(3, 2, submit=1.0)])
    c.run(until=20 * SLICE)
    assert c.running() == {1, 2}
    assert c.reasons[JobId(3)] == "no node has 2 free GPUs, and those that it could share are full"
