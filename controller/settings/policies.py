# SPDX-License-Identifier: GPL-2.0-or-later
"""The table [policy]: which policy plans, and one sub-table per policy.

To add a policy's settings add one line to `PolicySettings`: the field's name is the policy's name (with
underscores for dashes), its type the policy's own model.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, model_validator

from controller.policies.settings import (
    FifoSettings,
    FifoSkipSettings,
    GandivaSettings,
    SjfSettings,
    SrsfSettings,
    SrtfSettings,
    TiresiasGittinsSettings,
    TiresiasLasSettings,
)
from controller.settings.base import Section, setting, table


def _known(name: str) -> str:
    if name not in policy_names():
        raise ValueError("must be one of " + ", ".join(f'"{known}"' for known in policy_names()))
    return name


PolicyName = Annotated[str, AfterValidator(_known)]


class PolicySettings(Section):
    """The policy that decides which jobs run where."""

    name: PolicyName = setting("gandiva", "The policy in use: the name of one of the sub-tables.")
    fifo: FifoSettings = table()
    gandiva: GandivaSettings = table()
    tiresias_las: TiresiasLasSettings = table()
    tiresias_gittins: TiresiasGittinsSettings = table()
    fifo_skip: FifoSkipSettings = table()
    sjf: SjfSettings = table()
    srtf: SrtfSettings = table()
    srsf: SrsfSettings = table()

    @model_validator(mode="before")
    @classmethod
    def _dashes(cls, values: Any) -> Any:
        """`[policy.tiresias-las]` is the table of the policy of that name, too."""
        if not isinstance(values, dict):
            return values
        named = {key.replace("-", "_") if isinstance(key, str) else key: v for key, v in values.items()}
        if len(named) < len(values):
            twice = next(key for key in values if key not in named)
            raise ValueError(f'has the table "{twice}" twice, with dashes and with underscores')
        return named

    @property
    def chosen(self) -> BaseModel:
        """The settings of the policy in use."""
        section = getattr(self, self.name.replace("-", "_"))
        assert isinstance(section, BaseModel)
        return section


def policy_names() -> tuple[str, ...]:
    """All policies that have settings here."""
    return tuple(name.replace("_", "-") for name in PolicySettings.model_fields if name != "name")
