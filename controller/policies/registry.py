# SPDX-License-Identifier: GPL-2.0-or-later
"""All policies by name. To add one: write it, add its settings to `controller/settings/policies.py`, and
add one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

from controller.policies.base import Policy
from controller.policies.tiresias.settings import TiresiasGittinsSettings
from controller.settings.policies import PolicySettings

_POLICIES: Mapping[str, tuple[str, str]] = {
    "fifo": ("fifo", "Fifo"),
    "gandiva": ("gandiva.policy", "Gandiva"),
    "tiresias-las": ("tiresias.policy", "TiresiasLas"),
    "tiresias-gittins": ("tiresias.policy", "TiresiasGittins"),
    "fifo-skip": ("baselines.policies", "FifoSkip"),
    "sjf": ("baselines.policies", "Sjf"),
    "srtf": ("baselines.policies", "Srtf"),
    "srsf": ("baselines.policies", "Srsf"),
}
"""Module (in this package) and class. Only the policy that is used is loaded."""


def make_policy(settings: PolicySettings) -> Policy:
    """The policy that the settings name, with its own settings, and with what these name files for: policies
    read none. Raises SettingsError."""
    module, name = _POLICIES[settings.name]
    make: Callable[..., Policy] = getattr(importlib.import_module(f"controller.policies.{module}"), name)
    chosen = settings.chosen
    if isinstance(chosen, TiresiasGittinsSettings) and chosen.distribution:
        from controller.policies.tiresias.samples import read_sizes

        return make(chosen, read_sizes(Path(chosen.distribution)))
    return make(chosen)


def priority_classes(settings: PolicySettings) -> Callable[[str], int]:
    """Priority class of a Slurm QOS under these settings; 0 where the policy knows no classes."""
    classes: Mapping[str, int] = getattr(settings.chosen, "priority_by_qos", {})
    return lambda qos: classes.get(qos, 0)
