# SPDX-License-Identifier: GPL-2.0-or-later
"""What the Gandiva policy remembers from one plan to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.model import GpuId, GpuSet


class Service(BaseModel):
    """Service account of one job."""

    model_config = ConfigDict(extra="forbid")

    slices: float
    """v: slices received so far, divided by the job's weight."""
    seen_run_seconds: float
    """How much of the job's run time is in `slices` already."""


class Seat(BaseModel):
    """A job that was assigned to a server by over-subscription and has not had its first turn."""

    model_config = ConfigDict(extra="forbid")

    nodes: tuple[str, ...]
    binding: tuple[tuple[str, int], ...]

    def gpus(self) -> GpuSet:
        """The binding it will get."""
        return frozenset(GpuId(node, ordinal) for node, ordinal in self.binding)


class State(BaseModel):
    """JSON-serialisable memory of the policy."""

    model_config = ConfigDict(extra="forbid")

    affinity: dict[str, int] = Field(default_factory=dict)
    service: dict[int, Service] = Field(default_factory=dict)
    seats: dict[int, Seat] = Field(default_factory=dict)
    slice_start: dict[str, float] = Field(default_factory=dict)
    """When the current slice of each server began."""

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> State:
        """From what `dump` gave. Memory of another policy or version counts as none: all of it can be
        rebuilt from the snapshot, at the price of one unfair slice."""
        try:
            return cls.model_validate(dict(raw))
        except ValidationError:
            return cls()

    def dump(self) -> dict[str, Any]:
        """As plain JSON data."""
        return self.model_dump(mode="json")
