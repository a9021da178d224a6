# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast jobs go where: the one table that packing, its undo, growing and allocations read."""

from __future__ import annotations

import enum

from controller.model.value import value


@value
class Configuration:
    """The key of every throughput."""

    gpu_type: str
    gpus: int
    nodes: int = 1
    models_beside: tuple[str, ...] = ()
    """Models of the jobs on the same GPUs, sorted."""


class Provenance(str, enum.Enum):
    """Where a rate comes from."""

    MEASURED = "measured"
    DECLARED = "declared"
    ESTIMATED = "estimated"


@value
class Rate:
    """Samples per second in one configuration."""

    samples_per_second: float
    window_seconds: float = 0.0
    """How long it was measured."""
    measured_at: float = 0.0
    provenance: Provenance = Provenance.MEASURED
