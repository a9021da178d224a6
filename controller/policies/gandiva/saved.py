# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy's memory as JSON, for one that comes from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.policies.gandiva.state import Seat, Service


class Saved(BaseModel):
    """`State`, checked."""

    model_config = ConfigDict(extra="forbid")

    affinity: dict[str, int] = Field(default_factory=dict)
    service: dict[int, Service] = Field(default_factory=dict)
    seats: dict[int, Seat] = Field(default_factory=dict)
    slice_start: dict[str, float] = Field(default_factory=dict)


def read(raw: Mapping[str, Any]) -> Saved | None:
    """None: it is not of this policy and version."""
    try:
        return Saved.model_validate(dict(raw))
    except ValidationError:
        return None
