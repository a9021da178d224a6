# SPDX-License-Identifier: GPL-2.0-or-later
"""Time, as every part reads it. Waiting is asyncio's business."""

from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch that never go backwards within one run."""

    def now(self) -> float:
        """The time now."""

    def uptime(self) -> tuple[str, float]:
        """Which run of the machine this is (empty: not known), and the seconds since its begin: they tell how
        long a controller was away even where the time of day was set meanwhile."""


def shown_seconds(seconds: float) -> str:
    """A time as Slurm writes it, `[DD-]HH:MM:SS`, rounded."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"
