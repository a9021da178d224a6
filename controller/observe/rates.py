# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast the jobs of each model go, by configuration, as their ranks report it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from controller.model import Configuration, Provenance, Rate
from controller.nodes.protocol import RankSample

STEP_FRACTION = 0.05
"""A rate that differs by less from the known one is not taken over."""


class Rates:
    """The table. `Rate` and `Configuration` say what its parts are."""

    def __init__(self) -> None:
        self._rates: dict[str, Mapping[Configuration, Rate]] = {}

    @property
    def table(self) -> Mapping[str, Mapping[Configuration, Rate]]:
        """By model, as it is now: later changes make another one."""
        return MappingProxyType(self._rates)

    def see(
        self, model: str, configuration: Configuration, ranks: Iterable[RankSample], since: float, now: float
    ) -> bool:
        """A job of this model has run in this configuration since then. Whether that changed the table."""
        speed = samples_per_second(ranks)
        if not speed:
            return False
        known = self._rates.get(model, {})
        before = known.get(configuration)
        if before is not None and abs(speed / before.samples_per_second - 1) < STEP_FRACTION:
            return False
        self._put(model, configuration, Rate(speed, now - since, now))
        return True

    def _put(self, model: str, configuration: Configuration, rate: Rate) -> None:
        table = MappingProxyType({**self._rates.get(model, {}), configuration: rate})
        self._rates = {**self._rates, model: table}

    def dump(self) -> list[Any]:
        """As JSON."""
        return [
            [
                model,
                where.gpu_type,
                where.gpus,
                where.nodes,
                list(where.models_beside),
                rate.samples_per_second,
                rate.window_seconds,
                rate.measured_at,
                rate.provenance.value,
            ]
            for model, table in self._rates.items()
            for where, rate in table.items()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        """Undo `dump`. Raises ValueError, TypeError."""
        for model, gpu_type, gpus, nodes, beside, speed, window_seconds, measured_at, provenance in rows:
            configuration = Configuration(str(gpu_type), int(gpus), int(nodes), tuple(map(str, beside)))
            rate = Rate(float(speed), float(window_seconds), float(measured_at), Provenance(provenance))
            self._put(str(model), configuration, rate)


def samples_per_second(ranks: Iterable[RankSample]) -> float | None:
    """Of the whole job: the slowest rank sets the pace. A job that does not say how many samples a step has
    counts steps."""
    samples, steps, step_seconds = 0.0, 0, 0.0
    for rank in ranks:
        samples += rank.samples_done
        steps = max(steps, rank.steps_done)
        step_seconds = max(step_seconds, rank.step_seconds)
    if not step_seconds:
        return None
    return (samples / steps if samples and steps else 1.0) / step_seconds
