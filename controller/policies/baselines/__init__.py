# SPDX-License-Identifier: GPL-2.0-or-later
"""What Tiresias is measured against. srtf and srsf need to know how long jobs take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.policies.baselines.policies import FifoSkip, Sjf, Srsf, Srtf
    from controller.policies.baselines.settings import (
        FifoSkipSettings,
        SjfSettings,
        SrsfSettings,
        SrtfSettings,
    )

_HOME = {
    "FifoSkip": "policies",
    "Sjf": "policies",
    "Srsf": "policies",
    "Srtf": "policies",
    "FifoSkipSettings": "settings",
    "SjfSettings": "settings",
    "SrsfSettings": "settings",
    "SrtfSettings": "settings",
}

__all__ = [
    "FifoSkip",
    "FifoSkipSettings",
    "Sjf",
    "SjfSettings",
    "Srsf",
    "SrsfSettings",
    "Srtf",
    "SrtfSettings",
]


def __getattr__(name: str) -> Any:
    """Resolved on first use: whoever reads settings needs the policies' settings, not the policies."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
