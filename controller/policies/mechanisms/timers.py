# SPDX-License-Identifier: GPL-2.0-or-later
"""Times in plans, and out of memories."""

import math

from controller.model.timers import TINY as TINY
from controller.model.timers import Timers as Timers


def remembered_time(found: object) -> float | None:
    """A time out of a memory, which may be damaged."""
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None
