# SPDX-License-Identifier: GPL-2.0-or-later
"""How long one decision takes, by policy: `python -m benchmarks.plan_time`.

The cluster is full, and there are two jobs for each GPU, of 1 to 8 GPUs. Plans take effect at once. Two kinds
of decisions are measured apart: those for an ordinary event (a job ends and another one comes), and those at
the worst moment, when all slices are over or all jobs have reached the limit of their queue at the same time.
Allocations are solved between decisions, which is not counted: the controller has a process for that.
Prints CPU time in milliseconds: median, 99th percentile and maximum; other load disturbs it less than it does
wall time.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

from rich.console import Console
from rich.table import Table

from controller.loop.loop import collected_later
from controller.model import (
    Changes,
    Configuration,
    Gpu,
    GpuId,
    Job,
    JobId,
    Memory,
    Node,
    Note,
    Phase,
    Placement,
    Plan,
    Profile,
    Rate,
    Request,
    Size,
    Snapshot,
    Solution,
    Usage,
    gpu_type,
)
from controller.policies.allocations.worker import answers
from controller.policies.assemble import make_policy
from controller.policies.settings import TrialSettings
from controller.settings.policies import POLICIES, PolicySettings
from controller.solver import ImmediateSolver

GPUS_PER_NODE = 8
SIZES = (1, 1, 1, 1, 2, 2, 4, 8)
MODELS = tuple(f"model{number}" for number in range(16))
"""Of all jobs. What each does alone, and half of the pairs together, is known to the move pack."""
WORST_SECONDS = 7200.0
"""After so long all slices are over and all limits are reached."""
PACK = TrialSettings(cooldown_seconds=1e7)


@dataclass
class Cluster:
    """Jobs that run for ever until they are taken away, under one policy."""

    settings: PolicySettings
    gpus: int
    bound: bool
    """Stopped jobs stay bound, as with suspend; else they are as new."""
    jobs: dict[JobId, Job] = field(default_factory=dict)
    usage: dict[JobId, Usage] = field(default_factory=dict)
    profiles: dict[JobId, Profile] = field(default_factory=dict)
    notes: dict[JobId, Note] = field(default_factory=dict)
    changed: set[JobId] = field(default_factory=set)
    types: int = 1
    solutions: dict[str, Solution] = field(default_factory=dict)
    solved: set[str] = field(default_factory=set)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.draw, self.number = random.Random(1), 0
        self.policy, self.common = make_policy(self.settings), dict[str, object]()
        if self.settings.moves:
            self.common["moves"] = {"trials": {"open": [], "judged": dict(tried())}}
        names = [f"n{i}" for i in range(self.gpus // GPUS_PER_NODE)]
        models = ["a100", *(f"type{number}" for number in range(1, self.types))]
        self.nodes = {
            name: Node(name=name, gpus=_cards(name, models[i % self.types])) for i, name in enumerate(names)
        }
        self.solver = ImmediateSolver(answers)
        self.rates = {
            model: {
                Configuration(gpu_type, gpus): Rate(self.draw.uniform(1, 10), 60.0, mini_batches=100)
                for gpu_type in models
                for gpus in sorted(set(SIZES))
            }
            for model in MODELS
        }
        self.first = True
        while len(self.jobs) < 2 * self.gpus:
            self.arrive()

    def arrive(self) -> None:
        self.number += 1
        size = self.draw.choice(SIZES)
        request = Request(
            size=Size.exactly(size),
            duration_seconds=self.draw.uniform(60, 1e5),
            model=self.draw.choice(MODELS),
            may_pack=True,
        )
        job_id = JobId(self.number)
        self.jobs[job_id] = Job(
            id=job_id,
            user="alice",
            request=request,
            submit_time=self.now,
            phase=Phase.QUEUED,
            may_start=True,
            may_move=True,
            may_migrate=not self.bound,
        )
        self.usage[job_id], self.profiles[job_id] = Usage(), Profile(peak_memory_bytes=30 << 30)
        self.changed.add(job_id)

    def leave(self) -> None:
        """One of the running jobs ends."""
        job_id = self.draw.choice(list(self.jobs))
        while not self.jobs[job_id].placement.gpus:
            job_id = self.draw.choice(list(self.jobs))
        job = self.jobs.pop(job_id)
        self.usage[job_id] = self.usage[job_id].stopped(self.now)
        self.changed |= {job_id, *job.placement.shares_with}
        for other in job.placement.shares_with:
            alone = replace(self.jobs[other].placement, shares_with=frozenset())
            self.jobs[other] = replace(self.jobs[other], placement=alone)

    def decide(self) -> list[float]:
        """Plans until nothing changes any more; returns what each took, in seconds."""
        taken: list[float] = []
        while True:
            changed = Changes(frozenset(self.changed), frozenset(), frozenset(self.solved), self.first)
            snapshot = Snapshot(
                time=self.now,
                nodes=self.nodes,
                jobs=dict(self.jobs),
                usage=dict(self.usage),
                profiles=self.profiles,
                rates=self.rates,
                solutions=self.solutions,
                changed=changed,
            )
            memory = Memory(self.common, self.notes)
            gc.collect()
            with collected_later():
                begin = time.process_time()
                plan = self.policy.plan(snapshot, memory)
                taken.append(time.process_time() - begin)
            self.first = False
            self.carry_out(plan)
            if not plan.targets and not self.solved and plan.wake_at > self.now:
                return taken

    def carry_out(self, plan: Plan) -> None:
        self.notes.update(plan.memory.jobs)
        self.common.update(plan.memory.common)
        self.changed = set(plan.targets)
        for name, problem in plan.problems.items():
            self.solver.submit(name, problem, lambda: None)
        self.solved = set(found := self.solver.take())
        self.solutions.update(found)
        for job_id, target in plan.targets.items():
            job, usage, placement = self.jobs[job_id], self.usage[job_id], target.placement
            if placement.gpus:
                if usage.since is None:
                    where = gpu_type(placement.gpus, self.nodes)
                    self.usage[job_id] = usage.started(self.now, len(placement.gpus), where)
                job = replace(job, phase=Phase.RUNNING, placement=placement, last=placement.gpus)
                self.jobs[job_id] = replace(job, promised=frozenset(), may_start=False, may_stop=True)
            elif usage.since is None:
                self.jobs[job_id] = replace(job, promised=placement.allocation)
            else:
                self.usage[job_id] = usage.stopped(self.now)
                phase = Phase.SUSPENDED if self.bound else Phase.QUEUED
                after = Placement(frozenset(), job.placement.allocation if self.bound else frozenset())
                last = job.last if self.bound else frozenset()
                self.jobs[job_id] = replace(
                    job, phase=phase, placement=after, last=last, may_start=True, may_stop=False
                )


def tried() -> Iterator[tuple[str, list[float]]]:
    """Results of the move pack, as it remembers them: every other pair of models gains."""
    for (one, first), (other, second) in combinations_with_replacement(enumerate(MODELS), 2):
        for size in sorted(set(SIZES)):
            yield f"pack {first} + {second} on 1 x {size} a100", [1.4 if (one + other) % 2 else 0.8, 0.0]


def _cards(name: str, model: str) -> tuple[Gpu, ...]:
    ids = (GpuId(name, ordinal) for ordinal in range(GPUS_PER_NODE))
    return tuple(Gpu(id=gpu, model=model, memory_bytes=80 << 30, shards=16) for gpu in ids)


def words(seconds: list[float]) -> str:
    """Median, 99th percentile, maximum, in milliseconds."""
    ordered = sorted(seconds)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return f"{ordered[len(ordered) // 2] * 1e3:.1f} / {p99 * 1e3:.1f} / {ordered[-1] * 1e3:.1f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=10000)
    parser.add_argument("--types", type=int, default=1, help="of GPUs")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="NAME")
    parser.add_argument("--moves", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--events", type=int, default=200, help="ordinary events")
    parser.add_argument("--worst", type=int, default=2, help="worst moments")
    options = parser.parse_args()
    table = Table(
        "policy",
        "jobs",
        "from nothing",
        "ordinary plan, CPU ms",
        "ordinary event in all",
        "worst moment, CPU ms",
        "plans then",
        title=f"One decision for {options.gpus:,} GPUs: median / p99 / max",
    )
    for name in options.policies:
        cluster = Cluster(
            PolicySettings(name=name, moves=options.moves, trials=PACK),
            options.gpus,
            bound=name == "gandiva",
            types=options.types,
        )
        first = cluster.decide()[0]
        ordinary: list[list[float]] = []
        for _ in range(options.events):
            cluster.now += 2.0
            cluster.leave()
            cluster.arrive()
            ordinary.append(cluster.decide())
        moments = []
        for _ in range(options.worst):
            cluster.now += WORST_SECONDS
            moments.append(cluster.decide())
        worst = [seconds for moment in moments for seconds in moment]
        plans = f"{len(worst) / max(1, len(moments)):.0f}"
        each, events = (
            words([taken for event in ordinary for taken in event]),
            words(list(map(sum, ordinary))),
        )
        row = (f"{first * 1e3:.0f} ms", each, events, words(worst), plans)
        table.add_row(name, f"{len(cluster.jobs):,}", *row)
        Console(stderr=True).print(name, *row)
    Console().print(table)


if __name__ == "__main__":
    main()
