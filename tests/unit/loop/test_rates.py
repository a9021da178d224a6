# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast jobs go where they are, and what their models have shown in every configuration."""

from __future__ import annotations

import asyncio
from itertools import permutations
from pathlib import Path

import pytest

from controller.loop.pacing import PaceSettings
from controller.model import (
    Configuration,
    GpuId,
    Job,
    JobId,
    Memory,
    Phase,
    Placement,
    Plan,
    Provenance,
    Rate,
    Request,
    Size,
    Snapshot,
    Target,
    Usage,
)
from controller.nodes.protocol import RankSample, RankState
from controller.observe.rate_meter import RateMeter
from controller.observe.rates import ESTIMATE_SECONDS, MAX_CONFIGURATIONS, MAX_MODELS, Rates
from tests.unit.loop.world import SLICE_SECONDS, World, fifo, run

STAY = (JobId(1), 0.0)


class Together:
    """All jobs on one GPU."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        gpu, all_jobs = frozenset({GpuId("n1", 0)}), frozenset(snapshot.jobs)
        placements = {job_id: Placement(gpu, gpu, all_jobs - {job_id}) for job_id in all_jobs}
        jobs = snapshot.jobs
        return Plan(
            {i: Target(placement) for i, placement in placements.items() if jobs[i].placement != placement}
        )


@pytest.mark.parametrize("deltas", [False, True])
def test_a_pair_is_measured_while_both_compute_and_anew_when_one_is_alone(
    tmp_path: Path, deltas: bool
) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1, policy=Together(), deltas=deltas)
        world.cluster.rate = lambda job, beside: (0.5 if job.id == 1 else 0.8) if beside else 1.0
        first = world.submit(model="a")
        world.start()
        await asyncio.sleep(20)
        assert first not in world.cycles[-1].snapshot.job_rates, "too few mini-batches"
        await asyncio.sleep(20)
        alone = world.cycles[-1].snapshot.job_rates[first]
        assert alone.samples_per_second == pytest.approx(1.0) and alone.mini_batches == 20
        second = world.submit(work_seconds=100)
        await asyncio.sleep(20)
        snapshot = world.cycles[-1].snapshot
        assert snapshot.jobs[first].placement.shares_with == {second}
        assert not snapshot.job_rates, "it is another configuration"
        await asyncio.sleep(60)
        snapshot = world.cycles[-1].snapshot
        assert {i: r.samples_per_second for i, r in snapshot.job_rates.items()} == {1: 0.5, 2: 0.8}
        unnamed = f"job:{second}"
        speeds = {
            (model, where.models_beside): rate.samples_per_second
            for model, table in snapshot.rates.items()
            for where, rate in table.items()
        }
        assert speeds == {("a", ()): 1.0, ("a", (unnamed,)): 0.5, (unnamed, ("a",)): 0.8}
        await world.until_ended([second], 200)
        await asyncio.sleep(40)
        snapshot = world.cycles[-1].snapshot
        assert snapshot.job_rates[first].samples_per_second == pytest.approx(1.0)
        assert unnamed not in snapshot.rates, "no job will have that name again"
        await world.stop()
        world.check()

    run(scenario)


def test_turns_that_come_seldom_see_rates_all_the_same(tmp_path: Path) -> None:
    """As in a simulation, where nothing is looked at until something happens."""

    async def scenario() -> None:
        world = World(tmp_path, nodes=2, gpus=2, policy=fifo(), deltas=True)
        world.pace = PaceSettings(interval_seconds=1e6, resync_seconds=1e9)
        jobs = [world.submit(4, nodes=2, model="wide"), world.submit()]
        controller = world.start()
        await asyncio.sleep(100)
        assert not world.cycles[-1].snapshot.job_rates
        controller.pace.poke()
        await asyncio.sleep(1)
        snapshot = world.cycles[-1].snapshot
        assert snapshot.job_rates[jobs[0]].samples_per_second == pytest.approx(1.0)
        assert set(snapshot.rates["wide"]) == {Configuration("a100", 4, 2)}
        await world.stop()

    run(scenario)


def test_the_table_is_bounded() -> None:
    rates = Rates()
    for number in range(MAX_CONFIGURATIONS + 10):
        rates.see("m", Configuration("a100", 1, 1, (f"x{number}",)), Rate(1.0, measured_at=number), STAY)
    assert len(rates.table["m"]) == MAX_CONFIGURATIONS
    assert Configuration("a100", 1, 1, ("x9",)) not in rates.table["m"], "measured longest ago"
    where = Configuration("a100", 1)
    rates.see(f"job:{JobId(7)}", where, Rate(1.0), STAY)
    for number in range(MAX_MODELS + 10):
        rates.see(f"m{number}", where, Rate(1.0), STAY)
        rates.see("used", where, Rate(1.0 + number), STAY)
    assert sum(not name.startswith("job:") for name in rates.table) <= MAX_MODELS
    assert {"used", "job:7", f"m{MAX_MODELS + 9}"} <= rates.table.keys()
    assert "m0" not in rates.table


def test_what_is_measured_stands_before_what_is_declared() -> None:
    rates, one, two = Rates(), Configuration("a100", 1), Configuration("v100", 1)
    rates.declare({"m": {one: Rate(5.0), two: Rate(3.0)}})
    rates.see("m", one, Rate(4.0), STAY)
    assert {where: rate.samples_per_second for where, rate in rates.table["m"].items()} == {
        one: 4.0,
        two: 3.0,
    }
    rates.declare({})
    assert set(rates.table["m"]) == {one}


def test_a_rate_is_the_moving_average_over_stays_and_within_one_the_last() -> None:
    rates, where = Rates(), Configuration("a100", 1)

    def seen(speed: float, job: int, since: float) -> float:
        rates.see("m", where, Rate(speed, measured_at=since, mini_batches=20), (JobId(job), since))
        return rates.table["m"][where].samples_per_second

    assert seen(4.0, 1, 0.0) == 4.0
    assert seen(8.0, 1, 0.0) == 8.0, "the same stay"
    assert seen(4.0, 1, 50.0) == 6.0
    assert seen(2.0, 1, 50.0) == 5.0, "what the stay shows counts once"
    assert seen(1.0, 2, 60.0) == 3.0
    again = Rates()
    again.load(rates.dump())
    again.see("m", where, Rate(1.0, measured_at=70.0, mini_batches=20), (JobId(3), 70.0))
    assert again.table["m"][where].samples_per_second == 2.0, "a restart goes on with the average"


def test_pairs_that_never_ran_are_in_the_table_as_estimated_until_they_are_measured() -> None:
    rates, where = Rates(), Configuration("a100", 1)
    mine, other = (Configuration("a100", 1, 1, (beside,)) for beside in ("b", "a"))
    for model in ("a", "b"):
        rates.see(model, where, Rate(10.0, mini_batches=20), STAY)
    rates.see("b", other, Rate(7.0, mini_batches=20), STAY)
    rates.estimate(0.0)
    assert rates.table["a"][mine].provenance is Provenance.ESTIMATED
    assert rates.table["a"][mine].samples_per_second == pytest.approx(7.0)
    assert all(row[8] == "measured" for row in rates.dump()), "estimates are not kept"
    rates.see("a", mine, Rate(9.0, mini_batches=20), STAY)
    assert rates.table["a"][mine] == Rate(9.0, mini_batches=20)
    rates.see("c", where, Rate(20.0, mini_batches=20), STAY)
    rates.estimate(1.0)
    assert set(rates.table["c"]) == {where}, "not so soon after the last time"
    rates.estimate(ESTIMATE_SECONDS)
    assert {at.models_beside for at in rates.table["c"]} == {(), ("a",), ("b",), ("c",)}


def test_what_operations_take_is_known_by_model_and_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        named, unnamed = world.submit(model="m"), world.submit()
        world.start()
        await asyncio.sleep(6 * SLICE_SECONDS)
        await world.kill()
        world.cycles.clear()
        world.start()
        await asyncio.sleep(1)
        snapshot = world.cycles[0].snapshot
        assert set(snapshot.costs) == {"", "m"}
        for job_id in (named, unnamed):
            costs = snapshot.costs_of(snapshot.jobs[job_id])
            # The costs of the simulated nodes: 0.1 s to a step boundary, 0.05 s off and back; 0.3 s to start.
            assert costs.suspend_seconds == pytest.approx(0.15, abs=0.05)
            assert costs.restore_seconds == pytest.approx(0.05, abs=0.05)
            assert costs.start_seconds == pytest.approx(0.3, abs=0.3)
            assert costs.checkpoint_seconds is None
        await world.stop()

    run(scenario)


GPU = frozenset({GpuId("n1", 0)})


def running(job_id: int, *beside: int) -> Job:
    place = Placement(GPU, GPU, frozenset(map(JobId, beside)))
    request = Request(size=Size.exactly(1))
    return Job(
        id=JobId(job_id), user="u", request=request, submit_time=0, phase=Phase.RUNNING, placement=place
    )


def rank(number: int, steps: int, step_seconds: float, samples: float = 0.0, ranks: int = 1) -> RankSample:
    return RankSample(number, RankState.RUNNING, steps, samples, step_seconds, ranks, 0, 0)


def test_a_job_is_not_measured_beside_one_that_still_loads_its_data() -> None:
    meter, usage = RateMeter(), Usage(since=0.0)
    for now in range(100):
        loads = now < 50
        meter.see(running(1, 2), usage, [rank(0, 10 * now, 0.1)], now)
        meter.see(running(2, 1), usage, [rank(0, 0 if loads else 5 * (now - 50), 0.0 if loads else 0.2)], now)
        found = meter.news()
        assert not (loads and found)
    assert {i: r.samples_per_second for i, r in meter.rates.items()} == pytest.approx({1: 10.0, 2: 5.0})


def test_samples_of_all_ranks_count_at_the_speed_of_the_slowest() -> None:
    meter, usage = RateMeter(), Usage(since=0.0)
    for now in (0.0, 100.0):
        steps = int(100 + now)
        ranks = [rank(0, steps, 0.9, 32.0 * steps + 7, 2), rank(1, steps, 1.0, 16.0 * steps, 2)]
        meter.see(running(1), usage, ranks[:1], now)
        assert not meter.news(), "a rank is missing"
        meter.see(running(1), usage, ranks, now)
        meter.news()
    assert meter.rates[JobId(1)].samples_per_second == pytest.approx(48.0)
    meter.see(running(1), usage, [rank(0, 3, 0.1), rank(1, 3, 0.1)], 300.0)
    assert not meter.rates, "it began anew"


def test_the_rate_is_the_same_in_every_order_of_the_ranks() -> None:
    """The order of a set of nodes depends on the hash seed of the process."""
    found: set[float] = set()
    for order in permutations(range(3)):
        meter, usage = RateMeter(), Usage(since=0.0)
        for now in (0.0, 100.0):
            ranks = [rank(n, int(now), 1.0, now * (n + 1) / 10, 3) for n in order]
            meter.see(running(1), usage, ranks, now)
            meter.news()
        found.add(meter.rates[JobId(1)].samples_per_second)
    assert len(found) == 1


def test_warm_up_does_not_count() -> None:
    meter, usage = RateMeter(), Usage(since=0.0)
    for steps in range(28):
        meter.see(running(1), usage, [rank(0, steps, 1.0)], float(steps))
        assert bool(meter.news()) == (steps == 26), steps


def test_the_time_of_a_mini_batch_is_news_from_five_percent_on_and_outlives_the_stay() -> None:
    meter, usage = RateMeter(), Usage(since=0.0)
    seen = [
        (meter.see(running(1), usage, [rank(0, 9, took)], now), meter.step_seconds.get(JobId(1)))
        for now, took in enumerate((0.0, 1.0, 1.04, 1.06))
    ]
    assert seen == [(False, None), (True, 1.0), (False, 1.0), (True, 1.06)]
    meter.leave(JobId(1))
    assert meter.step_seconds[JobId(1)] == 1.06
    meter.forget(JobId(1))
    assert not meter.step_seconds
