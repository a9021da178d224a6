# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast the jobs of each model go, by configuration: what was measured, before what was declared, before
what is estimated."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from controller.model import Configuration, JobId, Provenance, Rate, of_one_job
from controller.observe.rate_meter import is_news

Table = Mapping[str, Mapping[Configuration, Rate]]
Stay = tuple[JobId, float]
"""A job, and since when it is in its configuration."""
_Measured = tuple[Rate, Stay | None, float | None]
"""A rate, the stay that was seen last, and the average of the stays before it."""
_Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Row = tuple[str, str, int, int, tuple[str, ...], _Speed, float, float, Provenance, int]

RENEW_SECONDS = 3600.0
"""A rate that is older is taken over all the same."""
MAX_MODELS = 1000
"""Users choose the names of models: of more than so many those measured longest ago are dropped."""
MAX_CONFIGURATIONS = 64
"""The same of the configurations of one model."""
SMOOTHING = 0.5
"""The part of a new stay in the exponential moving average of all stays (SPEC 3.5)."""
_WHERE = attrgetter("gpu_type", "gpus", "nodes", "models_beside")
RATE = attrgetter("samples_per_second", "window_seconds", "measured_at", "provenance", "mini_batches")
ESTIMATE_SECONDS = 300.0
"""Pairs are estimated anew so often at most."""
MAX_ESTIMATED_MODELS = 32
"""With more models pairs are not estimated: the effort grows with the square of their number."""


class Rates:
    """The table. `Rate` and `Configuration` say what its parts are."""

    def __init__(self) -> None:
        self._measured: dict[str, dict[Configuration, _Measured]] = {}
        """The model measured longest ago first."""
        self._declared: Table = {}
        self._estimated: Table = {}
        self._estimate_at: float | None = None
        """When pairs are to be estimated. None: nothing is new."""
        self._estimated_at = -math.inf
        self._table: dict[str, Mapping[Configuration, Rate]] = {}
        self.table: Table = MappingProxyType(self._table)
        """By model, as it is now."""

    def see(self, model: str, configuration: Configuration, rate: Rate, stay: Stay) -> bool:
        """A job of this model goes as fast as this. Whether the table says something else than before: the
        average over the stays of all such jobs, in which a later rate of one stay replaces an earlier one."""
        known, last, average = self._measured.get(model, {}).get(configuration, (None, None, None))
        if (
            known is not None
            and known.mini_batches >= rate.mini_batches
            and rate.measured_at - known.measured_at < RENEW_SECONDS
            and not is_news(rate.samples_per_second, known.samples_per_second)
        ):
            return False
        if stay != last:
            average = None if known is None else known.samples_per_second
        if average is not None:
            speed = SMOOTHING * rate.samples_per_second + (1 - SMOOTHING) * average
            rate = replace(rate, samples_per_second=speed)
        self._put(model, configuration, (rate, stay, average))
        return True

    def declare(self, table: Table) -> None:
        """What is assumed of configurations that were not measured, in place of what was declared before."""
        before, self._declared = self._declared, table
        self._estimate_at = self._estimated_at + ESTIMATE_SECONDS
        for model in {*before, *table}:
            self._show(model)

    def drop(self, model: str) -> None:
        """No job will have this key again."""
        if self._measured.pop(model, None) is not None:
            self._show(model)

    def _put(self, model: str, configuration: Configuration, measured: _Measured) -> None:
        known = self._measured.pop(model, {})
        known.pop(configuration, None)
        if len(known) >= MAX_CONFIGURATIONS:
            del known[next(iter(known))]
        known[configuration] = measured
        if self._estimate_at is None:
            self._estimate_at = self._estimated_at + ESTIMATE_SECONDS
        is_new = model not in self._table
        self._measured[model] = known
        if is_new and not of_one_job(model) and len(self._measured) > MAX_MODELS:
            named = [name for name in self._measured if not of_one_job(name)]
            for oldest in named[: max(0, len(named) - MAX_MODELS)]:
                self.drop(oldest)
        self._show(model)

    def estimate(self, now: float) -> None:
        """Estimate the pairs that never ran, where something is new and it was not done just before."""
        if self._estimate_at is None or now < self._estimate_at:
            return
        self._estimate_at, self._estimated_at = None, now
        before, known = self._estimated, self.known()
        self._estimated = {}
        some = any(where.models_beside for rates in known.values() for where in rates)
        if some and len(known) <= MAX_ESTIMATED_MODELS:
            try:
                from controller.observe.estimates import estimated  # NumPy takes a while to load
            except ImportError:
                return  # A simulation with the client's packages alone has no NumPy.
            self._estimated = estimated(known)
        for model in {*before, *self._estimated}:
            self._show(model)

    def known(self) -> dict[str, dict[Configuration, Rate]]:
        """What was measured or declared of models; nothing of jobs without one."""
        return {
            model: {**self._declared.get(model, {}), **self._rates(model)}
            for model in {*self._declared, *self._measured}
            if not of_one_job(model)
        }

    def _rates(self, model: str) -> dict[Configuration, Rate]:
        return {where: rate for where, (rate, _, _) in self._measured.get(model, {}).items()}

    def _show(self, model: str) -> None:
        estimates, declared = self._estimated.get(model, {}), self._declared.get(model, {})
        rates = {**estimates, **declared, **self._rates(model)}
        if rates:
            self._table[model] = MappingProxyType(rates)
        else:
            self._table.pop(model, None)

    def dump(self) -> list[Any]:
        """What was measured of models, as JSON."""
        return [
            [model, *_WHERE(where), *RATE(rate)]
            for model in self._measured
            if not of_one_job(model)
            for where, rate in self._rates(model).items()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        """Undo `dump`. Earlier releases wrote no number of mini-batches. Raises ValueError, TypeError."""
        found = TypeAdapter(list[_Row]).validate_python([[*row, 0][:10] for row in rows])
        for model, gpu_type, gpus, nodes, beside, speed, seconds, measured_at, provenance, number in found:
            rate = Rate(speed, seconds, measured_at, provenance, number)
            self._put(model, Configuration(gpu_type, gpus, nodes, beside), (rate, None, None))
