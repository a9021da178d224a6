# SPDX-License-Identifier: GPL-2.0-or-later
"""Tiresias-G: in each queue by Gittins index, from what finished jobs took in all (SPEC 2.2-2.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from controller.model import Job, Note, Usage, value
from controller.policies.orders.attained import QueueRules, Queues, epoch_end_of, epoch_of, known_note
from controller.policies.orders.gittins_index import Distribution, SimulatorTable
from controller.policies.orders.order import Order, Rank, numbers

_REFIT_SHARE = 20
"""The distribution is made anew when one in so many samples is new: with it all ranks change."""


@value
class IndexRules:
    """What the settings say of the index."""

    mode: Literal["textbook", "tiresias-sim", "tiresias-sim-integer"] = "textbook"
    quantum: Literal["fixed", "sup", "queue"] = "fixed"
    quantum_gpu_seconds: float = 3250.0
    every_seconds: float = 60.0
    """How often ranks of running jobs are looked at while jobs wait. 0: with each plan."""
    learn: bool = True
    """Take the jobs that end into the distribution."""
    samples_kept: int = 1000
    samples_needed: int = 20
    """With fewer samples the order is that of the queues."""


class Gittins(Queues):
    """Queues with the index as the order inside them.

    Common memory: `learned` and `fitted`, GPU-seconds of finished jobs, and `unfitted`, how many of the
    learned are not in the fitted yet.
    """

    def __init__(
        self,
        rules: QueueRules,
        index: IndexRules,
        samples: Sequence[float] = (),
        fitted: Sequence[float] = (),
    ) -> None:
        """`samples`: GPU-seconds of finished jobs to begin with; `fitted`: of those learned since."""
        super().__init__(rules)
        self._index, self._samples, self._fitted = index, tuple(samples), tuple(fitted)
        sizes = [*self._samples, *self._fitted]
        if index.learn:
            sizes = sizes[-index.samples_kept :]
        self._enough = len(sizes) >= index.samples_needed
        self._distribution = Distribution(sizes)
        self._table: SimulatorTable | None = None
        if self._enough and index.mode != "textbook" and index.quantum != "sup":
            integer = index.mode == "tiresias-sim-integer"
            self._table = SimulatorTable(sizes, index.quantum_gpu_seconds, integer=integer)

    def index(self, served: float, queue: int) -> float:
        """The chance of finishing per unit of service spent on trying: the larger the earlier."""
        if self._table is not None:
            return self._table.index(served)
        if self._index.quantum == "sup":
            return self._distribution.supremum(served, whole_sizes=self._index.mode != "textbook")
        quantum, limits = self._index.quantum_gpu_seconds, self._rules.limits
        if self._index.quantum == "queue":
            quantum = limits[queue] if queue < len(limits) else math.inf
        return self._distribution.index(served, quantum)

    def epoch(self, now: float) -> float:
        return epoch_of(now, self._index.every_seconds) if self._enough else 0.0

    def epoch_end(self, now: float) -> float:
        return epoch_end_of(now, self._index.every_seconds) if self._enough else math.inf

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        if not self._enough:
            return super().rank(job, usage, note, now)
        known = known_note(note)
        at = now if usage.since is None else max(usage.since, self.epoch(now))
        served = max(0.0, round(self.served(job, usage, known, at), 6))
        return (known.queue, -self.index(served, known.queue), job.submit_time)

    def ended(self, common: Mapping[str, Any], usage: Usage, now: float) -> Mapping[str, Any]:
        served, rules = usage.served(now), self._index
        if not rules.learn or served <= 0:
            return common
        learned = [*numbers(common.get("learned")), served][-rules.samples_kept :]
        unfitted = int(sum(numbers([common.get("unfitted")]))) + 1
        if unfitted * _REFIT_SHARE >= len(learned):
            return {**common, "learned": learned, "fitted": learned, "unfitted": 0}
        return {**common, "learned": learned, "unfitted": unfitted}

    def recall(self, common: Mapping[str, Any]) -> Order:
        fitted = tuple(numbers(common.get("fitted")))
        if fitted == self._fitted:
            return self
        return Gittins(self._rules, self._index, self._samples, fitted)
