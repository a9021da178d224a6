# SPDX-License-Identifier: GPL-2.0-or-later
"""An asyncio event loop whose time jumps: when nothing can run now, the next timer's time has come.

Everything written with asyncio runs under it unchanged, which is how the daemon's own loop and executor
run in simulation. Deterministic: callbacks run in the order of their times, then of their creation. Files,
sockets, threads and signals do not work in it.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from controller.errors import GandivaError

T = TypeVar("T")

SAME_INSTANT_SECONDS = 1e-6
"""Timers so close together are of one instant: sums of floating-point times differ by less."""

SETTLED_SECONDS = 1e-300
"""A timer so far ahead comes at this very time, when all that can run now has run."""

MOST_CANCELLED = 100
"""So many timers that were cancelled may lie about."""


class SimulationDeadlock(GandivaError):
    """Every task waits for something that no timer will ever bring."""


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Starts at time `start` seconds."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self._now = start
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = self._timers_cancelled = 0

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        # As asyncio's own, without what that checks: it is called more often than anything else.
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when = when if when - self._now > SETTLED_SECONDS else self._now
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def _timer_handle_cancelled(self, _timer: asyncio.TimerHandle) -> None:
        # (TimerHandle says so.) Most are for the end of a job that is preempted: they lie far ahead.
        self._timers_cancelled += 1
        if self._timers_cancelled > MOST_CANCELLED and 2 * self._timers_cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _run_once(self) -> None:
        """What is ready now; where nothing is, all at the time of the next timer."""
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
                self._timers_cancelled -= 1
            if not timers:
                raise SimulationDeadlock("nothing is scheduled, yet the simulation has not ended")
            self._now = max(self._now, timers[0][0])
            while timers and timers[0][0] < self._now + SAME_INSTANT_SECONDS:
                ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()


class VirtualClock:
    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time

    def uptime(self) -> tuple[str, float]:
        return "", self.now()


def run_virtual(main: Coroutine[Any, Any, T], start: float = 0.0) -> T:
    """`asyncio.run` on virtual time. Raises SimulationDeadlock when `main` can never finish."""
    loop = VirtualTimeLoop(start)
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
