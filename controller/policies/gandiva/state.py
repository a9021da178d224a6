# SPDX-License-Identifier: GPL-2.0-or-later
"""What the Gandiva policy remembers from one plan to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.model import GpuId, GpuSet


class Service(NamedTuple):
    """Service account of one job."""

    slices: float
    """v: slices received so far, divided by the job's weight."""
    seen_run_seconds: float
    """How much of the job's run time is in `slices` already."""


class Seat(NamedTuple):
    """A job that was assigned to a server by over-subscription and has not had its first turn."""

    nodes: tuple[str, ...]
    binding: tuple[tuple[str, int], ...]

    def gpus(self) -> GpuSet:
        """The binding it will get."""
        return frozenset(GpuId(node, ordinal) for node, ordinal in self.binding)


class _Saved(BaseModel):
    """The same as JSON, for a memory that comes from a file."""

    model_config = ConfigDict(extra="forbid")

    affinity: dict[str, int] = Field(default_factory=dict)
    service: dict[int, Service] = Field(default_factory=dict)
    seats: dict[int, Seat] = Field(default_factory=dict)
    slice_start: dict[str, float] = Field(default_factory=dict)


class State(Mapping[str, Any]):
    """The policy's memory. As a mapping it is plain JSON data, made only when somebody asks for it."""

    __slots__ = ("affinity", "seats", "service", "slice_start")

    def __init__(
        self,
        affinity: Mapping[str, int] | None = None,
        service: Mapping[int, Service] | None = None,
        seats: Mapping[int, Seat] | None = None,
        slice_start: Mapping[str, float] | None = None,
    ) -> None:
        self.affinity = dict(affinity or {})
        self.service = dict(service or {})
        self.seats = dict(seats or {})
        self.slice_start = dict(slice_start or {})
        """When the current slice of each server began."""

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> State:
        """A copy to work on. Memory of another policy or version counts as none: all of it can be rebuilt
        from the snapshot, at the price of one unfair slice."""
        if isinstance(raw, State):
            return cls(raw.affinity, raw.service, raw.seats, raw.slice_start)
        try:
            saved = _Saved.model_validate(dict(raw))
        except ValidationError:
            return cls()
        return cls(saved.affinity, saved.service, saved.seats, saved.slice_start)

    def __getitem__(self, key: str) -> Any:
        match key:
            case "affinity":
                return dict(self.affinity)
            case "service":
                return {str(job_id): list(service) for job_id, service in self.service.items()}
            case "seats":
                return {
                    str(job_id): [list(seat.nodes), [list(gpu) for gpu in seat.binding]]
                    for job_id, seat in self.seats.items()
                }
            case "slice_start":
                return dict(self.slice_start)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(("affinity", "service", "seats", "slice_start"))

    def __len__(self) -> int:
        return 4
