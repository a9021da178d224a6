# SPDX-License-Identifier: GPL-2.0-or-later
"""The Gandiva policy against the test vectors of the specification (section 5.2) and its invariants."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import JobId, Phase
from controller.policies.gandiva import Gandiva, GandivaSettings, algorithm1
from controller.policies.servers import build_servers
from tests.unit.policies.harness import GIB, IdealCluster, gpu_set, make_job, make_node


def cluster(
    *gpus: int, slice_seconds: float = 60.0, max_jobs_per_gpu: int = 8, first: int = 0
) -> IdealCluster:
    policy = Gandiva(GandivaSettings(slice_seconds=slice_seconds, max_jobs_per_gpu=max_jobs_per_gpu))
    return IdealCluster(policy, {f"s{i + first}": make_node(f"s{i + first}", n) for i, n in enumerate(gpus)})


def letters(history: list[set[int]]) -> list[str]:
    return ["".join(chr(ord("A") + n - 1) for n in sorted(jobs)) for jobs in history]


def test_g6_six_one_gpu_jobs_on_four_gpus_each_run_four_of_six_slices() -> None:
    c = cluster(4)
    c.submit(*(make_job(n) for n in range(1, 7)))
    history = letters(c.run_slices(6))
    assert history == ["ABCD", "ABEF", "CDEF"] * 2


def test_g7_weights_2_1_1_on_one_gpu() -> None:
    c = cluster(1)
    c.submit(make_job(1, weight=2), make_job(2), make_job(3))
    assert letters(c.run_slices(8)) == list("ABCA") * 2


def test_g8_three_two_gpu_jobs_on_four_gpus() -> None:
    c = cluster(4)
    c.submit(*(make_job(n, 2) for n in (1, 2, 3)))
    assert letters(c.run_slices(6)) == ["AB", "AC", "BC"] * 2


def test_g9_a_two_gpu_job_and_two_one_gpu_jobs_on_two_gpus() -> None:
    c = cluster(2, max_jobs_per_gpu=4)
    # Affinity keeps sizes apart on arrival, so the mix is set up as it would be after stage 3.
    c.submit(make_job(1, 2), make_job(2), make_job(3))
    everywhere = gpu_set("s0:0", "s0:1")
    for number, running_on in ((1, everywhere), (2, gpu_set("s0:0")), (3, gpu_set("s0:1"))):
        c.jobs[JobId(number)] = replace(
            c.jobs[JobId(number)], phase=Phase.SUSPENDED, binding=everywhere, running_on=running_on
        )
    assert letters(c.run_slices(4)) == ["A", "BC", "A", "BC"]


def test_g10_algorithm_1_stage_order() -> None:
    c = cluster(4, 4, 4, 4)
    sizes = [1, 1, 2, 4, 1, 1, 1, 2, 1, 1, 1, 1, 2, 2, 4, 8]
    expected = ["s0", "s0", "s1", "s2", "s0", "s0", "s3", "s1", "s3", "s3", "s3"]
    expected += ["s0", "s1", "s1", "s2", "QUEUE"]  # over-subscription, then the queue
    seen = []
    for number, size in enumerate(sizes, start=1):
        c.submit(make_job(number, size, submit=float(number), nodes=None if size == 8 else 1))
        c.step()
        seen.append(where(c, number))
    assert seen == expected
    assert allocated(c) == {"s0": 5, "s1": 8, "s2": 8, "s3": 4}


def where(c: IdealCluster, number: int) -> str:
    """The server a job was assigned to, seated or started."""
    job = c.jobs[JobId(number)]
    if job.binding:
        return next(iter(job.binding)).node
    seat = c.state["seats"].get(str(number))
    return str(seat[0][0]) if seat else "QUEUE"


def allocated(c: IdealCluster) -> dict[str, int]:
    totals = {name: server.allocated for name, server in build_servers(c.snapshot()).items()}
    for number, seat in c.state["seats"].items():
        for node in seat[0]:
            totals[node] += c.jobs[JobId(int(number))].gpus // len(seat[0])
    return totals


def test_a_newcomer_on_free_gpus_is_bound_to_exactly_these_and_a_sharing_one_floats() -> None:
    c = cluster(2)
    c.submit(make_job(1), make_job(2), make_job(3))
    c.run_slices(3)
    assert [len(c.jobs[JobId(n)].binding) for n in (1, 2, 3)] == [1, 1, 2]


def test_nothing_is_suspended_while_all_jobs_fit() -> None:
    c = cluster(4)
    c.submit(make_job(1, 2), make_job(2), make_job(3))
    for _ in range(5):
        plan = c.step()
        assert all(a.run for a in plan.assignments.values())
        c.advance(60)


def test_higher_class_is_never_suspended_for_a_lower_one_and_takes_over_at_once() -> None:
    c = cluster(1)
    c.submit(make_job(1))
    c.step()
    c.advance(5)
    c.submit(make_job(2, priority_class=1, submit=5))
    c.step()
    assert c.running() == {2}
    assert c.run_slices(5) == [{2}] * 5


def test_a_job_that_could_not_be_suspended_keeps_its_gpu() -> None:
    c = cluster(1)
    c.submit(make_job(1), make_job(2))
    c.step()
    c.jobs[JobId(1)] = replace(c.jobs[JobId(1)], suspendable=False)
    c.advance(200)
    assert c.run_slices(4) == [{1}] * 4


def test_a_floating_job_that_could_not_be_suspended_is_not_moved_either() -> None:
    c = cluster(2)
    c.submit(make_job(1), make_job(2))
    c.step()
    c.advance(60)
    c.submit(make_job(3, submit=60))
    c.step()
    c.advance(60)
    while 3 not in c.running():
        c.step()
        c.advance(60)
    here = c.jobs[JobId(3)].running_on
    c.jobs[JobId(3)] = replace(c.jobs[JobId(3)], suspendable=False)
    for _ in range(4):
        c.step()
        assert c.jobs[JobId(3)].running_on == here
        assert len(c.running()) == 2
        c.advance(60)


def test_a_job_that_cannot_move_waits_for_the_gpu_it_was_on() -> None:
    c = cluster(2)
    c.submit(*(make_job(n, movable=False) for n in (1, 2, 3)))
    history = c.run_slices(8)
    homes: dict[int, set[object]] = {}
    c2 = cluster(2)
    c2.submit(*(make_job(n, movable=False) for n in (1, 2, 3)))
    for _ in range(8):
        c2.step()
        for job in c2.jobs.values():
            if job.phase is Phase.RUNNING:
                homes.setdefault(int(job.id), set()).add(job.running_on)
        c2.advance(60)
    assert all(len(places) == 1 for places in homes.values())
    assert all(any(n in ran for ran in history) for n in (1, 2, 3))


def test_jobs_in_transition_are_left_alone() -> None:
    c = cluster(1)
    c.submit(make_job(1), make_job(2))
    c.step()
    c.advance(100)
    snapshot = replace(c.snapshot(), busy=frozenset({JobId(1)}))
    plan = c.policy.plan(snapshot, c.state)
    assert plan.assignments[JobId(1)].run
    assert JobId(2) not in plan.assignments


def test_gang_over_two_servers_shares_as_a_whole() -> None:
    c = cluster(4, 4)
    c.submit(make_job(1, 8, nodes=2), make_job(2, 8, nodes=2))
    history = c.run_slices(4)
    assert history == [{1}, {2}, {1}, {2}]


def test_an_impossible_request_waits_with_a_reason() -> None:
    c = cluster(4)
    c.submit(make_job(1, 8))
    plan = c.step()
    assert not plan.assignments
    assert "only 4 usable GPUs" in plan.reasons[JobId(1)]


def test_more_memory_than_any_node_has_is_told_from_memory_that_others_have_now() -> None:
    c = cluster(4)
    c.nodes["s0"] = make_node("s0", 4, memory_bytes=64 * GIB, memory_free_bytes=16 * GIB)
    c.submit(make_job(1, memory_per_node_bytes=999 * GIB))
    c.submit(make_job(2, memory_per_node_bytes=32 * GIB))
    reasons = c.step().reasons
    assert reasons[JobId(1)] == "no server can take its GPU: only 64 GiB of host memory"
    assert reasons[JobId(2)] == "no server can take its GPU: not enough free host memory"


def test_a_departure_lets_a_waiting_job_start_elsewhere() -> None:
    c = cluster(1, 1)
    c.submit(make_job(1), make_job(2), make_job(3))
    c.step()
    assert c.running() == {1, 2}
    c.end(2)
    c.step()
    assert c.running() == {1, 3}
    assert c.jobs[JobId(3)].binding == gpu_set("s1:0")


def test_full_servers_queue_and_the_depth_is_respected() -> None:
    c = cluster(1, max_jobs_per_gpu=2)
    c.submit(make_job(1), make_job(2), make_job(3))
    plan = c.step()
    assert "full" in plan.reasons[JobId(3)]
    c.run_slices(4)
    assert c.jobs[JobId(3)].phase is Phase.QUEUED


def test_unhealthy_ordinary_and_unknown_gpus_are_not_used() -> None:
    c = cluster(4)
    gpus = c.nodes["s0"].gpus
    c.nodes["s0"] = replace(
        c.nodes["s0"],
        gpus=(
            replace(gpus[0], ordinary_job=JobId(99)),
            replace(gpus[1], healthy=False),
            replace(gpus[2], memory_used_bytes=None),
            gpus[3],
        ),
    )
    c.submit(make_job(1))
    c.step()
    assert c.jobs[JobId(1)].running_on == gpu_set("s0:3")


def test_state_is_json_and_foreign_state_is_ignored() -> None:
    c = cluster(1)
    c.submit(make_job(1), make_job(2))
    c.step()
    saved = json.loads(json.dumps(dict(c.state)))
    assert saved == dict(c.state) and saved["seats"]
    again = c.policy.plan(c.snapshot(), saved)
    assert again.assignments == c.policy.plan(c.snapshot(), c.state).assignments
    c.policy.plan(c.snapshot(), {"other": 1})


gangs = st.lists(st.sampled_from([1, 1, 1, 2, 2, 4]), min_size=1, max_size=14)


@settings(max_examples=150, deadline=None)
@given(
    sizes=gangs,
    seed=st.integers(0, 2**16),
    weights=st.lists(st.sampled_from([0.5, 1, 2, 4]), min_size=14, max_size=14),
)
def test_invariants_under_random_arrivals_and_departures(
    sizes: list[int], seed: int, weights: list[float]
) -> None:
    import random

    rng = random.Random(seed)
    c = cluster(4, 4)
    for number, size in enumerate(sizes, start=1):
        c.submit(make_job(number, size, submit=c.now, weight=weights[number - 1], movable=rng.random() < 0.7))
        c.step()
        c.advance(rng.choice([1.0, 30.0, 60.0, 61.0]))
        if rng.random() < 0.3:
            c.end(rng.choice([int(j) for j in c.jobs]))
    for _ in range(4):
        before = {j.id: j for j in c.jobs.values()}
        plan = c.step()
        total = {name: server.allocated for name, server in build_servers(c.snapshot()).items()}
        for job_id, assignment in plan.assignments.items():
            node = next(iter(assignment.binding)).node
            if not assignment.run and before[job_id].movable and all(j.movable for j in before.values()):
                assert total[node] > 4, "suspended although all jobs of the server fit"
            if before[job_id].binding:
                assert assignment.binding == before[job_id].binding, "a binding changed without a migration"
        c.advance(60)


@pytest.mark.parametrize("jobs,gpus", [(5, 2), (6, 4), (3, 1), (9, 4)])
def test_equal_jobs_differ_by_at_most_one_slice(jobs: int, gpus: int) -> None:
    c = cluster(gpus, max_jobs_per_gpu=16)
    c.submit(*(make_job(n) for n in range(1, jobs + 1)))
    c.run_slices(5 * jobs)
    ran = [job.run_seconds / 60 for job in c.jobs.values()]
    assert max(ran) - min(ran) <= 1 + 1e-9
    assert sum(ran) == pytest.approx(5 * jobs * min(jobs, gpus))


def test_a_plan_leaves_its_input_as_it_was() -> None:
    c = cluster(2)
    c.submit(*(make_job(n) for n in range(1, 5)))
    c.step()
    c.advance(61)
    before = json.dumps(dict(c.state))
    c.policy.plan(c.snapshot(), c.state)
    assert json.dumps(dict(c.state)) == before


def test_a_long_queue_costs_one_search_per_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0
    original = algorithm1.get_nodes

    def counting(*args: object) -> object:
        nonlocal searches
        searches += 1
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("controller.policies.gandiva.policy.get_nodes", counting)
    c = cluster(1, max_jobs_per_gpu=1)
    c.submit(*(make_job(n) for n in range(1, 500)))
    plan = c.step()
    assert searches <= 3
    assert len(plan.reasons) == 499


def take_for_ordinary(c: IdealCluster, *ordinals: int) -> None:
    """Ordinary jobs have just these GPUs of s0."""
    node = c.nodes["s0"]
    gpus = tuple(
        replace(gpu, ordinary_job=JobId(9000 + gpu.id.ordinal) if gpu.id.ordinal in ordinals else None)
        for gpu in node.gpus
    )
    c.nodes["s0"] = replace(node, gpus=gpus)


def test_a_floating_job_stays_within_its_binding_when_an_ordinary_job_ends_beside_it() -> None:
    c = cluster(4)
    take_for_ordinary(c, 0)
    c.submit(*(make_job(n) for n in range(1, 6)))
    c.run_slices(3)
    assert c.jobs[JobId(5)].binding == gpu_set("s0:1", "s0:2", "s0:3"), "what was usable when it began"
    take_for_ordinary(c)
    history = c.run_slices(10)
    # (That they run on GPUs of their binding only is the ideal cluster's own check.)
    assert {len(jobs) for jobs in history} == {3}
    ran = [sum(number in jobs for jobs in history) for number in range(1, 6)]
    assert max(ran) - min(ran) <= 1, ran
    c.submit(make_job(6))
    assert all(6 in jobs for jobs in c.run_slices(5)), "the GPU that became free is for those who can have it"


def test_jobs_that_may_use_different_parts_of_a_server_use_all_of_it() -> None:
    c = cluster(4)
    take_for_ordinary(c, 0, 1)
    c.submit(*(make_job(n) for n in (1, 2, 3)))
    c.run_slices(2)
    take_for_ordinary(c)
    c.submit(*(make_job(n) for n in (4, 5, 6, 7)))
    history = c.run_slices(14)
    assert {len(jobs) for jobs in history} == {4}, "two of 1, 2, 3 beside two others, or none idle"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_ordinary_jobs_come_and_go_beside_jobs_that_share(data: st.DataObject) -> None:
    c = cluster(4, max_jobs_per_gpu=3)
    number, idle_for = 0, 0
    for _ in range(data.draw(st.integers(3, 14))):
        bound = {gpu.ordinal for job in c.jobs.values() for gpu in job.binding}
        may = sorted({0, 1, 2, 3} - bound)
        # Slurm gives whole GPUs to ordinary jobs where no shard is in use.
        take_for_ordinary(c, *(data.draw(st.lists(st.sampled_from(may), unique=True)) if may else []))
        for _ in range(data.draw(st.integers(0, 3))):
            number += 1
            c.submit(make_job(number, data.draw(st.integers(1, 2))))
        if data.draw(st.booleans()) and c.jobs:
            c.end(int(data.draw(st.sampled_from(sorted(c.jobs)))))
        c.run_slices(data.draw(st.integers(1, 3)))
        idle_for = 0 if c.running() or not any(job.binding for job in c.jobs.values()) else idle_for + 1
        assert idle_for == 0, "somebody who is bound can always run"
