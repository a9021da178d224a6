# SPDX-License-Identifier: GPL-2.0-or-later
"""The Tiresias policies (NSDI'19): least attained service without knowing how long jobs take."""

from controller.policies.tiresias.policy import TiresiasGittins, TiresiasLas
from controller.policies.tiresias.settings import TiresiasGittinsSettings, TiresiasLasSettings

__all__ = ["TiresiasGittins", "TiresiasGittinsSettings", "TiresiasLas", "TiresiasLasSettings"]
