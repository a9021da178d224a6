# SPDX-License-Identifier: GPL-2.0-or-later
"""Time, as the loop sees it. Waiting is asyncio's business; this is only for reading."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch that never go backwards within one run."""

    def now(self) -> float:
        """The time now."""
        ...


class SystemClock:
    """The machine's time of day at start plus the monotonic time since: a clock that is set while the
    controller runs shortens or lengthens nobody's slice."""

    def __init__(self) -> None:
        self._start_wall = time.time()
        self._start_monotonic = time.monotonic()

    def now(self) -> float:
        return self._start_wall + (time.monotonic() - self._start_monotonic)


class LoopClock:
    """The time of the running asyncio event loop: virtual under `VirtualTimeLoop`."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()
