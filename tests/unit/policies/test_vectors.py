# SPDX-License-Identifier: GPL-2.0-or-later
"""Examples of the Tiresias paper and by hand: figure 7, Gittins, queues, promotion, skew (SPEC 5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from controller.model import Job, JobId, Plan, Profile, Snapshot, Usage
from controller.policies.orders.gittins_index import Distribution, SimulatorTable
from controller.policies.orders.queues import Queues
from controller.policies.placement.consolidation import fit_pack_limit, skew_fraction
from controller.policies.protocol import Policy
from controller.policies.settings import QueueSettings
from tests.unit.policies.ideal import Ideal, Timeline, cluster, make_job
from tests.unit.policies.presets import preset

FIGURE_7 = [make_job(1, 2, 2), make_job(2, 1, 8), make_job(3, 2, 6)]
MIB = 2**20


def run(make: Callable[[], Policy], jobs: list[Job], nodes: int = 1, gpus: int = 2) -> Timeline:
    return Ideal(make, cluster(nodes, gpus), jobs).run()


def units(timeline: Timeline) -> list[int]:
    """Which job runs in each unit of time; the jobs of figure 7 never run together."""
    end = int(max(timeline.ends.values()))
    return [next(n for n, runs in timeline.runs.items() for a, b in runs if a <= t < b) for t in range(end)]


def gittins(tmp_path: Path, sizes: Sequence[float], **settings: Any) -> Callable[[], Policy]:
    path = tmp_path / "sizes.csv"
    path.write_text("duration\n" + "".join(f"{size}\n" for size in sizes))
    return preset(
        "tiresias-gittins",
        distribution=str(path),
        samples_kept=0,
        samples_needed=1,
        queue_limits=[],
        interval_seconds=1.0,
        **{"preemption_seconds": 0.0, **settings},
    )


def test_t1_shortest_remaining_service() -> None:
    timeline = run(preset("srsf"), FIGURE_7)
    assert timeline.runs == {1: [(0, 2)], 2: [(2, 10)], 3: [(10, 16)]}
    assert timeline.jct(FIGURE_7) == [2, 10, 16]


def test_t2_two_dimensional_las_per_unit_of_time() -> None:
    timeline = run(preset("tiresias-las", order="least-service", interval_seconds=1.0), FIGURE_7)
    assert units(timeline) == [1, 2, 3, 2, 1, 2, 3, 2, 2, 3, 2, 2, 3, 2, 3, 3]
    assert timeline.jct(FIGURE_7) == [5, 14, 16]


def test_t3_textbook_supremum_for_three_equally_likely_sizes() -> None:
    distribution = Distribution([4, 8, 12])
    expected = [1 / 8, 1 / 7, 1 / 6, 1 / 3, 1 / 6, 1 / 5, 1 / 4, 1 / 2, 1 / 4, 1 / 3, 1 / 2, 1]
    assert [distribution.supremum(a) for a in range(12)] == pytest.approx(expected)
    assert distribution.supremum(12) == 0


def test_t4_fixed_quantum() -> None:
    distribution = Distribution([4, 8, 12])
    assert [distribution.index(a, 4) for a in (0, 4, 8)] == pytest.approx([1 / 12, 1 / 8, 1 / 4])


def test_t5_textbook_gittins_equals_srsf_for_three_equally_likely_sizes(tmp_path: Path) -> None:
    timeline = run(gittins(tmp_path, [4, 8, 12], quantum="sup"), FIGURE_7)
    assert sum(timeline.jct(FIGURE_7)) / 3 == pytest.approx(28 / 3)


def test_t6_published_timeline_for_mostly_short_jobs(tmp_path: Path) -> None:
    timeline = run(gittins(tmp_path, [4] * 8 + [8, 12], quantum="sup"), FIGURE_7)
    assert units(timeline) == [1, 1, 2, 2, 2, 2, 3, 3, 2, 2, 2, 2, 3, 3, 3, 3]
    assert sum(timeline.jct(FIGURE_7)) / 3 == pytest.approx(10.0)


def test_t7_its_indices() -> None:
    distribution = Distribution([4] * 8 + [8, 12])
    assert [distribution.supremum(a) for a in (0, 3, 4, 8)] == pytest.approx([1 / 5, 4 / 5, 1 / 6, 1 / 4])


def test_t8_simulators_denominator_gives_the_published_timeline(tmp_path: Path) -> None:
    timeline = run(gittins(tmp_path, [4, 8, 12], mode="tiresias-sim", quantum="sup"), FIGURE_7)
    assert units(timeline) == [1, 1, 2, 2, 2, 2, 3, 3, 2, 2, 2, 2, 3, 3, 3, 3]


def test_what_a_preemption_costs_bounds_how_often_jobs_change_places(tmp_path: Path) -> None:
    """Figure 7 again, where job 3 ran for 2 units between two stretches of job 2."""
    sizes = [4.0] * 8 + [8.0, 12.0]
    timeline = run(gittins(tmp_path, sizes, quantum="sup", preemption_seconds=0.2), FIGURE_7)
    stretches = [(job, len(list(group))) for job, group in groupby(units(timeline))]
    lasts = {job: number for number, (job, _) in enumerate(stretches)}
    assert all(length >= 4 for number, (job, length) in enumerate(stretches) if lasts[job] != number)
    assert sum(length for _, length in stretches) == 16


def test_t9_its_indices() -> None:
    distribution = Distribution([4, 8, 12])
    indices = [distribution.supremum(a, whole_sizes=True) for a in (0, 3, 4, 8)]
    assert indices == pytest.approx([1 / 8, 1 / 6, 1 / 10, 1 / 12])


QUEUED = [make_job(1, 2, 5), make_job(2, 1, 3, submit=1), make_job(3, 1, 6, submit=2)]


def test_t10_two_queues_without_promotion() -> None:
    timeline = run(preset("tiresias-las", queue_limits=[4.0], promote_knob_ratio=0.0), QUEUED)
    assert timeline.runs == {1: [(0, 2), (6, 9)], 2: [(2, 5)], 3: [(2, 6), (9, 11)]}
    assert timeline.jct(QUEUED) == [9, 4, 9]
    assert timeline.preemptions == 2


def test_t11_promotion_in_order_of_start() -> None:
    ideal = Ideal(preset("tiresias-las", queue_limits=[4.0], promote_knob_ratio=1.0), cluster(1, 2), QUEUED)
    queues: dict[JobId, int] = {}
    promoted: list[tuple[float, int]] = []

    def watch(snapshot: Snapshot, plan: Plan) -> None:
        for job_id, note in plan.memory.jobs.items():
            if note is not None:
                if note[0] < queues.get(job_id, 0):
                    promoted.append((snapshot.time, int(job_id)))
                queues[job_id] = note[0]

    ideal.on_plan = watch
    timeline = ideal.run()
    assert timeline.jct(QUEUED) == [9, 6, 9]
    assert promoted == [(4, 1), (8, 1)]
    assert timeline.preemptions == 5


def test_waiting_before_the_last_run_promotes_no_job_that_was_seen_running_first() -> None:
    """Another policy ran the job for 6 s, stopped it for 50 s, and started it again at 56 s."""
    order = Queues(QueueSettings(queue_limits=[4.0], promote_knob_ratio=2.0))
    job = make_job(1, start_time=0.0)
    usage = Usage().started(0.0, 1).stopped(6.0).started(56.0, 1)
    note = order.enter(job, usage, 57.0, 1, ())
    usage = usage.stopped(60.0)
    note = order.settle(job, usage, note, 60.0, 1)
    assert order.until(job, usage, note, 60.0) == 60.0 + 2.0 * 10.0


@pytest.mark.parametrize(
    ("largest", "size", "percent", "consolidate"),
    [
        (392, 548.1, 71.5, True),
        (392, 527.8, 74.3, True),
        (392, 506.8, 77.3, True),
        (144, 235.9, 61.0, True),
        (9, 230.2, 3.9, False),
        (9, 170.4, 5.3, False),
        (9, 97.7, 9.2, False),
        (5.9, 162.9, 3.6, False),
        (7.8, 91.0, 8.6, False),
        (3.9, 26.7, 14.6, False),
    ],
)
def test_t13_skew_of_the_papers_models(
    largest: float, size: float, percent: float, consolidate: bool
) -> None:
    skew = skew_fraction(Profile(state_bytes=int(size * MIB), largest_tensor_bytes=int(largest * MIB)))
    assert skew is not None and skew * 100 == pytest.approx(percent, abs=0.06)
    assert (skew > QueueSettings().pack_limit_fraction) is consolidate


def test_pack_limit_is_fitted_between_those_that_suffer_and_those_that_do_not() -> None:
    paper = [(0.715, 0.72), (0.743, 0.73), (0.773, 0.77), (0.61, 0.80), (0.039, 1.02), (0.146, 1.08)]
    assert fit_pack_limit(paper, 0.9) == pytest.approx((0.146 + 0.61) / 2)
    assert fit_pack_limit(paper[:4], 0.38) == 0.38
    assert fit_pack_limit([], 0.38) == 0.38
    noisy = [*paper, (0.05, 0.90)]
    assert fit_pack_limit(noisy, 0.38) == pytest.approx((0.146 + 0.61) / 2)


def test_strict_fifo_blocks_and_fifo_skip_does_not() -> None:
    jobs = [make_job(1, 1, 10), make_job(2, 2, 10, submit=1), make_job(3, 1, 5, submit=2)]
    assert run(preset("fifo"), jobs).ends == {1: 10, 2: 20, 3: 25}
    assert run(preset("fifo-skip"), jobs).ends == {1: 10, 3: 7, 2: 20}


def test_sjf_takes_the_fewest_gpus_and_srtf_the_shortest_time() -> None:
    jobs = [make_job(1, 2, 4), make_job(2, 1, 10, submit=1)]
    assert run(preset("sjf"), jobs).ends == {2: 11, 1: 14}
    assert run(preset("srtf"), jobs).ends == {1: 4, 2: 14}


def test_simulators_gittins_table_at_hand_counted_points() -> None:
    table = SimulatorTable([4, 8, 12] * 100, 4)
    # a = 0: 100 of 300 end within 4 -> p = .33333, e = (100 * 4 + 200 * 4) / 300 = 4
    assert table.raw(0) == pytest.approx(1e6 * 0.33333 / 4, abs=0.01)
    assert table.index(12) == 0 and table.index(13) == 0
    assert table.index(0) == table.raw(3) == table.index(3)
