# SPDX-License-Identifier: GPL-2.0-or-later
"""The table [policy]: which policy plans, and one sub-table per policy.

To add a policy's settings add one line to `PolicySettings`: the field's name is the policy's name, its type
the policy's own model.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel

from controller.policies.fifo import FifoSettings
from controller.policies.gandiva.settings import GandivaSettings
from controller.settings.base import Section, setting


def _known(name: str) -> str:
    if name not in policy_names():
        raise ValueError("must be one of " + ", ".join(f'"{known}"' for known in policy_names()))
    return name


PolicyName = Annotated[str, AfterValidator(_known)]


class PolicySettings(Section):
    """The policy that decides which jobs run where."""

    name: PolicyName = setting("gandiva", "The policy in use: the name of one of the sub-tables.")
    fifo: FifoSettings = FifoSettings()
    gandiva: GandivaSettings = GandivaSettings()

    @property
    def chosen(self) -> BaseModel:
        """The settings of the policy in use."""
        section = getattr(self, self.name)
        assert isinstance(section, BaseModel)
        return section


def policy_names() -> tuple[str, ...]:
    """All policies that have settings here."""
    return tuple(name for name in PolicySettings.model_fields if name != "name")
