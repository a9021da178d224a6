# SPDX-License-Identifier: GPL-2.0-or-later
"""An asyncio event loop whose time jumps: when nothing can run now, the next timer's time has come.

Everything written with asyncio runs under it unchanged, which is how the daemon's own loop and executor
run in simulation. Deterministic: callbacks run in the order of their times, then of their creation.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from controller.errors import GandivaError

T = TypeVar("T")


class SimulationDeadlock(GandivaError):
    """Every task waits for something that no timer will ever bring."""


class _TimeTravel(selectors.BaseSelector):
    """Moves the clock instead of waiting for files; files (the loop's own pipe) are never ready."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ending = False
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.ending:
            return []
        if timeout is None:
            raise SimulationDeadlock("nothing is scheduled, yet the simulation has not ended")
        if timeout > 0:
            self.now += timeout
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(
            fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data
        )
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time `start` seconds."""

    def __init__(self, start: float = 0.0) -> None:
        self._travel = _TimeTravel()
        self._travel.now = start
        super().__init__(self._travel)
        # Timers so close together are of one instant: sums of floating-point times differ by less.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._travel.now


def run_virtual(main: Coroutine[Any, Any, T], start: float = 0.0) -> T:
    """`asyncio.run` on virtual time. Raises SimulationDeadlock when `main` can never finish."""
    loop = VirtualTimeLoop(start)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop._travel.ending = True
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
