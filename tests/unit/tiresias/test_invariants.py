# SPDX-License-Identifier: GPL-2.0-or-later
"""What must hold for any jobs (SPEC 5.1). `Ideal` itself checks after every plan that gangs are whole and
alone on their GPUs, and that a plan made from what changed equals one made from scratch."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from controller.model import Job, Plan, Profile, Request, Snapshot
from controller.policies.base import Policy
from controller.policies.baselines import FifoSkip, Sjf, Srsf, Srtf
from controller.policies.fifo import Fifo
from controller.policies.tiresias import (
    TiresiasGittins,
    TiresiasGittinsSettings,
    TiresiasLas,
    TiresiasLasSettings,
)
from controller.policies.tiresias.gittins import Distribution
from tests.unit.tiresias.harness import Ideal, cluster, job

LIMITS = [40.0, 150.0, 600.0]


def jobs_of(seed: int, count: int = 14, sizes: tuple[int, ...] = (1, 1, 2, 4, 8)) -> list[Job]:
    rng = random.Random(seed)
    now, made = 0.0, []
    for number in range(1, count + 1):
        made.append(job(number, rng.choice(sizes), float(rng.randint(1, 120)), submit=now))
        now += rng.choice([0, 0, 1, 7, 30])
    return made


def las(**changes: object) -> Callable[[], Policy]:
    made = TiresiasLasSettings(queue_limits=LIMITS, **changes)  # type: ignore[arg-type]
    return lambda: TiresiasLas(made)


POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "fifo-skip": FifoSkip,
    "sjf": Sjf,
    "srtf": Srtf,
    "srsf": Srsf,
    "las": las(promote_knob_ratio=2.0),
    "las by entry": las(order="queue-entry", promote_knob_ratio=0.0),
    "las late": las(order="queue-entry", demotion="at-events"),
    "las strict": las(backfill=False),
    "las undiscretised": las(discretised=False, interval_seconds=10.0),
    "gittins": lambda: TiresiasGittins(
        TiresiasGittinsSettings(queue_limits=LIMITS, interval_seconds=10.0, samples_needed=3)
    ),
}
Shared = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@Shared
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(POLICIES)))
def test_every_job_ends_with_exactly_its_time_on_gpus(seed: int, name: str) -> None:
    jobs = jobs_of(seed)
    timeline = Ideal(POLICIES[name], cluster(2, 4), jobs).run()
    assert timeline.ends.keys() == {int(j.id) for j in jobs}
    for each in jobs:
        ran = sum(end - begin for begin, end in timeline.runs[int(each.id)])
        assert ran == pytest.approx(each.duration_seconds, abs=1e-6)
    gpu_seconds = sum((j.duration_seconds or 0) * j.gpus for j in jobs)
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
    seen: dict[str, tuple[int, int]] = {}

    def watch(snapshot: Snapshot, plan: Plan) -> None:
        for number, entry in plan.state["jobs"].items():
            queue, forgiven, promotions = entry[0], entry[4], entry[7]
            known = snapshot.jobs[type(next(iter(snapshot.jobs)))(int(number))]
            service = known.gpu_seconds_at(snapshot.time) - forgiven
            low = LIMITS[queue - 1] if queue else 0.0
            high = LIMITS[queue] if queue < len(LIMITS) else float("inf")
            assert low - 1e-5 <= service < high + 1e-5, (number, queue, service)
            before_queue, before_promotions = seen.get(number, (0, 0))
            if promotions > before_promotions:
                assert knob > 0 and queue == 0 and service == pytest.approx(0, abs=1e-6)
            else:
                assert queue >= before_queue
            seen[number] = (queue, promotions)

    ideal.on_plan = watch
    ideal.run()


@Shared
@given(seed=st.integers(0, 10**6))
def test_many_queues_come_to_least_attained_service(seed: int) -> None:
    """MLFQ with ever more queues orders as 2D-LAS does: compared after each unit of time."""
    jobs = [
        job(int(j.id), j.gpus, float(int(j.duration_seconds or 1) % 9 + 1))
        for j in jobs_of(seed, 5, (1, 2, 4))
    ]
    whole = TiresiasLasSettings(discretised=False, interval_seconds=1.0)
    fine = TiresiasLasSettings(
        queue_limits=[float(i) for i in range(1, 33)], promote_knob_ratio=0.0, order="start-time"
    )
    exact = Ideal(lambda: TiresiasLas(whole), cluster(1, 4), jobs).run()
    queues = Ideal(lambda: TiresiasLas(fine), cluster(1, 4), jobs).run()
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


@given(
    sizes=st.lists(st.floats(1, 1e6), min_size=1, max_size=50),
    attained=st.lists(st.floats(0, 1e6), min_size=200, max_size=210),
    quantum=st.one_of(st.floats(0.1, 1e6), st.just(float("inf"))),
)
@settings(deadline=None, max_examples=30)
def test_many_indices_at_once_are_the_single_ones(
    sizes: list[float], attained: list[float], quantum: float
) -> None:
    distribution = Distribution(sizes)
    assert distribution.indices(attained, quantum) == [distribution.index(a, quantum) for a in attained]


@Shared
@given(seed=st.integers(0, 10**6))
def test_skewed_gangs_are_on_as_few_nodes_as_possible(seed: int) -> None:
    skewed = Profile(state_bytes=1000, largest_tensor_bytes=700)
    jobs = []
    for each in jobs_of(seed, sizes=(1, 2, 3, 4)):
        profile = skewed if int(each.id) % 2 else Profile()
        jobs.append(
            job(int(each.id), each.gpus, each.duration_seconds or 1, submit=each.submit_time, profile=profile)
        )
    ideal = Ideal(las(consolidate_wait_seconds=0.0), cluster(3, 4), jobs)

    def watch(_snapshot: Snapshot, plan: Plan) -> None:
        for number, assignment in plan.assignments.items():
            if assignment.run and int(number) % 2:
                assert len({gpu.node for gpu in assignment.gpus}) == 1

    ideal.on_plan = watch
    ideal.run()


def test_a_user_who_names_nodes_gets_them() -> None:
    wanted = job(1, 4, 10)
    spread = Job(wanted.id, "alice", Request(gpus=4, nodes=2), wanted.phase, 0.0, duration_seconds=10.0)
    ideal = Ideal(las(), cluster(2, 4), [spread])
    found: list[int] = []
    ideal.on_plan = lambda _s, plan: found.extend(
        len({gpu.node for gpu in a.gpus}) for a in plan.assignments.values() if a.run
    )
    ideal.run()
    assert found and set(found) == {2}
