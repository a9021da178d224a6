# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast jobs go on each GPU type, as allocations are given it."""

from __future__ import annotations

from collections.abc import Mapping

from controller.model import Configuration, Rate, rate_key
from controller.policies.mechanisms.rounds.member import Member

Table = Mapping[str, Mapping[Configuration, Rate]]


class Speeds:
    """One table of rates, as `Snapshot.rates` had it."""

    def __init__(self, rates: Table) -> None:
        self._rates = dict(rates)
        self._alone: dict[tuple[str, int, tuple[str, ...]], Mapping[str, float]] = {}

    def same(self, rates: Table) -> bool:
        """Whether this is the table."""
        return self._rates == rates

    def alone(self, member: Member) -> Mapping[str, float]:
        """Samples per second of the job alone, by the types that it may run on. A type that nothing is known
        of counts as fast as the fastest: that is found out soon. Where nothing is known of any, all are
        alike."""
        model, gpus, types = rate_key(member.job), member.job.gpus, member.types
        found = self._alone.get((model, gpus, types))
        if found is None:
            known = self._known(model, gpus)
            fastest = max(known.values(), default=1.0)
            found = self._alone[model, gpus, types] = {t: known.get(t, fastest) for t in types}
        return found

    def _known(self, model: str, gpus: int) -> Mapping[str, float]:
        """By type, on as few nodes as is known."""
        found: dict[str, tuple[int, float]] = {}
        for where, rate in self._rates.get(model, {}).items():
            if where.gpus == gpus and not where.models_beside:
                known = found.get(where.gpu_type)
                if known is None or where.nodes < known[0]:
                    found[where.gpu_type] = (where.nodes, rate.samples_per_second)
        return {gpu_type: speed for gpu_type, (_, speed) in found.items()}
