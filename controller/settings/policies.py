# SPDX-License-Identifier: GPL-2.0-or-later
"""The table [policy]: which policy plans, and one sub-table per policy.

To add a policy's settings add one line to `PolicySettings`: the field's name is the policy's name, its type
the policy's own `Section`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from controller.settings.base import Section, setting


class FifoPolicySettings(Section):
    """First come, first served on whole GPUs, as stock Slurm would: nothing to set."""


class GandivaPolicySettings(Section):
    """Affinity placement and weighted fair time-slicing (OSDI'18)."""

    slice_seconds: float = setting(
        60.0,
        "Length of a time slice. Long enough that a switch (a mini-batch, the copy of the GPU state and two "
        "calls to Slurm) is a small part of it.",
        ge=0.5,
        le=86400,
    )
    max_jobs_per_gpu: int = setting(
        4,
        "How many jobs may take turns on one GPU; more wait in the queue. Slurm's shard count per GPU "
        "(the over-subscription depth) is a second limit.",
        ge=1,
        le=64,
    )
    priority_by_qos: dict[str, Annotated[int, Field(ge=-1000, le=1000)]] = setting(
        {},
        "Priority class per Slurm QOS; a QOS that is not named has class 0. A job is never suspended for "
        "one of a lower class.",
    )


def _known(name: str) -> str:
    if name not in policy_names():
        raise ValueError("must be one of " + ", ".join(f'"{known}"' for known in policy_names()))
    return name


PolicyName = Annotated[str, AfterValidator(_known)]


class PolicySettings(Section):
    """The policy that decides which jobs run where."""

    name: PolicyName = setting("gandiva", "The policy in use: the name of one of the sub-tables.")
    fifo: FifoPolicySettings = FifoPolicySettings()
    gandiva: GandivaPolicySettings = GandivaPolicySettings()

    @property
    def chosen(self) -> Section:
        """The settings of the policy in use."""
        section = getattr(self, self.name)
        assert isinstance(section, Section)
        return section


def policy_names() -> tuple[str, ...]:
    """All policies that have settings here."""
    return tuple(name for name in PolicySettings.model_fields if name != "name")
