# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps a controller that does not lead from acting (docs/high-availability.md)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from controller.errors import GandivaError, NodeError
from controller.journal.lock import JournalLock
from controller.nodes.protocol import ErrorKind
from controller.slurm.port import ClusterPort

LEASE_SECONDS = 10.0

_LOOKING = frozenset({"hello", "observe", "lead"})
"""Requests to agents that change nothing for jobs."""


class NotLeading(GandivaError):
    """This controller must not act now; the message says who leads, or why it cannot tell."""


class Fence:
    """Whether this controller may act, as far as it can know. Implements `controller.nodes.remote.Guard`.

    It is on the safe side: a lease counts from before it was asked for, by a clock that goes on while the
    process is stopped or the machine sleeps. A controller that was stopped for a long time finds it closed.
    """

    def __init__(self, lock: JournalLock, clock: Callable[[], float] | None = None) -> None:
        self._lock = lock
        self._clock = clock or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._confirmed_at: float | None = None
        self._lost = ""

    def reopen(self) -> None:
        """No other controller leads any more."""
        self._lost = ""
        self._confirmed_at = None

    def require_leading(self) -> None:
        """Raises NotLeading where another controller may lead."""
        if not self._lock.is_ours():
            raise NotLeading(f"the lock file {self._lock.path} was removed: another controller may lead")
        if self._lost:
            raise NotLeading(self._lost)

    def check(self) -> None:
        """Raises NotLeading. Called before every change."""
        self.require_leading()
        if self._confirmed_at is not None and self._clock() - self._confirmed_at > LEASE_SECONDS:
            seconds = self._clock() - self._confirmed_at
            raise NotLeading(f"no node has confirmed for {seconds:.0f} s that this controller leads")

    # -- what goes to the nodes, and comes back ----------------------------------------------------------

    def before(self, verb: str) -> float:
        """A request is about to be sent. Returns the time, for `answered`. Raises NotLeading."""
        if verb not in _LOOKING:
            self.check()
        return self._clock()

    def answered(self, asked_at: float, error: NodeError | None) -> None:
        """An agent has answered a request that renews its lease."""
        if error is not None and error.kind == ErrorKind.NOT_LEADER.value:
            self._lost = self._lost or str(error)
        elif error is None and (self._confirmed_at is None or asked_at > self._confirmed_at):
            self._confirmed_at = asked_at


_FREE = frozenset({"job", "close"})
"""Calls of the cluster port that change nothing. For `observe` the lease may be out of date."""


def fenced(cluster: ClusterPort, fence: Fence) -> ClusterPort:
    """The cluster behind a fence: looking is free, changing is for the leader. `observe` raises NotLeading
    too: a turn of the loop ends before it has planned anything."""
    return cast(ClusterPort, _Fenced(cluster, fence))


class _Fenced:
    def __init__(self, cluster: ClusterPort, fence: Fence) -> None:
        self._cluster, self._fence = cluster, fence

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._cluster, name)
        if name in _FREE:
            return call
        check = self._fence.require_leading if name == "observe" else self._fence.check

        async def checked(*arguments: Any) -> Any:
            check()
            return await call(*arguments)

        return checked
