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

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._condition = threading.Condition()
        self._lanes: dict[Hashable, deque[Callable[[], None]]] = {}
        self._ready: deque[Hashable] = deque()
        self._threads = 0
        self._idle = 0
        self._waiting = 0
        self._closed = False

    def submit(self, lane: Hashable, work: Callable[[], None]) -> None:
        """Queue work. Raises TooBusy, without queueing it, when MAX_WAITING pieces wait already."""
        with self._condition:
            if self._closed or self._waiting >= MAX_WAITING:
                raise TooBusy(f"{self._waiting} requests are waiting already")
            self._waiting += 1
            queue = self._lanes.get(lane)
            if queue is not None:
                queue.append(work)
                return
            self._lanes[lane] = deque([work])
            self._ready.append(lane)
            if self._idle >= len(self._ready) or self._threads >= self._max_threads:
                self._condition.notify()
                return
            self._threads += 1
        threading.Thread(target=self._run, name=f"lane-{self._threads}", daemon=True).start()

    def close(self, seconds: float) -> bool:
        """Finish what is begun, drop the rest; False when something is still at it after `seconds`."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._threads == 0, seconds)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                self._condition.wait_for(lambda: self._ready or self._closed)
                self._idle -= 1
                if self._closed:
                    self._threads -= 1
                    self._condition.notify_all()
                    return
                lane = self._ready.popleft()
                work = self._lanes[lane].popleft()
                self._waiting -= 1
            try:
                work()
            except Exception:
                log.exception("work for %s failed: a bug; the controller hears nothing and asks again", lane)
            with self._condition:
                if self._lanes[lane]:
                    self._ready.append(lane)  # behind the other lanes, so that none starves
                    self._condition.notify()
                else:
                    del self._lanes[lane]
