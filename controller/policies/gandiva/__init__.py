# SPDX-License-Identifier: GPL-2.0-or-later
"""The Gandiva policy (OSDI'18): early feedback by over-subscription and fair time-slicing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.policies.gandiva.policy import Gandiva
    from controller.policies.gandiva.settings import GandivaSettings

_HOME = {
    "Gandiva": "policy",
    "GandivaSettings": "settings",
}

__all__ = [
    "Gandiva",
    "GandivaSettings",
]


def __getattr__(name: str) -> Any:
    """Resolved on first use: whoever reads settings needs the policies' settings, not the policies."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
