# SPDX-License-Identifier: GPL-2.0-or-later
"""All policies by name. To add one: write it, add its settings to `controller/settings/policies.py`, and
add one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from controller.policies.base import Policy
from controller.policies.baselines import FifoSkip, Sjf, Srsf, Srtf
from controller.policies.fifo import Fifo
from controller.policies.gandiva import Gandiva
from controller.policies.tiresias import TiresiasGittins, TiresiasGittinsSettings, TiresiasLas
from controller.policies.tiresias.samples import read_sizes
from controller.settings.policies import PolicySettings

_POLICIES: Mapping[str, Callable[[Any], Policy]] = {
    "fifo": Fifo,
    "gandiva": Gandiva,
    "tiresias-las": TiresiasLas,
    "tiresias-gittins": TiresiasGittins,
    "fifo-skip": FifoSkip,
    "sjf": Sjf,
    "srtf": Srtf,
    "srsf": Srsf,
}


def make_policy(settings: PolicySettings) -> Policy:
    """The policy that the settings name, with its own settings, and with what these name files for: policies
    read none. Raises SettingsError."""
    chosen = settings.chosen
    if isinstance(chosen, TiresiasGittinsSettings) and chosen.distribution:
        return TiresiasGittins(chosen, read_sizes(Path(chosen.distribution)))
    return _POLICIES[settings.name](chosen)


def priority_classes(settings: PolicySettings) -> Callable[[str], int]:
    """Priority class of a Slurm QOS under these settings; 0 where the policy knows no classes."""
    classes: Mapping[str, int] = getattr(settings.chosen, "priority_by_qos", {})
    return lambda qos: classes.get(qos, 0)
