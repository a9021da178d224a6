# SPDX-License-Identifier: GPL-2.0-or-later
"""Gandiva's packing as Gavel's evaluation has it: random pairs with equal shares."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from controller.model import JobId
from controller.policies.allocations.allocation import Allocated, Jobs, Pair, Solve
from controller.policies.allocations.checked import as_fractions
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.solving import LaidOut

May: TypeAlias = Callable[[JobId, JobId], bool]
"""Whether two jobs may be a pair."""


class RandomPairs(LaidOut):
    """Equal shares of the cluster for all jobs. Where they want more GPUs than there are, jobs of the same
    size are paired at random, and pairs and the jobs left over have equal shares. A pair stays while both are
    there and do well together; the others are drawn anew each time."""

    def of(self, layout: Layout, solve: Solve) -> Allocated:
        keys: list[Jobs] = [(job.id,) for job in layout.jobs]
        if sum(job.gpus for job in layout.jobs) > sum(layout.workers(name) for name in layout.physical):
            keys = self._paired(layout)
        rows = {}
        for jobs in keys:
            gpus = layout.jobs[layout.index[jobs[0]]].gpus
            row = {name: layout.workers(name) / len(keys) / gpus for name in layout.physical}
            most = max(1.0, sum(row.values()))
            rows[jobs] = {
                name: fraction / most for name, fraction in row.items() if self.can(layout, jobs, name)
            }
        return Allocated(
            fractions=as_fractions(layout.given, rows), objective=float(len(keys)), status="random pairs"
        )

    def _paired(self, layout: Layout) -> list[Jobs]:
        pairs = {frozenset(pair.jobs): pair for pair in layout.given.pairs}
        keys: list[Jobs] = []
        for jobs, by_type in layout.given.previous.items():
            pair = pairs.get(frozenset(jobs)) if len(jobs) == 2 else None
            if pair and any(by_type.values()) and self.good(layout, pair):
                keys.append(pair.jobs)
        paired = {job for jobs in keys for job in jobs}
        waiting = [job.id for job in layout.jobs if job.id not in paired]
        draw = random.Random(f"{self._settings.seed}:{','.join(map(str, waiting))}")

        def may(one: JobId, other: JobId) -> bool:
            sizes = [layout.jobs[layout.index[job]].gpus for job in (one, other)]
            return sizes[0] == sizes[1] and frozenset((one, other)) in pairs

        for one, other in self.drawn(waiting, draw, may):
            keys.append(pairs[frozenset((one, other))].jobs)
            paired.update((one, other))
        return [*keys, *((job,) for job in waiting if job not in paired)]

    def good(self, layout: Layout, pair: Pair) -> bool:
        """Whether both do well enough together, each relative to its throughput alone, on some type."""
        return max(self.gains(layout, pair), default=0.0) >= 1.0

    def gains(self, layout: Layout, pair: Pair) -> list[float]:
        """By type where both can run: the sum of what they do together, each relative to that alone."""
        if not all(job in layout.index for job in pair.jobs):
            return []
        alone = [layout.jobs[layout.index[job]].throughput for job in pair.jobs]
        return [
            sum(rate / rates[name] for rate, rates in zip(both, alone, strict=True))
            for name, both in pair.throughput.items()
            if all(rates.get(name, 0.0) > 0 for rates in alone)
        ]

    def can(self, layout: Layout, jobs: Jobs, name: str) -> bool:
        """There is no time where the jobs make no progress."""
        if len(jobs) == 1:
            return name in layout.usable[layout.index[jobs[0]]]
        pair = next(pair for pair in layout.given.pairs if pair.jobs == jobs)
        return all(rate > 0 for rate in pair.throughput.get(name, (0.0, 0.0)))

    def drawn(self, jobs: Sequence[JobId], draw: random.Random, may: May) -> Iterator[tuple[JobId, JobId]]:
        """One job after the other with any of those left."""
        waiting = list(jobs)
        draw.shuffle(waiting)
        while waiting:
            job = waiting.pop()
            if others := [other for other in waiting if may(job, other)]:
                other = draw.choice(others)
                waiting.remove(other)
                yield job, other
