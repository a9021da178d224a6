# SPDX-License-Identifier: GPL-2.0-or-later
"""Who leads: of several controllers one acts, the others wait until it is gone (docs/high-availability.md).

Controllers that share a journal, on one host, are told apart by a lock of the kernel on a file beside it.
Those that do not (another host, another setting) are told apart by the nodes: each agent obeys one controller
at a time, by a lease of `LEASE_SECONDS` that its requests renew (`controller.agent.lease`). A controller that
has no lease does nothing, in Slurm neither.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from controller.errors import ClusterError, GandivaError, JournalError, NodeError
from controller.journal.lock import JournalLock
from controller.model import GpuSet, JobId
from controller.nodes.protocol import MAX_CONTROLLER_CHARS, ErrorKind, HelloArgs
from controller.nodes.remote import RemoteNodes
from controller.slurm.port import ClusterPort, ClusterView, SlurmJob

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""How often a waiting controller looks whether it may have the lock."""
LEASE_SECONDS = 10.0
RENEW_SECONDS = 3.0
"""Leases are renewed this often, also while slurmctld keeps the loop waiting."""
NODE_POLL_SECONDS = 1.0
"""How often a waiting controller asks the nodes whether another one still leads; and as much again by chance,
so that of two that wait one is the first."""


_LOOKING = frozenset({"hello", "observe", "lead"})


class NotLeading(GandivaError):
    """This controller must not act now; the message says who leads, or why it cannot tell."""


def introduction(journal: Path) -> HelloArgs:
    """How a controller introduces itself to the agents.

    By its host and its journal: of these only one controller can be at work, so the next one needs not wait
    for the lease of one that was killed.
    """
    whole = f"{socket.gethostname()}:{journal}"
    name = re.sub(r"[^!-~]", "?", whole)
    if len(name) > MAX_CONTROLLER_CHARS or name != whole:
        # What is left out must still tell controllers apart.
        digest = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        name = f"{name[: MAX_CONTROLLER_CHARS - len(digest) - 1]}#{digest}"
    return HelloArgs(controller=name, lease_seconds=LEASE_SECONDS)


async def wait_to_lead(
    lock: JournalLock, stop: asyncio.Event, *, standby: bool, waiting: Callable[[str], None]
) -> bool:
    """Until this process has the journal's lock; then True. False: `stop` was set first.

    `waiting` is told once what is waited for. Raises JournalError where another process has the lock and
    `standby` is false, or there cannot be a lock.
    """
    told = ""
    while not stop.is_set():
        if lock.take():
            return True
        if not standby:
            raise JournalError(
                f"another controller (pid {lock.holder}) uses the journal {lock.journal}: stop it first, or "
                "set daemon.standby = true to wait for its end"
            )
        if told != lock.holder:
            told = lock.holder
            waiting(f"standby: the controller with pid {told} leads with the journal {lock.journal}")
        await pause(stop, POLL_SECONDS)
    return False


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Sleep, or until `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except asyncio.TimeoutError:
        return


class Fence:
    """Whether this controller may act, as far as it can know. Implements `controller.nodes.remote.Guard`.

    It is on the safe side: a lease counts from before it was asked for, by a clock that goes on while the
    process is stopped or the machine sleeps. So whoever wakes up after a long time finds it closed.
    """

    def __init__(self, lock: JournalLock, clock: Callable[[], float] | None = None) -> None:
        self._lock = lock
        self._clock = clock or (lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self._confirmed_at: float | None = None
        self._lost = ""

    def reopen(self) -> None:
        """Nobody leads any more."""
        self._lost = ""
        self._confirmed_at = None

    def require_leading(self) -> None:
        """Raises NotLeading where it is known that somebody else may lead."""
        if not self._lock.is_ours():
            raise NotLeading(f"the lock file {self._lock.path} was removed: another controller may lead")
        if self._lost:
            raise NotLeading(self._lost)

    def check(self) -> None:
        """Raises NotLeading. Call before whatever changes something."""
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
        """An agent that knows leases has answered a request that renews one."""
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
        """See ClusterPort."""
        return await self._inner.job(job_id)

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        """See ClusterPort."""
        self._fence.check()
        await self._inner.bind(job_id, binding)

    async def unbind(self, job_id: JobId) -> None:
        """See ClusterPort."""
        self._fence.check()
        await self._inner.unbind(job_id)

    async def release(self, job_id: JobId) -> None:
        """See ClusterPort."""
        self._fence.check()
        await self._inner.release(job_id)

    async def hold(self, job_id: JobId) -> None:
        """See ClusterPort."""
        self._fence.check()
        await self._inner.hold(job_id)

    async def suspend(self, job_id: JobId) -> None:
        """See ClusterPort."""
        self._fence.check()
        await self._inner.suspend(job_id)

    async def resume(self, job_id: JobId) -> None:
        """See ClusterPort."""
        self._fence.check()
        await self._inner.resume(job_id)

    async def requeue(self, job_id: JobId) -> None:
        """See ClusterPort."""
        self._fence.check()
        await self._inner.requeue(job_id)

    async def end(self, job_id: JobId, reason: str) -> None:
        """See ClusterPort."""
        self._fence.check()
        await self._inner.end(job_id, reason)

    async def close(self) -> None:
        """See ClusterPort."""
        await self._inner.close()


async def renew(nodes: RemoteNodes) -> None:
    """Keep the leases, for ever. What comes of it goes to the fence, the guard of these nodes."""
    under_way: set[asyncio.Task[Mapping[str, NodeError | None]]] = set()
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        # Not one after the other: a node that does not answer must not cost the others their lease.
        task = asyncio.create_task(nodes.lead(LEASE_SECONDS))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


async def rival(
    cluster: ClusterPort,
    nodes: RemoteNodes,
    addresses: Mapping[str, str],
    me: HelloArgs,
    *,
    soon_seconds: float,
    deadline_seconds: float,
) -> str:
    """The other controller that nodes obey now, in words; empty: none that is known of.

    Asked before the first lease is taken: half of the nodes for one controller, half for another would be
    worst. `addresses`: of nodes whose address is not the one that Slurm knows. Nodes that do not answer are
    waited for: all of them for `soon_seconds`, for a single one until the deadline.
    """
    try:
        view = await cluster.observe()
        await nodes.set_nodes({n.name: addresses.get(n.name, n.address or n.name) for n in view.nodes})
    except ClusterError as error:
        log.info("which nodes there are is not known yet: %s", error)
        return ""
    leaders = await nodes.leaders(soon_seconds, deadline_seconds)
    for node in sorted(leaders):
        leader = leaders[node]
        if leader is not None and leader.controller != me.controller:
            return f"standby: controller {leader.controller} leads on node {node}"
    return ""


def poll_seconds() -> float:
    """How long to wait before `rival` is asked again."""
    return NODE_POLL_SECONDS * random.uniform(1.0, 2.0)
