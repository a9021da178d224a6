# SPDX-License-Identifier: GPL-2.0-or-later
"""What must hold for any jobs (SPEC 5.1). `Ideal` itself checks after every plan that gangs are whole and
alone on their GPUs, and that a plan made from what changed equals one made from nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.model import Job, JobId, Plan, Profile, Snapshot
from controller.policies.orders.gittins_index import Distribution
from tests.unit.draws import draws
from tests.unit.policies.ideal import Ideal, cluster, gpu_set, make_job, make_node, running
from tests.unit.policies.presets import LIMITS, POLICIES, las, preset

Shared = settings(max_examples=draws(12, 250))


def jobs_of(seed: int, count: int = 14, sizes: tuple[int, ...] = (1, 1, 2, 4, 8)) -> list[Job]:
    rng = random.Random(seed)
    now, made = 0.0, []
    for number in range(1, count + 1):
        made.append(make_job(number, rng.choice(sizes), float(rng.randint(1, 120)), submit=now))
        now += rng.choice([0, 0, 1, 7, 30])
    return made


@Shared
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(POLICIES)))
def test_every_job_ends_with_exactly_its_time_on_gpus(seed: int, name: str) -> None:
    jobs = jobs_of(seed)
    timeline = Ideal(POLICIES[name], cluster(2, 4), jobs).run()
    assert timeline.ends.keys() == {int(j.id) for j in jobs}
    for each in jobs:
        ran = sum(end - begin for begin, end in timeline.runs[int(each.id)])
        assert ran == pytest.approx(each.request.duration_seconds, abs=1e-6)
    gpu_seconds = sum((j.request.duration_seconds or 0) * j.gpus for j in jobs)
    first = min(begin for runs in timeline.runs.values() for begin, _ in runs)
    assert gpu_seconds <= 8 * (max(timeline.ends.values()) - first) + 1e-6


@Shared
@given(
    seed=st.integers(0, 10**6),
    knob=st.sampled_from([0.0, 0.5, 2.0]),
    order=st.sampled_from(["start-time", "queue-entry"]),
)
def test_queues_only_grow_but_by_promotion_and_hold_their_service(seed: int, knob: float, order: str) -> None:
    ideal = Ideal(las(promote_knob_ratio=knob, order=order), cluster(2, 4), jobs_of(seed))
    seen: dict[JobId, tuple[int, float]] = {}

    def watch(snapshot: Snapshot, plan: Plan) -> None:
        notes = {**ideal.notes, **plan.memory.jobs}
        for job_id in snapshot.jobs:
            note = notes[job_id]
            assert note is not None
            queue, forgiven = note[0], note[5]
            service = snapshot.usage_of(job_id).served(snapshot.time) - forgiven
            low = LIMITS[queue - 1] if queue else 0.0
            high = LIMITS[queue] if queue < len(LIMITS) else float("inf")
            assert low - 1e-5 <= service < high + 1e-5, (job_id, queue, service)
            before_queue, before_forgiven = seen.get(job_id, (0, 0.0))
            if forgiven != before_forgiven:
                assert knob > 0 and queue == 0 and service == pytest.approx(0, abs=1e-6)
            else:
                assert queue >= before_queue
            seen[job_id] = (queue, forgiven)

    ideal.on_plan = watch
    ideal.run()


@Shared
@given(seed=st.integers(0, 10**6))
def test_many_queues_come_to_least_attained_service(seed: int) -> None:
    """MLFQ with ever more queues orders as 2D-LAS does: compared after each unit of time."""
    jobs = [
        make_job(int(j.id), j.gpus, float(int(j.request.duration_seconds or 1) % 9 + 1))
        for j in jobs_of(seed, 5, (1, 2, 4))
    ]
    whole = las(order="least-service", interval_seconds=1.0)
    fine = las(queue_limits=[float(i) for i in range(1, 33)], promote_knob_ratio=0.0)
    exact = Ideal(whole, cluster(1, 4), jobs).run()
    queues = Ideal(fine, cluster(1, 4), jobs).run()
    spread = max(j.gpus for j in jobs) * 2
    total = sum(exact.jct(jobs)), sum(queues.jct(jobs))
    assert abs(total[0] - total[1]) <= spread * len(jobs)


@given(
    sizes=st.lists(st.floats(1, 1e6), min_size=1, max_size=60),
    attained=st.floats(0, 1e6),
    quantum=st.floats(0.1, 1e6),
)
@example(sizes=[592641.32, 1e6], attained=999999.9999999999, quantum=1.0)
def test_no_quantum_beats_the_supremum(sizes: list[float], attained: float, quantum: float) -> None:
    distribution = Distribution(sizes)
    assert distribution.index(attained, quantum) <= distribution.supremum(attained) * (1 + 1e-6) + 1e-12


@given(size=st.floats(10, 1e5), part=st.floats(0, 0.99))
def test_equal_sizes_give_one_over_what_is_left(size: float, part: float) -> None:
    attained = size * part
    assert Distribution([size] * 7).supremum(attained) == pytest.approx(1 / (size - attained), rel=1e-6)


def test_exponential_sizes_give_a_constant_index() -> None:
    rng = random.Random(1)
    distribution = Distribution([rng.expovariate(1 / 1000) for _ in range(200_000)])
    for attained in (0.0, 500.0, 1500.0, 3000.0):
        assert distribution.index(attained, 500.0) == pytest.approx(1 / 1000, rel=0.03)


@Shared
@given(seed=st.integers(0, 10**6))
def test_skewed_gangs_are_on_as_few_nodes_as_possible(seed: int) -> None:
    skewed = Profile(state_bytes=1000, largest_tensor_bytes=700)
    ideal = Ideal(las(consolidate_wait_seconds=0.0), cluster(3, 4), jobs_of(seed, sizes=(1, 2, 3, 4)))
    ideal.profiles = {job.id: skewed for job in ideal.arrivals if job.id % 2}

    def watch(_snapshot: Snapshot, plan: Plan) -> None:
        for job_id, target in plan.targets.items():
            if job_id % 2:
                assert len({gpu.node for gpu in target.placement.gpus}) <= 1

    ideal.on_plan = watch
    ideal.run()


MIXED = [
    *(make_node(f"v{number}", 2, "v100") for number in (1, 2, 3)),
    *(make_node(f"p{number}", 2, "p100") for number in (1, 2)),
    make_node("k1", 4, "k80"),
]
"""A gang of six has a place on one model, and one of four on three: on one of them on a single node."""


@Shared
@given(seed=st.integers(0, 10**6), name=st.sampled_from(["gandiva", *sorted(POLICIES)]))
def test_a_gang_is_on_nodes_of_one_gpu_model(seed: int, name: str) -> None:
    """`Ideal` looks at each placement: Slurm's GRES name the model."""
    jobs = [
        replace(job, request=replace(job.request, nodes=3)) if job.gpus == 6 else job
        for job in jobs_of(seed, 12, (1, 2, 4, 6))
    ]
    make = preset("gandiva") if name == "gandiva" else POLICIES[name]
    timeline = Ideal(make, MIXED, jobs, bound=name == "gandiva").run(until=100_000.0)
    assert timeline.ends.keys() == {int(job.id) for job in jobs}


@pytest.mark.parametrize("name", ["gandiva", *POLICIES])
@pytest.mark.parametrize("free", [("v1", "p1"), ("v1",), ()])
def test_a_gang_does_not_go_onto_the_free_gpus_of_two_models(name: str, free: tuple[str, ...]) -> None:
    """Two nodes of each of two models, one of each with free GPUs: the gang takes turns with what is on two
    of one model, or waits for it."""
    nodes = [make_node(f"{model[0]}{number}", 2, model) for model in ("v100", "p100") for number in (1, 2)]
    make = preset("gandiva") if name == "gandiva" else POLICIES[name]
    small = [
        running(make_job(number, 1, 600.0), gpu_set(f"{node.name}:{ordinal}"))
        for number, (node, ordinal) in enumerate(((node, i) for node in nodes for i in (0, 1)), start=1)
        if node.name not in free
    ]
    ideal = Ideal(make, nodes, [], bound=name == "gandiva")
    ideal.add(*small)
    for job in small:
        ideal.ends[job.id] = 600.0
    gang = make_job(90, 4, 60.0, nodes=2)
    ideal.arrivals = [gang]
    ideal.run(until=5_000.0)
    assert 90 in ideal.timeline.ends


@pytest.mark.parametrize("name", ["gandiva", *POLICIES])
def test_a_gang_wider_than_each_model_is_told_so(name: str) -> None:
    nodes = [make_node("v1", 4, "v100"), make_node("p1", 4, "p100")]
    make = preset("gandiva") if name == "gandiva" else POLICIES[name]
    ideal = Ideal(make, nodes, [make_job(1, 8, 60.0), make_job(2, 5, 60.0), make_job(3, 4, 60.0, nodes=2)])
    ideal.run(until=50.0)
    where = "in equal parts on nodes of one GPU model, fit nowhere: p100 has 1 x 4; v100 has 1 x 4"
    assert ideal.reasons[JobId(1)] == f"8 GPUs, {where}"
    assert ideal.reasons[JobId(2)] == f"5 GPUs, {where}"
    assert ideal.reasons[JobId(3)] == f"4 GPUs on 2 nodes, {where}"


def test_a_user_who_names_nodes_gets_them() -> None:
    job = make_job(1, 4, 10)
    spread = replace(job, request=replace(job.request, nodes=2))
    ideal = Ideal(las(), cluster(2, 4), [spread])
    found: list[int] = []
    ideal.on_plan = lambda _snapshot, plan: found.extend(
        len({gpu.node for gpu in target.placement.gpus}) for target in plan.targets.values()
    )
    ideal.run()
    assert found == [2]
