# SPDX-License-Identifier: GPL-2.0-or-later
"""What the Gandiva policy remembers from one plan to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from controller.model import GpuId, GpuSet


class Service(NamedTuple):
    """Service account of one job. What it received is a function of its run time, so that it does not
    matter how often it is looked at."""

    received: float
    """v: seconds on GPUs, divided by the job's weight, up to `at_run_seconds`."""
    at_run_seconds: float
    """How much of the job's run time is in `received` already."""
    weight: float
    """The weight at which it runs since then."""

    def at(self, run_seconds: float) -> float:
        """v when the job has run so long. Measured time, so that the delay of a suspend is charged to the
        job that caused it."""
        ran = run_seconds - self.at_run_seconds
        return self.received + ran / self.weight if ran > 0.0 else self.received


class Seat(NamedTuple):
    """A job that was assigned to a server by over-subscription and has not had its first turn."""

    nodes: tuple[str, ...]
    binding: tuple[tuple[str, int], ...]

    def gpus(self) -> GpuSet:
        """The binding it will get."""
        return frozenset(GpuId(node, ordinal) for node, ordinal in self.binding)


class State(Mapping[str, Any]):
    """The policy's memory, frozen. As a mapping it is plain JSON data, made only when somebody asks."""

    __slots__ = ("affinity", "seats", "service", "slice_start")

    def __init__(
        self,
        affinity: Mapping[str, int] | None = None,
        service: Mapping[int, Service] | None = None,
        seats: Mapping[int, Seat] | None = None,
        slice_start: Mapping[str, float] | None = None,
    ) -> None:
        self.affinity: Mapping[str, int] = affinity or {}
        self.service: Mapping[int, Service] = service or {}
        self.seats: Mapping[int, Seat] = seats or {}
        self.slice_start: Mapping[str, float] = slice_start or {}
        """When the current slice of each server began."""

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> State:
        """Memory of another policy or version counts as none: all of it can be rebuilt from the snapshot, at
        the price of one unfair slice."""
        if isinstance(raw, State):
            return raw
        if not raw:
            return cls()
        from controller.policies.gandiva.saved import read

        saved = read(raw)
        if saved is None:
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
