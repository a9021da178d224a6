# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast jobs go on each GPU type, as allocations are given it."""

from collections.abc import Mapping

from controller.model import Configuration, Rate, rate_key
from controller.policies.mechanisms.rounds.kinds import scattered
from controller.policies.mechanisms.rounds.member import Member

Table = Mapping[str, Mapping[Configuration, Rate]]
Together = Mapping[str, tuple[float, float]]
"""By GPU type: samples per second of each of two jobs."""


class Speeds:
    """One table of rates, as `Snapshot.rates` had it."""

    def __init__(self, rates: Table) -> None:
        self.rates = dict(rates)
        self._alone: dict[tuple[str, int, tuple[str, ...]], Mapping[str, float]] = {}
        self._scattered: dict[tuple[str, int], Mapping[str, tuple[int, float]]] = {}
        self._together: dict[int, dict[str, dict[str, Together]]] = {}

    def alone(self, member: Member) -> Mapping[str, float]:
        """Samples per second of the job alone, by the types that it may run on. A type that nothing is known
        of counts as fast as the fastest: that is found out soon. Where nothing is known of any, all are
        alike."""
        model, gpus, types = rate_key(member.job), member.gpus, member.types
        found = self._alone.get((model, gpus, types))
        if found is None:
            known = self._known(model, gpus)
            fastest = max(known.values(), default=1.0)
            known = {
                **known,
                **{scattered(t): rate for t, (_, rate) in self.on_more_nodes(model, gpus).items()},
            }
            found = self._alone[model, gpus, types] = {t: known.get(t, fastest) for t in types}
        return found

    def on_more_nodes(self, model: str, gpus: int) -> Mapping[str, tuple[int, float]]:
        """By GPU type: the least number of nodes that its rate alone is known on, and that on the next
        number. Types where it is known on one number only are left out."""
        found = self._scattered.get((model, gpus))
        if found is None:
            by_type: dict[str, dict[int, float]] = {}
            for where, rate in self.rates.get(model, {}).items():
                if where.gpus == gpus and not where.models_beside:
                    by_type.setdefault(where.gpu_type, {})[where.nodes] = rate.samples_per_second
            ordered = {t: sorted(on.items()) for t, on in by_type.items() if len(on) > 1}
            found = {t: (on[0][0], on[1][1]) for t, on in ordered.items()}
            self._scattered[model, gpus] = found
        return found

    def together(self, gpus: int) -> Mapping[str, Mapping[str, Together]]:
        """Samples per second of two jobs with so many GPUs on the same ones, by the names of both, then by
        type: first that of the first. Of those types where the rates of both are known, alone and beside the
        other."""
        found = self._together.get(gpus)
        if found is None:
            found = self._together[gpus] = {}
            beside = {
                (model, other): known
                for model in self.rates
                for other in sorted(self._partners(model, gpus))
                if (known := self._known(model, gpus, (other,)))
            }
            alone = {model: self._known(model, gpus) for pair in beside for model in pair}
            for (model, other), rates in beside.items():
                back = beside.get((other, model), {})
                types = back.keys() & alone[model].keys() & alone[other].keys()
                if both := {t: (rate, back[t]) for t, rate in rates.items() if t in types}:
                    found.setdefault(model, {})[other] = both
        return found

    def _partners(self, model: str, gpus: int) -> set[str]:
        """The models beside which its rate is known."""
        table = self.rates[model]
        return {w.models_beside[0] for w in table if w.gpus == gpus and len(w.models_beside) == 1}

    def _known(self, model: str, gpus: int, beside: tuple[str, ...] = ()) -> Mapping[str, float]:
        """By type, on as few nodes as is known."""
        found: dict[str, tuple[int, float]] = {}
        for where, rate in self.rates.get(model, {}).items():
            if where.gpus == gpus and where.models_beside == beside:
                known = found.get(where.gpu_type)
                if known is None or where.nodes < known[0]:
                    found[where.gpu_type] = (where.nodes, rate.samples_per_second)
        return {gpu_type: speed for gpu_type, (_, speed) in found.items()}
