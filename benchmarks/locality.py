# SPDX-License-Identifier: GPL-2.0-or-later
"""What locality gains: mean completion times of a made trace under several policies, with and without the
move `locality`.

    python -m benchmarks.locality

Half of the jobs are gangs of 2, 4 or 8 GPUs; their models are those of Tiresias (NSDI'19), table 6: some are
as fast when spread over servers, others keep 72 to 80 % of their speed (figure 3). Policies place gangs
wherever GPUs are free, and see of it what they measure. A migration costs a requeue, writing and reading a
checkpoint of 2 GiB, and 20 s to train again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import TypeAlias

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from controller.simulation.cluster_spec import parse_cluster  # noqa: E402
from controller.simulation.configure import configure  # noqa: E402
from controller.simulation.driver import Simulation  # noqa: E402
from controller.simulation.ground_truth import MODELS, Throughputs  # noqa: E402
from controller.simulation.outcome import Outcome  # noqa: E402
from controller.simulation.traces import TraceJob  # noqa: E402

GPUS_PER_NODE = 4
COMMON = ("requests.suspend=requeue",)
Run: TypeAlias = tuple[list[TraceJob], Outcome]
VARIANTS = {"fifo-skip": (), "tiresias-las": ("consolidate=never", "queue_limits=[3600,36000]")}


def trace(count: int, gpus: int, load_fraction: float, seed: int) -> list[TraceJob]:
    """Jobs of half an hour to five hours, as much work as that part of the GPUs can do."""
    draw, submit, jobs = random.Random(seed), 0.0, list[TraceJob]()
    for number in range(1, count + 1):
        size, seconds = draw.choice((1, 1, 1, 2, 4, 8)), draw.uniform(1800, 18000)
        jobs.append(
            TraceJob(str(number), submit, size, seconds, number + 1, model=draw.choice(sorted(MODELS)))
        )
        submit += draw.expovariate(gpus * load_fraction / (17 / 6 * 9900))
    return jobs


def main() -> int:
    """Simulate, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--load", type=float, nargs="+", default=[0.7, 0.85, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    for load in args.load:
        traces = [trace(args.jobs, args.gpus, load, seed) for seed in args.seeds]
        for policy, settings in VARIANTS.items():
            plain, moved = (
                [_simulated(jobs, args.gpus, policy, settings, moves) for jobs in traces]
                for moves in ("[]", '["locality"]')
            )
            every = _mean_seconds(plain, _every) / _mean_seconds(moved, _every)
            gangs = _mean_seconds(plain, _suffers) / _mean_seconds(moved, _suffers)
            words = (
                f"{every:.3f} times as fast with locality, gangs that suffer when spread {gangs:.3f} times"
            )
            print(f"{policy:<13} load {load:.2f}  {words}", flush=True)
    return 0


def _every(_job: TraceJob) -> bool:
    return True


def _suffers(job: TraceJob) -> bool:
    """Whether it is slower when it is spread."""
    return job.gpus > 1 and MODELS[job.model][2] < 1


def _mean_seconds(runs: list[Run], which: Callable[[TraceJob], bool]) -> float:
    """Mean completion time of these jobs."""
    return mean(
        outcome.jct_seconds for jobs, run in runs for outcome in run.jobs if which(jobs[int(outcome.id) - 1])
    )


def _simulated(jobs: list[TraceJob], gpus: int, policy: str, settings: tuple[str, ...], moves: str) -> Run:
    begin = time.perf_counter()
    made = configure(None, policy, (*COMMON, *settings, f"policy.moves={moves}"))
    cluster = parse_cluster(f"v100:{gpus}", GPUS_PER_NODE)
    outcome = Simulation(Path("made"), jobs, cluster, made, Throughputs()).run()
    migrations = sum(job.migrations for job in outcome.jobs)
    hours = mean(job.jct_seconds for job in outcome.jobs) / 3600
    print(
        f"{policy:<13} {gpus} GPUs  moves={moves:<12}  mean JCT {hours:.3f} h  "
        f"migrations {migrations}  ({time.perf_counter() - begin:.0f} s)",
        flush=True,
    )
    return jobs, outcome


if __name__ == "__main__":
    sys.exit(main())
