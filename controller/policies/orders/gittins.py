# SPDX-License-Identifier: GPL-2.0-or-later
"""Tiresias-G: in each queue by Gittins index, from what finished jobs took in all (SPEC 2.2-2.4)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from controller.model import Job, Note, Usage
from controller.policies.orders.gittins_index import Distribution, SimulatorTable
from controller.policies.orders.order import Order, Rank, numbers
from controller.policies.orders.queues import Queues, as_note
from controller.policies.settings import QueueSettings, TiresiasGittinsSettings

Sizes = Sequence[float]
_REFIT_SHARE = 20
"""The distribution is made anew when one in so many samples is new: with it all ranks change."""
_PREEMPTION_SHARE = 0.05
"""So much of the GPU time of a job may go into preempting it."""


class Gittins(Queues):
    """Queues with the index as the order inside them.

    Common memory: `learned` and `fitted`, GPU-seconds of finished jobs; of the learned those that came since
    the last fit are not in the fitted, and `unfitted` is how many.
    """

    def __init__(
        self, queues: QueueSettings, own: TiresiasGittinsSettings, samples: Sizes = (), fitted: Sizes = ()
    ) -> None:
        """`samples`: GPU-seconds of finished jobs to begin with; `fitted`: of those learned since."""
        super().__init__(queues)
        self._kept_seconds = own.preemption_seconds / _PREEMPTION_SHARE
        self._index, self._samples, self._fitted = own, tuple(samples), tuple(fitted)
        sizes = [*self._samples, *self._fitted]
        if kept := own.samples_kept:
            sizes = sizes[-kept:]
        self._enough = len(sizes) >= own.samples_needed
        self.epoch_seconds = queues.interval_seconds if self._enough else math.inf
        self._distribution = Distribution(sizes)
        self._table: SimulatorTable | None = None
        if self._enough and own.mode != "textbook" and own.quantum != "sup":
            integer = own.mode == "tiresias-sim-integer"
            self._table = SimulatorTable(sizes, own.quantum_gpu_seconds, integer=integer)

    def index(self, served: float, queue: int) -> float:
        """The chance of finishing per unit of service spent on trying: the larger the earlier."""
        if self._table is not None:
            return self._table.index(served)
        if self._index.quantum == "sup":
            return self._distribution.supremum(served, whole_sizes=self._index.mode != "textbook")
        quantum = self._index.quantum_gpu_seconds
        if self._index.quantum == "queue":
            quantum = self._limits[queue] if queue < len(self._limits) else math.inf
        return self._distribution.index(served, quantum)

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        if not self._enough:
            return super().rank(job, usage, note, now)
        known = as_note(note)
        at = now if usage.since is None else max(usage.since, self.epoch(now))
        if usage.since is not None and at - usage.since < self._kept_seconds:
            return (known.queue, -math.inf, job.submit_time)
        served = max(0.0, round(self.served(usage, known, at), 6))
        return (known.queue, -self.index(served, known.queue), job.submit_time)

    def ended(self, common: Mapping[str, Any], usage: Usage, now: float) -> Mapping[str, Any]:
        served, kept = usage.served(now), self._index.samples_kept
        if not kept or served <= 0:
            return common
        learned, fitted = numbers(common.get("learned")), numbers(common.get("fitted"))
        before = common.get("unfitted")
        unfitted = 1 + (before if isinstance(before, int) else 0)
        learned = [*learned, served][-kept:]
        if unfitted * _REFIT_SHARE >= len(learned):
            fitted, unfitted = learned, 0
        return {**common, "learned": learned, "fitted": fitted, "unfitted": unfitted}

    def recall(self, common: Mapping[str, Any]) -> Order:
        fitted = tuple(numbers(common.get("fitted")))
        if fitted == self._fitted:
            return self
        return Gittins(self._settings, self._index, self._samples, fitted)
