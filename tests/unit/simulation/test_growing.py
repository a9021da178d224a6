# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that grow in whole simulations: the ground truth says how fast they are on more GPUs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import GroundTruth, Throughputs
from controller.simulation.traces import TraceJob, read_trace

RATES = {1: 10.0, 2: 19.0, 4: 30.0}
TABLE = Throughputs({("v100", "scales", gpus): rate for gpus, rate in RATES.items()})
FREE = """
[requests]
suspend = "requeue"
[simulation]
checkpoint_bytes_per_second = 0
restart_seconds = 0
requeue_seconds = 0
start_seconds = 0
rpc_seconds = 0
"""
"""A change of size costs nothing."""


def simulated(
    jobs: list[TraceJob], moves: str, gpus: int, text: str = "", policy: str = "fifo"
) -> Simulation:
    settings = parse_settings(f'{text}\n[policy]\nname = "{policy}"\nmoves = {moves}\n')
    return Simulation(Path("t"), jobs, parse_cluster(f"v100:{gpus}", 4), settings, TABLE)


def job(number: int, seconds: float, submit: float = 0.0, gpus: int = 1, model: str = "scales") -> TraceJob:
    return TraceJob(str(number), submit, gpus, seconds, number + 1, model=model, max_gpus=4)


@pytest.mark.parametrize(
    ("model", "gang", "size", "rate"),
    [
        ("scales", 1, 4, 3.0),
        ("scales", 2, 4, 30.0 / 19.0),
        ("scales", 1, 1, 1.0),
        ("scales", 1, 8, 1.5**3),
        ("unknown", 1, 4, 2.25),
    ],
)
def test_how_fast_a_job_is_with_another_size(model: str, gang: int, size: int, rate: float) -> None:
    """The table says it; else each doubling counts so much."""
    truth = GroundTruth(TABLE, "v100", doubling_ratio=1.5)
    assert truth.relative_rate(model, gang, "v100", spread=False, size=size) == pytest.approx(rate)


def test_a_job_alone_ends_when_its_rate_says() -> None:
    """300 s on one GPU until it may grow, then four, three times as fast."""
    (grown,) = simulated([job(1, 3000.0)], '["grow"]', 4, FREE).run().jobs
    assert grown.end_seconds == pytest.approx(300 + 2700 / 3, abs=5)
    (stays,) = simulated([job(1, 3000.0)], "[]", 4, FREE).run().jobs
    assert stays.end_seconds == pytest.approx(3000, abs=5)


def test_who_does_not_scale_goes_back() -> None:
    """Without a gain a trial of a minute is all that is lost."""
    (outcome,) = (
        simulated([job(1, 3000.0, model="flat")], '["grow"]', 2, FREE + "doubling_ratio = 1.0\n").run().jobs
    )
    assert outcome.preemptions == 2
    assert outcome.end_seconds == pytest.approx(3000, abs=30)


def trace(seed: int) -> list[TraceJob]:
    draw, submit, jobs = random.Random(seed), 0.0, list[TraceJob]()
    for number in range(1, 81):
        jobs.append(job(number, draw.uniform(600, 20000), submit, draw.choice((1, 1, 1, 2, 4))))
        submit += draw.expovariate(1 / 1800)
    return jobs


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "tiresias-las"])
def test_mean_completion_times_are_shorter(policy: str) -> None:
    suspend = '[requests]\nsuspend = "requeue"\n'
    means = [
        fmean(done.jct_seconds for done in simulated(trace(1), moves, 32, suspend, policy).run().jobs)
        for moves in ("[]", '["grow"]')
    ]
    print(f"{policy}: mean JCT {means[0]:.0f} s, with grow {means[1]:.0f} s")
    assert means[1] < 0.8 * means[0]


def test_a_trace_says_who_may_grow(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "job_id,submit_seconds,duration_seconds,gpus,max_gpus\n"
    path.write_text(head + "a,0,3000,1,4\nb,0,3000,1,\n")
    jobs = read_trace(path, "native")
    assert [each.max_gpus for each in jobs] == [4, None]
    a, b = simulated(jobs, '["grow"]', 8, FREE).run().jobs
    assert a.preemptions == 1 and b.preemptions == 0
    both = simulated([replace(each, max_gpus=None) for each in jobs], '["grow"]', 8, FREE + "max_gpus = 4\n")
    assert [done.preemptions for done in both.run().jobs] == [1, 1]
