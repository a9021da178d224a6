# SPDX-License-Identifier: GPL-2.0-or-later
"""Examples of the papers and by hand (SPEC 5.2, 5.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.policies.mechanisms.gang_lanes import GangLanes
from controller.policies.mechanisms.in_order import InOrder
from controller.policies.mechanisms.slice_lanes import SliceLanes
from controller.policies.orders.attained import Continuous, QueueRules, Queues
from controller.policies.orders.fair_share import FairShare
from controller.policies.orders.gittins import Gittins, IndexRules
from controller.policies.orders.order import Order
from controller.policies.orders.remaining import Remaining
from controller.policies.placement.consolidation import Consolidation
from tests.unit.policies.ideal import Ideal, Policy, Timeline, cluster, make_job, make_node

FIGURE_7 = [make_job(1, 2, 2), make_job(2, 1, 8), make_job(3, 2, 6)]


def gangs(order: Callable[[], Order]) -> Callable[[], Policy]:
    return lambda: InOrder(order(), GangLanes(Consolidation()))


def slices() -> Policy:
    return InOrder(FairShare(60.0), SliceLanes(slice_seconds=60.0))


def units(timeline: Timeline) -> list[int]:
    end = int(max(timeline.ends.values()))
    return [next(n for n, runs in timeline.runs.items() for a, b in runs if a <= t < b) for t in range(end)]


def test_t1() -> None:
    timeline = Ideal(gangs(lambda: Remaining(service=True)), cluster(1, 2), FIGURE_7).run()
    assert timeline.runs == {1: [(0, 2)], 2: [(2, 10)], 3: [(10, 16)]}


def test_t2() -> None:
    timeline = Ideal(gangs(lambda: Continuous(every_seconds=1.0)), cluster(1, 2), FIGURE_7).run()
    assert units(timeline) == [1, 2, 3, 2, 1, 2, 3, 2, 2, 3, 2, 2, 3, 2, 3, 3]


@pytest.mark.parametrize(
    ("knob", "ends", "preemptions"), [(0.0, {1: 9, 2: 5, 3: 11}, 2), (1.0, {1: 9, 2: 7, 3: 11}, 5)]
)
def test_t10_t11(knob: float, ends: dict[int, float], preemptions: int) -> None:
    jobs = [make_job(1, 2, 5), make_job(2, 1, 3, submit=1), make_job(3, 1, 6, submit=2)]
    rules = QueueRules(limits=(4.0,), knob=knob)
    timeline = Ideal(gangs(lambda: Queues(rules)), cluster(1, 2), jobs).run()
    assert timeline.ends == ends
    assert timeline.preemptions == preemptions


def test_t6() -> None:
    index = IndexRules(quantum="sup", learn=False, samples_needed=1, every_seconds=1.0)
    samples = [4.0] * 8 + [8.0, 12.0]
    make = gangs(lambda: Gittins(QueueRules(limits=()), index, samples))
    timeline = Ideal(make, cluster(1, 2), FIGURE_7).run()
    assert units(timeline) == [1, 1, 2, 2, 2, 2, 3, 3, 2, 2, 2, 2, 3, 3, 3, 3]


def ran(ideal: Ideal, slices: int) -> list[str]:
    ideal.run(until=slices * 60.0)
    names = "ABCDEFGH"
    by_time = dict(ideal.timeline.running)
    return ["".join(names[i - 1] for i in sorted(by_time[t])) for t in sorted(by_time) if t % 60 == 0]


def test_g6() -> None:
    ideal = Ideal(slices, [make_node("s0", 4)], [make_job(i + 1, 1, 1e6) for i in range(6)], bound=True)
    assert ran(ideal, 6) == ["ABCD", "ABEF", "CDEF"] * 2


def test_g7() -> None:
    jobs = [make_job(1, 1, 1e6, weight=2.0), make_job(2, 1, 1e6), make_job(3, 1, 1e6)]
    assert ran(Ideal(slices, [make_node("s0", 1)], jobs, bound=True), 8) == list("ABCAABCA")


def test_g8() -> None:
    ideal = Ideal(slices, [make_node("s0", 4)], [make_job(i + 1, 2, 1e6) for i in range(3)], bound=True)
    assert ran(ideal, 3) == ["AB", "AC", "BC"]


def test_g10() -> None:
    sizes = [1, 1, 2, 4, 1, 1, 1, 2, 1, 1, 1, 1, 2, 2, 4, 8]
    jobs = [make_job(i + 1, g, 1e6, submit=float(i)) for i, g in enumerate(sizes)]
    ideal = Ideal(slices, [make_node(f"s{i}", 4) for i in range(4)], jobs, bound=True)
    ideal.run(until=16.5)
    servers = [",".join(sorted({g.node for g in ideal.jobs[i].allocation})) for i in sorted(ideal.jobs)]
    assert servers == [
        "s0",
        "s0",
        "s1",
        "s2",
        "s0",
        "s0",
        "s3",
        "s1",
        "s3",
        "s3",
        "s3",
        "s0",
        "s1",
        "s1",
        "s2",
        "",
    ]
