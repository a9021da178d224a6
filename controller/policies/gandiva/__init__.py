# SPDX-License-Identifier: GPL-2.0-or-later
"""The Gandiva policy (OSDI'18): early feedback by over-subscription and fair time-slicing."""

from controller.policies.gandiva.policy import Gandiva
from controller.policies.gandiva.settings import GandivaSettings

__all__ = ["Gandiva", "GandivaSettings"]
