# SPDX-License-Identifier: GPL-2.0-or-later
"""The Tiresias policies (NSDI'19): least attained service without knowing how long jobs take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.policies.tiresias.policy import TiresiasGittins, TiresiasLas
    from controller.policies.tiresias.settings import TiresiasGittinsSettings, TiresiasLasSettings

_HOME = {
    "TiresiasGittins": "policy",
    "TiresiasLas": "policy",
    "TiresiasGittinsSettings": "settings",
    "TiresiasLasSettings": "settings",
}

__all__ = [
    "TiresiasGittins",
    "TiresiasGittinsSettings",
    "TiresiasLas",
    "TiresiasLasSettings",
]


def __getattr__(name: str) -> Any:
    """Resolved on first use: whoever reads settings needs the policies' settings, not the policies."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
