# SPDX-License-Identifier: GPL-2.0-or-later
"""When the loop takes its next cycle."""

import asyncio
import math

from controller.model import value
from controller.model.clock import Clock


@value(kw_only=True)
class PaceSettings:
    """Seconds."""

    interval_seconds: float = 1.0
    """The longest time between two cycles. Infinity: only when something is reported, or the policy asks."""
    coalesce_seconds: float = 0.02
    """Ends of operations that come together are planned for together."""
    rest_factor: float = 0.0
    """An early cycle comes no sooner after the last one than this many times what that took, and no later
    than `interval_seconds`: on a large site operations end all the time."""
    resync_seconds: float = 300.0
    """So often everything counts as changed, and all decisions are made anew."""


class Pace:
    """Waits between cycles, without helper tasks for each wait."""

    def __init__(self, clock: Clock, settings: PaceSettings) -> None:
        self._clock, self.settings = clock, settings
        self._poked = False
        self.pause_seconds = 0.0
        """At least so long until the next cycle, unless something happens."""
        self._waiter: asyncio.Future[None] | None = None

    def poke(self) -> None:
        """Something happened: take a cycle now rather than at the end of the interval."""
        self._poked = True
        self.wake()

    def wake(self) -> None:
        """End the wait; no cycle is asked for."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def rest(self, began: float, wake_at: float, stop: asyncio.Event) -> None:
        """From the end of a cycle that `began` then to the begin of the next."""
        settings, ended = self.settings, self._clock.now()
        if not stop.is_set() and not self._poked:
            longest = min(settings.interval_seconds, max(0.0, wake_at - ended))
            await self._wait(max(longest, self.pause_seconds))
        if self._poked and not stop.is_set():
            rest_seconds = settings.rest_factor * (ended - began) - (self._clock.now() - ended)
            longest = max(settings.coalesce_seconds, min(rest_seconds, settings.interval_seconds))
            await asyncio.sleep(longest)
        self._poked = False

    async def _wait(self, longest_seconds: float) -> None:
        """Until `poke` or `wake`, or until the time is over."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if longest_seconds == math.inf else loop.call_later(longest_seconds, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
