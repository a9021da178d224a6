# SPDX-License-Identifier: GPL-2.0-or-later
"""Work in lanes: what concerns one job is done in order, different jobs at the same time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable

MAX_THREADS = 64
MAX_WAITING = 1024

log = logging.getLogger(__name__)


class TooBusy(Exception):
    """More work is waiting than MAX_WAITING."""


class Lanes:
    """At most one piece of work per lane at a time, at most MAX_THREADS in all.

    A lane has a thread only while it has work. Work that is not begun when `close` is called is dropped.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._at_work = threading.Semaphore(MAX_THREADS)
        self._lanes: dict[Hashable, deque[Callable[[], None]]] = {}
        self._waiting = 0
        self._closed = False

    def submit(self, lane: Hashable, work: Callable[[], None]) -> None:
        """Queue work. Raises TooBusy, without queueing it, when MAX_WAITING pieces wait already."""
        with self._condition:
            if self._closed or self._waiting >= MAX_WAITING:
                raise TooBusy(f"{self._waiting} requests are waiting already")
            self._waiting += 1
            if lane in self._lanes:
                self._lanes[lane].append(work)
                return
            self._lanes[lane] = deque([work])
        threading.Thread(target=self._run, args=(lane,), name=f"lane-{lane}", daemon=True).start()

    def close(self, seconds: float) -> bool:
        """Finish what is begun, drop the rest; False when something is still at it after `seconds`."""
        with self._condition:
            self._closed = True
            return self._condition.wait_for(lambda: not self._lanes, seconds)

    def _run(self, lane: Hashable) -> None:
        while True:
            # Let go after each piece of work, so that no lane starves.
            with self._at_work:
                with self._condition:
                    if self._closed or not self._lanes[lane]:
                        del self._lanes[lane]
                        self._condition.notify_all()
                        return
                    work = self._lanes[lane].popleft()
                    self._waiting -= 1
                try:
                    work()
                except Exception:
                    log.exception(
                        "work for %s failed: a bug; the controller hears nothing and asks again", lane
                    )
