# SPDX-License-Identifier: GPL-2.0-or-later
"""A flag that one task waits for, with a time limit, without helper tasks for each wait."""

from __future__ import annotations

import asyncio


class Signal:
    """Like `asyncio.Event`, for one waiter."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        """Whether `set` was called since the last `clear`."""
        return self._is_set

    def set(self) -> None:
        """Raise the flag and wake who waits."""
        self._is_set = True
        self.wake()

    def clear(self) -> None:
        """Lower the flag."""
        self._is_set = False

    def wake(self) -> None:
        """End the wait without raising the flag."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_seconds: float | None) -> None:
        """Until the flag is up, `wake` is called, or the time is over (None: no limit)."""
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_seconds is None else loop.call_later(timeout_seconds, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
