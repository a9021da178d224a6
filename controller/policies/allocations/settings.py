# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the allocations, and which of them reads what."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from pydantic import model_validator

from controller.settings.base import Section, setting


class AllocationSettings(Section):
    """Those of all allocations. What one does not read has no effect on it."""

    seed: int = setting(0, "Which jobs are paired.", ge=0, le=2**31)
    throughputs: Literal["aware", "agnostic"] = setting(
        "aware",
        "aware: by how fast each job is on each GPU type. agnostic: as if all types were equally fast.",
    )
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
    considered_fraction: float = setting(
        1.0,
        "Only this part of the waiting jobs, the oldest, is considered; at least as many as free GPUs.",
        gt=0,
        le=1,
    )
    deadline_seconds: float = setting(
        30.0, "What computing an allocation may take; then it counts as failed.", gt=0, le=3600
    )
    solver: Literal["clarabel", "highs"] = setting(
        "clarabel", "clarabel: the optimum that is central among equal ones. highs: for linear problems."
    )
    space_sharing: bool = setting(
        False, "Two jobs may run on the same GPUs where together they do more than in turns."
    )
    normalised: bool = setting(
        False, "Count each job's throughput relative to its fastest type instead of in steps."
    )

    @model_validator(mode="after")
    def _aware_of_pairs(self) -> Any:
        if self.space_sharing and self.throughputs == "agnostic":
            raise ValueError(
                'space_sharing needs throughputs = "aware": pairs are known by their throughputs'
            )
        return self


_SHARING = ("throughputs", "solver", "deadline_seconds", "space_sharing")
_KNOWN = ("throughputs", "agnostic_type", "assumed_seconds")
KEYS: Mapping[str, tuple[str, ...]] = {
    "allox": (*_KNOWN, "considered_fraction", "deadline_seconds"),
    "gavel-cost": (*_SHARING, "normalised"),
    "gavel-cost-slo": (*_SHARING, "normalised"),
    "gavel-fifo": _SHARING,
    "gavel-ftf": (*_KNOWN, *_SHARING[1:]),
    "gavel-gandiva": ("seed",),
    "gavel-hierarchical": _SHARING,
    "gavel-las": _SHARING,
    "gavel-makespan": (*_KNOWN, *_SHARING[1:]),
    "gavel-max-throughput": (*_SHARING, "normalised"),
    "gavel-sjf": _KNOWN,
    "gavel-strategy-proof": ("throughputs", "deadline_seconds"),
    "isolated": (),
    "proportional": (),
}
"""The allocations, and the settings that each reads."""
ONE_GPU = ("allox",)
"""Allocations that take jobs of one GPU alone."""
READ_PREVIOUS = ("allox", "gavel-gandiva")
"""Allocations that keep parts of the one in force."""
READ_HISTORY = ("allox", "gavel-cost-slo", "gavel-ftf", "gavel-makespan", "gavel-sjf")
"""Allocations that read how far jobs are, or when they are to end."""

_NAME_TYPES = ("agnostic_type", "prices")
"""Keys, also of the rounds, whose values name GPU types."""


def unsuitable(name: str, settings: AllocationSettings) -> str:
    """What of these settings this allocation cannot have; empty: nothing."""
    cones = name == "gavel-ftf" and settings.solver != "clarabel"
    return "solver: must be 'clarabel', which solves second-order cones," if cones else ""


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
