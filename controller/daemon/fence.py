# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps a controller that does not lead from acting (docs/high-availability.md)."""

from __future__ import annotations

import time
from collections.abc import Callable

from controller.errors import GandivaError, NodeError
from controller.journal.lock import JournalLock
from controller.model import GpuSet, JobId
from controller.nodes.protocol import ErrorKind
from controller.slurm.port import ClusterPort, ClusterView, SlurmJob

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


class FencedCluster:
    """The cluster port behind a fence: looking is free, changing is for the leader."""

    def __init__(self, inner: ClusterPort, fence: Fence) -> None:
        self._inner = inner
        self._fence = fence

    async def observe(self) -> ClusterView:
        """See ClusterPort. Raises NotLeading: a turn of the loop ends before it has planned anything."""
        self._fence.require_leading()
        return await self._inner.observe()

    async def job(self, job_id: JobId) -> SlurmJob:
        return await self._inner.job(job_id)

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        self._fence.check()
        await self._inner.bind(job_id, binding)

    async def unbind(self, job_id: JobId) -> None:
        self._fence.check()
        await self._inner.unbind(job_id)

    async def release(self, job_id: JobId) -> None:
        self._fence.check()
        await self._inner.release(job_id)

    async def hold(self, job_id: JobId) -> None:
        self._fence.check()
        await self._inner.hold(job_id)

    async def suspend(self, job_id: JobId) -> None:
        self._fence.check()
        await self._inner.suspend(job_id)

    async def resume(self, job_id: JobId) -> None:
        self._fence.check()
        await self._inner.resume(job_id)

    async def requeue(self, job_id: JobId) -> None:
        self._fence.check()
        await self._inner.requeue(job_id)

    async def end(self, job_id: JobId, reason: str) -> None:
        self._fence.check()
        await self._inner.end(job_id, reason)

    async def close(self) -> None:
        await self._inner.close()
