# SPDX-License-Identifier: GPL-2.0-or-later
"""What operations on jobs take, by model, as they were measured."""

from collections.abc import Mapping
from statistics import median
from types import MappingProxyType
from typing import Any, Literal

from pydantic import TypeAdapter

from controller.model import Costs
from controller.observe.rates import MAX_MODELS

LAST = 9
"""A cost is the median of so many at most, the last ones."""
ANY_MODEL = ""

Kind = Literal["suspend", "restore", "start", "load", "checkpoint", "save"]
_KINDS: tuple[Kind, ...] = ("suspend", "restore", "start", "load", "checkpoint", "save")


class MeasuredCosts:
    """The table. `Costs` says what its parts are."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[Kind, list[float]]] = {}
        self._table: dict[str, Costs] = {}
        self.table: Mapping[str, Costs] = MappingProxyType(self._table)
        """By model; that of jobs of all models under ANY_MODEL."""
        self.version = 0

    def see(self, model: str | None, kind: Kind, seconds: float) -> None:
        """It took so long with a job of this model."""
        for name in {model or ANY_MODEL, ANY_MODEL}:
            known = self._seconds.pop(name, {})
            last = [*known.get(kind, [])[1 - LAST :], seconds]
            if last == known.get(kind):
                self._seconds[name] = known  # the one measured last
                continue
            known[kind] = last
            self._put(name, known)
            self.version += 1

    def _put(self, name: str, known: dict[Kind, list[float]]) -> None:
        if len(self._seconds) > MAX_MODELS:
            oldest = next(iter(self._seconds))
            del self._seconds[oldest], self._table[oldest]
        self._seconds[name] = known
        medians = {f"{kind}_seconds": median(last) for kind, last in known.items()}
        self._table[name] = Costs(**medians)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return {name: dict(known) for name, known in self._seconds.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Undo `dump`. Raises ValueError."""
        for name, known in TypeAdapter(dict[str, dict[str, list[float]]]).validate_python(saved).items():
            self._put(name, {kind: known[kind][-LAST:] for kind in _KINDS if known.get(kind)})
