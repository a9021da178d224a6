# SPDX-License-Identifier: GPL-2.0-or-later
"""What Tiresias is measured against. srtf and srsf need to know how long jobs take."""

from controller.policies.baselines.policies import FifoSkip, Sjf, Srsf, Srtf
from controller.policies.baselines.settings import FifoSkipSettings, SjfSettings, SrsfSettings, SrtfSettings

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
