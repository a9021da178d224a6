# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings of all ways, `[policy.own]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from controller.settings.base import Section, setting


class WaySettings(Section):
    """Each way reads those that its policy has in Gavel."""

    round_seconds: float = setting(360.0, "Length of a round.", ge=1, le=86400)
    reset_seconds: float = setting(1920.0, "The least time between two allocations.", ge=0, le=1e6)
    type_order: list[str] = setting([], "Types are gone through in this order; others follow by name.")
    type_seed: int = setting(0, "How the order of types is drawn, where speeds are not known.", ge=0)
    duration_type: str = setting("", "Durations are for this type. Empty: for each job's fastest.")
    throughputs: Literal["aware", "agnostic"] = setting("aware", "As `policy.allocation.throughputs`.")
    agnostic_type: str = setting("", "Agnostic: all types are as fast as this one.")
    assumed_seconds: float = setting(86400.0, "Of a job that does not tell its steps.", gt=0)
    space_sharing: bool = setting(False, "Two jobs may run on the same GPUs.")
    pack_gain_ratio: float = setting(1.5, "First come: two jobs share GPUs where they gain more.", ge=1, le=2)
    normalised: bool = setting(False, "Sums count each job relative to its fastest type.")
    considered_fraction: float = setting(1.0, "AlloX: of the waiting jobs, the oldest.", gt=0, le=1)
    prices: dict[str, Annotated[float, Field(gt=0)]] = setting({}, "Of one GPU for an hour, by type.")
    seed: int = setting(0, "Which types or pairs are drawn.", ge=0)
    solver: Literal["ecos", "clarabel", "highs"] = setting("ecos", "The solver of the problems.")
