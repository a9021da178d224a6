# SPDX-License-Identifier: GPL-2.0-or-later
"""What an allocation is given, what it asks of a solver, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from controller.errors import GandivaError
from controller.model import JobId
from controller.model.solving import ProblemKind
from controller.model.value import empty, value

if TYPE_CHECKING:
    from controller.solver.problem_data import Found

Jobs: TypeAlias = tuple[JobId, ...]
"""Jobs that run together: one, or the two of a pair."""
Fractions: TypeAlias = Mapping[Jobs, Mapping[str, float]]
"""By jobs and GPU type: the fraction of the time that they run there, from 0 to 1."""


class AllocationError(GandivaError):
    """There is no allocation: what was given is wrong, or the solver's answer is no use. It says which."""


@value(kw_only=True)
class AllocationJob:
    """One job that wants GPUs, also one that has them now."""

    id: JobId
    gpus: int = 1
    """Size of the gang: it runs with all or not at all."""
    weight: float = 1.0
    throughput: Mapping[str, float] = field(default_factory=empty)
    """Steps per second of the whole gang, by GPU type. Absent or 0: it cannot run there."""
    steps_left: float | None = None
    """None: unknown."""
    seconds_so_far: float = 0.0
    """Since its arrival."""
    isolated_seconds: float | None = None
    """What its steps until now would have taken on its share of the cluster. None: as it follows from
    `steps_done`, else as `seconds_so_far`."""
    steps_done: float | None = None
    """Until now, where that is known."""
    slo_seconds_left: float | None = None
    """It is to end in so many seconds. None: it has no deadline."""
    arrival: float = 0.0
    """Unix time, seconds."""
    entity: str = ""
    """The user or account that it belongs to: the name of one of the `entities`."""


@value
class Pair:
    """Two jobs of the same size on the same GPUs."""

    jobs: tuple[JobId, JobId]
    throughput: Mapping[str, tuple[float, float]]
    """Steps per second of each, by GPU type. Absent or 0: they cannot run there together."""


Inside: TypeAlias = Literal["fairness", "fifo"]
"""How jobs of one entity share: by their weights, or one after the other by arrival."""


@value
class Entity:
    """A user or account whose jobs share its part."""

    name: str
    weight: float = 1.0
    policy: Inside = "fairness"


@value(kw_only=True)
class Given:
    """One problem: jobs and GPUs."""

    types: tuple[str, ...]
    workers: Mapping[str, int]
    """GPUs by type."""
    prices: Mapping[str, float] = field(default_factory=empty)
    """Of one GPU for an hour, by type."""
    jobs: tuple[AllocationJob, ...]
    pairs: tuple[Pair, ...] = ()
    entities: tuple[Entity, ...] = ()
    draws_on: Mapping[str, str] = field(default_factory=empty)
    """By virtual type: the type whose GPUs it uses. `v100_unconsolidated: v100` states how fast a gang is on
    GPUs of several nodes; its `workers` do not count."""
    previous: Fractions = field(default_factory=empty)
    """The allocation in force. Some allocations keep parts of it."""
    identity: str = ""
    """Tells it from all others, and from itself when it is stated again. Empty: its content does."""

    @property
    def keys(self) -> list[Jobs]:
        """All jobs, then all pairs."""
        return [*((job.id,) for job in self.jobs), *(pair.jobs for pair in self.pairs)]


@value(kw_only=True)
class Allocated:
    """The answer."""

    fractions: Fractions
    """For each job and each pair that may run, by every type. A pair's time is not in that of its jobs."""
    objective: float
    """What the allocation optimises, in its own unit."""
    status: str
    """`optimal`, or in which way it is less than that."""


Solve: TypeAlias = "Callable[[ProblemKind, Mapping[str, Any]], Found]"
"""Solves a problem of this kind at once, from its data."""


class Allocation(Protocol):
    """An allocation policy. It is pure: neither clock nor I/O."""

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        """The answer. Raises AllocationError."""
