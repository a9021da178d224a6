# SPDX-License-Identifier: GPL-2.0-or-later
"""Moves in whole simulations: the ground truth has the interference, and policies learn it from samples."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from controller.journal.memory import MemoryJournal
from controller.loop.state_store import COSTS_KEY
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import Throughputs
from controller.simulation.metrics import summary
from controller.simulation.traces import TraceJob

ALONE: Mapping[str, float] = {"vae": 8.0, "resnext": 4.0}
"""Mini-batches per second of a job that has its GPU to itself."""
PAIRED: Mapping[tuple[str, str], float] = {
    ("vae", "vae"): 0.85,
    ("vae", "resnext"): 0.8,
    ("resnext", "vae"): 0.6,
    ("resnext", "resnext"): 0.42,
}
"""Relative to alone, beside another."""
SIZES = (1, 2, 4)
TRUTH = Throughputs(
    {("v100", model, size): rate for model, rate in ALONE.items() for size in SIZES},
    {
        ("v100", one, size, other, size): ALONE[one] * part
        for (one, other), part in PAIRED.items()
        for size in SIZES
    },
)


def job(number: int, model: str, seconds: float, submit: float = 0.0, gpus: int = 1) -> TraceJob:
    return TraceJob(str(number), submit, gpus, seconds, number + 1, model=model, may_pack=True)


def simulated(jobs: list[TraceJob], policy: str, moves: str, gpus: int, text: str = "") -> Simulation:
    settings = parse_settings(f'{text}\n[policy]\nname = "{policy}"\nmoves = {moves}\n')
    return Simulation(Path("t"), jobs, parse_cluster(f"v100:{gpus}", min(4, gpus)), settings, TRUTH)


def said(journal: MemoryJournal, job_id: int) -> list[str]:
    """The reasons of its decisions."""
    return [d.reason for d in journal.decisions if d.job_id == job_id]


def test_two_light_jobs_are_packed_and_kept() -> None:
    jobs = [job(n, "vae", 1000.0) for n in (1, 2)]
    packed = simulated(jobs, "gandiva", '["pack"]', 1)
    ends = [outcome.end_seconds for outcome in packed.run().jobs]
    assert max(ends) < 1000 + 1000 / 0.85, "turns take 2000 s, together 1176 s"
    assert any("their rates are being compared" in words for words in said(packed.journal, 2))
    turns = simulated(jobs, "gandiva", "[]", 1).run()
    assert max(outcome.end_seconds for outcome in turns.jobs) > 2000


def test_two_heavy_jobs_are_packed_measured_and_parted() -> None:
    jobs = [job(n, "resnext", 1000.0) for n in (1, 2)]
    packed = simulated(jobs, "gandiva", '["pack"]', 1)
    ends = [outcome.end_seconds for outcome in packed.run().jobs]
    assert 2000 < max(ends) < 2080, "a minute of trial at 0.84 costs ten seconds"
    gain = "stops sharing GPUs with job 1: together they do 0.84 times what they do in turns"
    assert said(packed.journal, 2).count(gain) == 1


def trace(count: int, seed: int) -> list[TraceJob]:
    draw, submit, jobs = random.Random(seed), 0.0, list[TraceJob]()
    for number in range(1, count + 1):
        model, gpus = draw.choice(("vae", "vae", "resnext")), draw.choice((1, 1, 1, 2, 4))
        jobs.append(job(number, model, draw.uniform(300, 3000), submit, gpus))
        submit += draw.expovariate(1 / 60)
    return jobs


@pytest.mark.parametrize("policy", ["gandiva", "tiresias-las"])
def test_packing_gains_time_under_overload(policy: str) -> None:
    jobs, text = trace(20, 7), "[policy.tiresias]\nqueue_limits = [300.0, 1500.0]"
    plain = summary(simulated(jobs, policy, "[]", 4, text).run())
    packed = summary(simulated(jobs, policy, '["pack"]', 4, text).run())
    assert packed["completed"] == plain["completed"] == 20
    assert float(packed["gpu_utilization_fraction"]) <= 1.0
    assert float(packed["makespan_seconds"]) < 0.9 * float(plain["makespan_seconds"])
    assert float(packed["avg_jct_seconds"]) < 0.9 * float(plain["avg_jct_seconds"])


CLEARED = (
    TraceJob("long", 0.0, 1, 4000.0, 2),
    TraceJob("three", 1.0, 3, 600.0, 3),
    TraceJob("other", 2.0, 2, 4000.0, 4),
    TraceJob("gang", 700.0, 4, 500.0, 5, nodes=1),
)
"""The gang waits for a server, which is free when the first job has gone elsewhere."""


def test_a_gang_starts_on_a_server_that_was_cleared() -> None:
    jobs = list(CLEARED)
    text = '[requests]\nsuspend = "requeue"'
    plain = simulated(jobs, "fifo-skip", "[]", 8, text).run().jobs
    cleared = simulated(jobs, "fifo-skip", '["defragment"]', 8, text).run().jobs
    assert plain[3].start_seconds > 4000
    assert cleared[3].start_seconds < 800
    assert cleared[0].migrations == 1
    assert cleared[0].end_seconds - plain[0].end_seconds < 100, "what the migration cost the long job"


def test_what_a_migration_takes_is_measured_in_parts() -> None:
    """2 s to write it and 1.5 s in Slurm; 0.5 s to start; 2 s to read it and 20 s to train again."""
    jobs = [
        TraceJob("long", 0.0, 1, 4000.0, 2, model="vae"),
        TraceJob("three", 1.0, 3, 600.0, 3, model="resnext"),
        TraceJob("other", 2.0, 2, 4000.0, 4, model="resnext"),
        TraceJob("gang", 700.0, 4, 500.0, 5, model="resnext", nodes=1),
    ]
    text = '[requests]\nsuspend = "requeue"'
    simulation = simulated(jobs, "fifo-skip", '["defragment"]', 8, text)
    assert simulation.run().jobs[0].migrations == 1
    saved = simulation.journal.load_state(COSTS_KEY)
    assert saved is not None
    costs = {kind: values[-1] for kind, values in saved["vae"].items()}
    assert costs["checkpoint"] == pytest.approx(3.5, abs=0.5)
    assert costs["start"] == pytest.approx(0.5, abs=0.5)
    assert costs["load"] == pytest.approx(22.0, abs=2.0)
    assert "load" not in saved["resnext"], "jobs that started for the first time had nothing to load"


@pytest.mark.parametrize(
    ("stores", "said", "migrates"), [(True, None, 1), (False, True, 1), (True, False, 0), (False, None, 0)]
)
def test_a_suspended_job_migrates_where_it_has_a_store(
    stores: bool, said: bool | None, migrates: int
) -> None:
    """The settings say it of all jobs, the trace of one."""
    jobs = [replace(CLEARED[0], has_store=said), *CLEARED[1:]]
    text = f'[requests]\nsuspend = "cooperative"\n[simulation]\nstores = {str(stores).lower()}'
    found = simulated(jobs, "fifo-skip", '["defragment"]', 8, text).run().jobs
    assert found[0].migrations == migrates
    assert (found[3].start_seconds < 800) is (migrates == 1)


def test_a_spread_gang_is_brought_together_when_a_job_departs() -> None:
    """vgg19 does 0.72 of its speed over two servers; the migration costs half a minute."""
    jobs = [
        TraceJob("departs", 0.0, 3, 600.0, 2, model="other"),
        TraceJob("stays", 1.0, 3, 9000.0, 3, model="other"),
        TraceJob("gang", 2.0, 2, 3600.0, 4, model="vgg19"),
    ]
    text = '[requests]\nsuspend = "requeue"'
    settings = [
        parse_settings(f'{text}\n[policy]\nname = "fifo-skip"\nmoves = {m}\n') for m in ([], ["locality"])
    ]
    cluster = parse_cluster("v100:8", 4)
    plain, together = (
        Simulation(Path("t"), jobs, cluster, made, Throughputs()).run().jobs for made in settings
    )
    assert plain[2].end_seconds == pytest.approx(3600 / 0.72, rel=0.01)
    assert together[2].migrations == 1 and [job.migrations for job in together[:2]] == [0, 0]
    assert together[2].end_seconds == pytest.approx(600 + (3600 - 600 * 0.72) + 30, rel=0.02)
    assert together[1].end_seconds == pytest.approx(plain[1].end_seconds)
