# SPDX-License-Identifier: GPL-2.0-or-later
"""When the loop takes its next turn."""

from __future__ import annotations

import asyncio
import math

from controller.loop.signal import Signal
from controller.model import value
from controller.model.clock import Clock


@value(kw_only=True)
class PaceSettings:
    """Seconds."""

    interval_seconds: float = 1.0
    """The longest time between two turns. Infinity: only when something is reported, or the policy asks."""
    coalesce_seconds: float = 0.02
    """Ends of operations that come together are planned for together."""
    rest_factor: float = 0.0
    """An early turn comes no sooner after the last one than this many times what that took, and no later than
    `interval_seconds`: on a large site operations end all the time."""
    resync_seconds: float = 300.0
    """So often everything counts as changed, and all decisions are made anew."""


class Pace:
    """Waits between turns."""

    def __init__(self, clock: Clock, settings: PaceSettings) -> None:
        self._clock, self.settings = clock, settings
        self._changed = Signal()

    def poke(self) -> None:
        """Something happened: take a turn now rather than at the end of the interval."""
        self._changed.set()

    def wake(self) -> None:
        """End the wait; no turn is asked for."""
        self._changed.wake()

    async def rest(self, began: float, wake_at: float, stop: asyncio.Event) -> None:
        """From the end of a turn that `began` then to the begin of the next."""
        settings, ended = self.settings, self._clock.now()
        wait_seconds = min(settings.interval_seconds, max(0.0, wake_at - ended))
        if not stop.is_set():
            await self._changed.wait(None if wait_seconds == math.inf else wait_seconds)
        if self._changed.is_set() and not stop.is_set():
            rest_seconds = settings.rest_factor * (ended - began) - (self._clock.now() - ended)
            longest = max(settings.coalesce_seconds, min(rest_seconds, settings.interval_seconds))
            await asyncio.sleep(longest)
        self._changed.clear()
