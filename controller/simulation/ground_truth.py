# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast jobs really are in a simulation: by GPU type, size of the gang, placement and co-location.

What a policy knows of it is what it measures, as on a real cluster.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from controller.errors import GandivaError
from controller.settings.base import key_twice, read_file, wrong

MIB = 2**20

# Tensor sizes (MiB: largest, whole model) and speed on scattered GPUs relative to consolidated ones, from
# Tiresias (NSDI'19), table 6 and figure 3 (read off a bar chart).
MODELS: Mapping[str, tuple[float, float, float]] = {
    "vgg19": (392, 548.1, 0.72),
    "vgg16": (392, 527.8, 0.73),
    "vgg11": (392, 506.8, 0.77),
    "alexnet": (144, 235.9, 0.80),
    "resnet152": (9, 230.2, 1.0),
    "resnet101": (9, 170.4, 1.0),
    "resnet50": (9, 97.7, 1.0),
    "inception4": (5.9, 162.9, 1.0),
    "inception3": (7.8, 91.0, 1.0),
    "googlenet": (3.9, 26.7, 1.0),
}


@lru_cache(maxsize=4096)
def tensor_bytes(model: str) -> tuple[int, int]:
    """Largest tensor and whole model of a known model; (0, 0) of others."""
    largest, whole, _ = MODELS.get(model.lower(), (0.0, 0.0, 1.0))
    return int(largest * MIB), int(whole * MIB)


_Rate = Annotated[float, Field(ge=0, lt=1e12)]
"""In steps per second."""
MOST_BYTES = 1 << 28
_MUST_BE = "must be a rate from 0 to below 1e12, or two beside another job"
_TABLE = TypeAdapter(dict[str, dict[str, dict[str, _Rate | tuple[_Rate, _Rate]]]])


@dataclass(frozen=True)
class Throughputs:
    """Steps per second, in Gavel's format: type -> "('model', gang)" -> "null" -> rate alone, or another
    "('model', gang)" -> [own rate, the other's rate] when both share the GPUs. A type `x_unconsolidated`
    holds the rates of gangs on scattered GPUs of type `x`."""

    alone: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    shared: Mapping[tuple[str, str, int, str, int], float] = field(default_factory=dict)
    """While another job is on the same GPUs: its model and gang are the last two."""

    def rate(self, gpu_type: str, model: str, gang: int, *, spread: bool = False) -> float | None:
        """Steps per second of the whole gang; None: the table does not say."""
        dense = self.alone.get((gpu_type, model, gang))
        return self.alone.get((f"{gpu_type}_unconsolidated", model, gang), dense) if spread else dense


def read_throughputs(path: Path) -> Throughputs:
    """Raises GandivaError: the file cannot be read, or is no such table."""
    raw = read_file(path, MOST_BYTES, GandivaError)
    try:
        table = _TABLE.validate_json(raw, strict=True)
        again = key_twice(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = first["loc"][:3]  # what follows is which kind of rate was tried
        said = wrong(first) if len(place) < 3 else _MUST_BE
        raise GandivaError(f"{path}: {''.join(f'{part}: ' for part in place)}{said}") from None
    if again:
        raise GandivaError(f"{path}: {again}")
    alone: dict[tuple[str, str, int], float] = {}
    shared: dict[tuple[str, str, int, str, int], float] = {}
    for gpu_type, jobs in table.items():
        for name, rates in jobs.items():
            model, gang = _job(path, name)
            for other, value in rates.items():
                at = f"{path}: {gpu_type}: {name}: {other}"
                key = (model, gang) if other == "null" else (model, gang, *_job(path, other))
                if (gpu_type, *key) in (alone if other == "null" else shared):
                    raise GandivaError(f"{at}: is there twice")
                if other == "null" and isinstance(value, float):
                    alone[gpu_type, model, gang] = value
                elif other != "null" and isinstance(value, tuple):
                    other_model, other_gang = _job(path, other)
                    shared[gpu_type, model, gang, other_model, other_gang] = value[0]
                else:
                    raise GandivaError(
                        f"{at}: {'one rate is' if other == 'null' else 'two rates are'} wanted"
                    )
    return Throughputs(alone, shared)


def _job(path: Path, name: str) -> tuple[str, int]:
    try:
        model, gang = ast.literal_eval(name)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        model, gang = None, None
    if not isinstance(model, str) or not isinstance(gang, int) or gang < 1:
        raise GandivaError(f"{path}: {name[:60]!r} is not of the form \"('model', 2)\"")
    return model, gang


@dataclass(frozen=True)
class GroundTruth:
    """Speed relative to the GPUs that durations are measured on."""

    throughputs: Throughputs
    reference_type: str
    placement_matters: bool = True
    doubling_ratio: float = 2.0
    """How much faster a job is with twice the GPUs, where the table does not know it."""

    def steps_per_second(self, model: str, gang: int) -> float | None:
        """Mini-batches, alone on the reference type; None: unknown there."""
        return self.throughputs.rate(self.reference_type, model, gang)

    def relative_rate(
        self,
        model: str,
        gang: int,
        gpu_type: str,
        *,
        spread: bool,
        beside: Sequence[tuple[str, int]] = (),
        size: int | None = None,
    ) -> float:
        """1 on the reference type, alone, on as few nodes as possible, with as many GPUs as it asked for. 0:
        it makes no progress there.

        `spread`: on more nodes than its size needs. `beside`: models and sizes of the jobs on the same GPUs.
        `size`: its GPUs, where they are not `gang`, those that it asked for.
        """
        spread = spread and self.placement_matters
        known = self.steps_per_second(model, gang)
        if size is not None and size != gang:
            if known and (resized := self.throughputs.rate(gpu_type, model, size, spread=spread)):
                return resized / known
            as_asked = self.relative_rate(model, gang, gpu_type, spread=spread)
            return as_asked * math.pow(self.doubling_ratio, math.log2(size / gang))
        if not known:
            # No table, or not in it: types do not differ, jobs on the same GPUs get equal parts of them.
            factor = MODELS.get(model.lower(), (0, 0, 1.0))[2] if spread else 1.0
            return factor / (1 + len(beside))
        alone = self.throughputs.rate(gpu_type, model, gang, spread=spread)
        if not alone:
            return 0.0
        # Pairs that were not measured have rates of 0: jobs on the same GPUs get equal parts of them.
        pairs = [
            self.throughputs.shared.get((gpu_type, model, gang, *other)) or alone / 2 for other in beside
        ]
        # The table knows pairs only: each of several jobs takes its part of what the others leave.
        return math.prod(pair / alone for pair in pairs) * alone / known
