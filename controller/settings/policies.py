# SPDX-License-Identifier: GPL-2.0-or-later
"""The table [policy]: which policy plans, which moves follow it, and one sub-table per preset.

To add a preset's settings add one line to `PolicySettings`: the field's name is the preset's name (with
underscores for dashes), its type the preset's own model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from controller.policies.settings import (
    MOVE_NAMES,
    FifoSettings,
    FifoSkipSettings,
    GandivaSettings,
    SjfSettings,
    SrsfSettings,
    SrtfSettings,
    TiresiasGittinsSettings,
    TiresiasLasSettings,
)
from controller.policies.site import ALLOWED, is_site_part
from controller.settings.base import Section, setting, table


def _known(names: Callable[[], Iterable[str]]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names() and not is_site_part(name):
            raise ValueError("must be one of " + ", ".join(f'"{one}"' for one in names()) + f", or {ALLOWED}")
        return name

    return AfterValidator(check)


PolicyName = Annotated[str, _known(lambda: policy_names())]
MoveName = Annotated[str, _known(lambda: MOVE_NAMES)]


class PolicySettings(Section):
    """The policy that decides which jobs run where."""

    name: PolicyName = setting(
        "gandiva",
        "The policy in use: the name of one of the sub-tables, or a site's own, such as "
        '"/etc/gandiva/mine.py:MyOrder" (docs/own-policies.md).',
    )
    moves: list[MoveName] = setting(
        [],
        "Moves that follow the policy's decision, in this order. pack: two jobs that both allow it "
        "(--gandiva-pack=yes) share GPUs when their memory fits together. A site's own are named as the "
        "policy is.",
        max_length=16,
    )
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
        """`[policy.tiresias-las]` is the table of the preset of that name, too."""
        if not isinstance(values, dict):
            return values
        named = {key.replace("-", "_") if isinstance(key, str) else key: v for key, v in values.items()}
        if len(named) < len(values):
            twice = next(key for key in values if key not in named)
            raise ValueError(f'has the table "{twice}" twice, with dashes and with underscores')
        return named

    @property
    def chosen(self) -> Section | None:
        """The settings of the preset in use. None: a site's own policy, which has none here."""
        if self.name not in policy_names():
            return None
        section = getattr(self, self.name.replace("-", "_"))
        assert isinstance(section, Section)
        return section


def policy_names() -> tuple[str, ...]:
    return tuple(
        name.replace("_", "-") for name in PolicySettings.model_fields if name not in ("name", "moves")
    )
