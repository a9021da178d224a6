# SPDX-License-Identifier: GPL-2.0-or-later
"""Time, as every part reads it. Waiting is asyncio's business."""

from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch that never go backwards within one run."""

    def now(self) -> float:
        """The time now."""
        ...

    def uptime(self) -> tuple[str, float]:
        """Which run of the machine this is (empty: not known), and the seconds since its begin: they tell how
        long a controller was away even where the time of day was set meanwhile."""
        ...
