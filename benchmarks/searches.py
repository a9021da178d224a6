# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon a search for hyper-parameters finds what it looks for: `python -m benchmarks.searches`.

100 configurations of one model in random order, one GPU each, on servers with 4 GPUs. Both runs have the
same driver: every 250 mini-batches a job tells its accuracy. After 1,000 (3 % of the job) its end is
predicted, and it is stopped where that is below 30 % (SPEC 1.10). They differ in who runs:

    fifo      as many jobs as there are GPUs, each to its end or until it is stopped
    gandiva   all at once in slices of 60 s: first those of which nothing is known (by priority), the M most
              promising exclusively, the rest in what is left

The controller, the policy and the comments are the product's own, on virtual time and a simulated Slurm. What
the paper's searches looked like is not published. Here final accuracies are uniform from 5 % to 85 %, and one
configuration, at the position that the table names, has 91 %. Curves are power laws with noise of 0.5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from controller.cluster.port import JobState
from controller.cluster.simulated import SimulatedCluster, SimulatedJob, SlurmCosts, idle_node, request_text
from controller.journal.memory import MemoryJournal
from controller.loop.loop import Controller
from controller.loop.pacing import PaceSettings
from controller.model import JobId
from controller.nodes.simulated import NodeCosts, SimulatedNodes
from controller.settings.loading import parse_settings
from controller.simulation.virtual_time import VirtualClock, run_virtual
from controller.solver import ImmediateSolver
from gandiva.curves import Judgement, judge
from gandiva.trials import with_word

CONFIGURATIONS = 100
STEP_SECONDS, STEPS = 0.05, 33_000
TELL_STEPS, SLOPE, NOISE = 250, 0.4, 0.005
STOP_BELOW, WANTED = 0.30, 0.90
LOOK_SECONDS = 10.0
"""How often the driver looks at its jobs."""
UNKNOWN_PRIORITY, KNOWN_PRIORITY = 100.0, 0.01
POSITIONS = (0.25, 0.50, 0.75, 0.98)
TARGETS = (0.70, 0.80, 0.90)
PAPER = {4: (5.51, 6.42, 6.84, 7.04), 16: (3.40, 4.75, 5.40, 5.96)}
"""Speed-up of the time to a qualified configuration, by GPUs (SPEC 1.11)."""
PAPER_TARGETS = (1.00, 5.25, 5.66)
PAPER_EXPLORED = 10.0
TOP = {4: 2, 16: 8}
_SETTINGS = {
    "fifo": '[policy]\nname = "fifo"\n',
    "gandiva": '[policy]\nname = "gandiva"\n[policy.gandiva]\nmax_jobs_per_gpu = 32\n',
}


@dataclass
class Configuration:
    """What is trained, and how well it does."""

    final: float
    seed: int

    def accuracy(self, step: float) -> float:
        """After so many mini-batches; 5 % when the first are told."""
        noise = random.Random(f"{self.seed}:{step}").gauss(0.0, NOISE) if step < STEPS else 0.0
        risen = (TELL_STEPS**-SLOPE - step**-SLOPE) / (TELL_STEPS**-SLOPE - STEPS**-SLOPE)
        return 0.05 + (self.final - 0.05) * float(risen) + noise


@dataclass
class Found:
    """When a run reached what, in seconds."""

    explored: list[float] = field(default_factory=list)
    """When each configuration had told enough to be judged."""
    reached: dict[float, float] = field(default_factory=dict)
    """When the first configuration reached each target."""


class Run:
    """One search under one policy; ends when the wanted accuracy is reached."""

    def __init__(self, configurations: Sequence[Configuration], policy: str, gpus: int) -> None:
        self._configurations, self._policy, self._gpus = configurations, policy, gpus
        self._curves: dict[JobId, list[tuple[float, float]]] = {}
        self.found = Found()

    async def main(self) -> None:
        names = [f"n{number}" for number in range(self._gpus // 4)]
        nodes = (idle_node(name, gpus=4, shards=64) for name in names)
        cluster = SimulatedCluster(
            {node.name: node for node in nodes}, SlurmCosts(0.01, 1.0, 0.2), deltas=True
        )
        agents = SimulatedNodes(cluster, NodeCosts(STEP_SECONDS, 0.3, 0.3), deltas=True)
        controller = Controller(
            parse_settings(_SETTINGS[self._policy]),
            cluster,
            agents,
            MemoryJournal(),
            VirtualClock(),
            solver=ImmediateSolver(),
            pace=PaceSettings(interval_seconds=math.inf, coalesce_seconds=0.1),
        )
        cluster.on_end = lambda _job: controller.pace.poke()
        configuration = {self._submit(cluster): each for each in self._configurations}
        stop = asyncio.Event()
        running = asyncio.create_task(controller.run(stop))
        while TARGETS[-1] not in self.found.reached:
            await asyncio.sleep(LOOK_SECONDS)
            if running.done():
                break
            self._look(cluster, configuration)
            if all(job.state is JobState.ENDED for job in cluster.jobs.values()):
                raise RuntimeError("the configuration that is looked for was stopped by mistake")
            controller.pace.poke()
        stop.set()
        await running
        await controller.executor.drain(600)
        if agents.violations:
            raise RuntimeError(f"two jobs on one GPU: {agents.violations[0]}")

    def _submit(self, cluster: SimulatedCluster) -> JobId:
        comment = with_word("", UNKNOWN_PRIORITY, exclusive=False)
        return cluster.submit(request_text(1, search="s"), STEPS * STEP_SECONDS, comment=comment)

    def _look(self, cluster: SimulatedCluster, configurations: dict[JobId, Configuration]) -> None:
        """The driver: what the jobs tell, what follows from it."""
        now = asyncio.get_running_loop().time()
        for job_id, configuration in configurations.items():
            if self._tell(cluster.jobs[job_id], configuration, now):
                self.found.explored.append(now)
        living = {
            str(job_id): self._curves.get(job_id, ())
            for job_id in configurations
            if cluster.jobs[job_id].state is not JobState.ENDED
        }
        told = {job: points if len(points) >= 4 else () for job, points in living.items()}
        judged = judge(told, final_step=STEPS, stop_below=STOP_BELOW, top=TOP[self._gpus])
        for job in judged.stop:
            cluster.cancel(JobId(int(job)))
        if self._policy == "gandiva":
            self._say(cluster, judged, told.keys() - set(judged.stop))

    def _tell(self, job: SimulatedJob, configuration: Configuration, now: float) -> bool:
        """Take down what the job has told since; whether it can be judged since then."""
        points = self._curves.setdefault(job.id, [])
        before, steps = len(points), int(job.done_at(now) / STEP_SECONDS + 1e-6)
        for step in range((before + 1) * TELL_STEPS, steps + 1, TELL_STEPS):
            points.append((step, configuration.accuracy(step)))
            for target in TARGETS:
                if points[-1][1] >= target:
                    self.found.reached.setdefault(target, now)
        return before < 4 <= len(points)

    def _say(self, cluster: SimulatedCluster, judged: Judgement, jobs: set[str]) -> None:
        for job in jobs:
            priority = UNKNOWN_PRIORITY if job in judged.unknown else KNOWN_PRIORITY
            said = with_word("", priority, exclusive=job in judged.first)
            if cluster.jobs[JobId(int(job))].comment != said:
                cluster.jobs[JobId(int(job))].comment = said
                cluster.touch(JobId(int(job)))


def made_search(position: float, seed: int) -> list[Configuration]:
    """Configurations in the order in which they are tried; the one that is looked for is at `position`."""
    rng = random.Random(seed)
    others = [Configuration(rng.uniform(0.05, 0.85), rng.getrandbits(32)) for _ in range(CONFIGURATIONS - 1)]
    at = round(position * CONFIGURATIONS) - 1
    return [*others[:at], Configuration(0.91, rng.getrandbits(32)), *others[at:]]


def both(position: float, gpus: int, seed: int) -> tuple[Found, Found]:
    """The same search under fifo and under gandiva."""
    found = []
    for policy in ("fifo", "gandiva"):
        run = Run(made_search(position, seed), policy, gpus)
        run_virtual(run.main())
        found.append(run.found)
    return found[0], found[1]


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="searches for each row (%(default)s)")
    parser.add_argument("--gpus", type=int, nargs="*", choices=list(PAPER), default=list(PAPER))
    options = parser.parse_args()
    began = time.monotonic()
    print("| GPUs | looked for at | fifo, s | gandiva, s | speed-up | paper |\n|---|---|---|---|---|---|")
    for gpus in options.gpus:
        targets: list[list[float]] = [[] for _ in TARGETS]
        explored: list[float] = []
        for position, paper in zip(POSITIONS, PAPER[gpus], strict=True):
            runs = [both(position, gpus, seed) for seed in range(options.seeds)]
            fifo = fmean(before.reached[WANTED] for before, _ in runs)
            ours = fmean(after.reached[WANTED] for _, after in runs)
            print(
                f"| {gpus} | {position:.0%} | {fifo:.0f} | {ours:.0f} | {fifo / ours:.2f} | {paper:.2f} |",
                flush=True,
            )
            for before, after in runs:
                for target, ratios in zip(TARGETS, targets, strict=True):
                    ratios.append(before.reached[target] / after.reached[target])
                span = after.reached[WANTED]
                explored.append(
                    sum(at <= span for at in after.explored)
                    / max(1, sum(at <= span for at in before.explored))
                )
        for target, ratios, paper in zip(TARGETS, targets, PAPER_TARGETS, strict=True):
            print(f"| {gpus} | any of {target:.0%} | | | {fmean(ratios):.2f} | {paper:.2f} (ResNet) |")
        print(f"| {gpus} | explored by then | | | {fmean(explored):.1f} | {PAPER_EXPLORED:.0f} |", flush=True)
    print(f"\n{options.seeds} searches a row, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
