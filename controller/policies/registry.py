# SPDX-License-Identifier: GPL-2.0-or-later
"""All policies by name. To add one: write it, add its settings to `controller/settings/policies.py`, and
add one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controller.policies.base import Policy
from controller.policies.baselines import FifoSkip, Sjf, Srsf, Srtf
from controller.policies.fifo import Fifo
from controller.policies.gandiva import Gandiva
from controller.policies.tiresias import TiresiasGittins, TiresiasLas
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
    """The policy that the settings name, with its own settings."""
    return _POLICIES[settings.name](settings.chosen)


def priority_classes(settings: PolicySettings) -> Callable[[str], int]:
    """Priority class of a Slurm QOS under these settings; 0 where the policy knows no classes."""
    classes: Mapping[str, int] = getattr(settings.chosen, "priority_by_qos", {})
    return lambda qos: classes.get(qos, 0)
