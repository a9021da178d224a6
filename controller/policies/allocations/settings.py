# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the allocations: one table of the settings file each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from pydantic import model_validator

from controller.settings.base import Section, setting

Throughputs = Literal["aware", "agnostic"]
_DEADLINE = setting(30.0, "What computing an allocation may take; then it counts as failed.", gt=0, le=3600)


class AllocationSettings(Section):
    """What all allocations have."""

    throughputs: Throughputs = setting(
        "aware",
        "aware: by how fast each job is on each GPU type. agnostic: as if all types were equally fast.",
    )


class SolvedSettings(AllocationSettings):
    """What all allocations have that state an optimisation problem."""

    solver: Literal["clarabel", "highs"] = setting(
        "clarabel", "clarabel: the optimum that is central among equal ones. highs: for linear problems."
    )
    deadline_seconds: float = _DEADLINE


class SharingSettings(SolvedSettings):
    """What all allocations have that may put two jobs on one GPU."""

    space_sharing: bool = setting(
        False, "Two jobs may run on the same GPUs where together they do more than in turns."
    )

    @model_validator(mode="after")
    def _aware_of_pairs(self) -> Any:
        if self.space_sharing and self.throughputs == "agnostic":
            raise ValueError(
                'space_sharing needs throughputs = "aware": pairs are known by their throughputs'
            )
        return self


class KnownSettings(AllocationSettings):
    """What all allocations have that read how long jobs still take."""

    agnostic_type: str = setting(
        "",
        "With agnostic throughputs all types count as fast as this one. Empty, or where a job cannot run on "
        "it: as fast as the job's fastest.",
    )
    assumed_seconds: float = setting(
        86400.0,
        "How long a job that does not tell its remaining steps is taken to need on its fastest type.",
        gt=0,
        le=1e9,
    )


class GavelLasSettings(SharingSettings):
    """Gavel's max-min fairness (OSDI'20): the least share of all jobs is as large as it can be. A job's
    share is its throughput relative to an equal split of all types, times its GPUs, divided by its weight."""


class GavelFifoSettings(SharingSettings):
    """First come, first served: early jobs get their fastest types."""


class GavelSjfSettings(KnownSettings):
    """Shortest job first: the job with the least time left takes its fastest free type, then the next."""


class GavelMakespanSettings(SharingSettings, KnownSettings):
    """The last of the jobs ends as early as possible."""


class GavelFtfSettings(SharingSettings, KnownSettings):
    """Finish-time fairness (Themis): the largest ratio of a job's finish time to that on its own part of the
    cluster is as small as it can be."""

    solver: Literal["clarabel"] = setting("clarabel", "A solver for second-order cones.")


class GavelMaxThroughputSettings(SharingSettings):
    """The sum of all throughputs is as large as it can be."""

    normalised: bool = setting(
        False, "Count each job's throughput relative to its fastest type instead of in steps."
    )


class GavelCostSettings(GavelMaxThroughputSettings):
    """The most throughput per price of the GPUs in use."""


class GavelCostSloSettings(GavelCostSettings):
    """The same, while jobs with a deadline end in time."""


class GavelHierarchicalSettings(SharingSettings):
    """Water filling: max-min fairness between entities by their weights, and inside each between its jobs, or
    one after the other. What one cannot use goes to the others."""


class GavelStrategyProofSettings(AllocationSettings):
    """Max-min fairness (the Nash product) in which no job gains by lying about its throughputs: each gets
    less by what it costs the others."""

    deadline_seconds: float = _DEADLINE


class AlloxSettings(KnownSettings):
    """AlloX: the sum of completion times is the least. A job that has begun stays. It is for jobs of one
    GPU: in rounds others have GPUs that those leave."""

    considered_fraction: float = setting(
        1.0,
        "Only this part of the waiting jobs, the oldest, is considered; at least as many as free GPUs.",
        gt=0,
        le=1,
    )
    deadline_seconds: float = _DEADLINE


class IsolatedSettings(Section):
    """Each job has a part of the cluster to itself."""


class ProportionalSettings(Section):
    """Each job has the same part of every type's time."""


class GavelGandivaSettings(Section):
    """Gandiva as Gavel's evaluation has it: equal shares, and random pairs when there are too few GPUs."""

    seed: int = setting(0, "Which jobs are paired.", ge=0, le=2**31)


SETTINGS: Mapping[str, type[Section]] = {
    "allox": AlloxSettings,
    "gavel-cost": GavelCostSettings,
    "gavel-cost-slo": GavelCostSloSettings,
    "gavel-fifo": GavelFifoSettings,
    "gavel-ftf": GavelFtfSettings,
    "gavel-gandiva": GavelGandivaSettings,
    "gavel-hierarchical": GavelHierarchicalSettings,
    "gavel-las": GavelLasSettings,
    "gavel-makespan": GavelMakespanSettings,
    "gavel-max-throughput": GavelMaxThroughputSettings,
    "gavel-sjf": GavelSjfSettings,
    "gavel-strategy-proof": GavelStrategyProofSettings,
    "isolated": IsolatedSettings,
    "proportional": ProportionalSettings,
}
"""The settings of each allocation."""
ONE_GPU = ("allox",)
"""Allocations that take jobs of one GPU alone."""
READ_PREVIOUS = ("allox", "gavel-gandiva")
"""Allocations that keep parts of the one in force."""
READ_HISTORY = ("allox", "gavel-cost-slo", "gavel-ftf", "gavel-makespan", "gavel-sjf")
"""Allocations that read how far jobs are, or when they are to end."""

_NAME_TYPES = ("agnostic_type", "prices")
"""Keys, also of the rounds, whose values name GPU types."""


def named_types(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The GPU types that these settings name, each with its key. `settings`: their values by key, such as
    `prices` or `policy.allocation.prices`."""
    for key, named in settings.items():
        if key.rpartition(".")[2] in _NAME_TYPES:
            yield from ((key, name) for name in ([named] if isinstance(named, str) else named) if name)


def unknown_types(settings: Mapping[str, Any], types: Collection[str]) -> Iterator[str]:
    """A sentence about each type that these settings name and that is none of `types`."""
    for key, name in named_types(settings):
        if name not in types:
            yield f"{key}: {name!r} is none of the types {', '.join(sorted(types))}"
