# SPDX-License-Identifier: GPL-2.0-or-later
"""Who leads: of several controllers one acts, the others stand by (docs/high-availability.md).

Controllers that share a journal, on one host, contend for a lock of the kernel on a file beside it. Those on
different hosts, or with different journals, contend for the nodes: each agent obeys one controller at a time,
by a lease of `LEASE_SECONDS` that its requests renew (`controller.agent.lease`). A controller without a lease
changes nothing on nodes or in Slurm: the `Fence`.
"""

import asyncio
import hashlib
import logging
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from controller.cluster.port import ClusterPort
from controller.errors import ClusterError, JournalError, NodeError, NotLeading
from controller.journal.lock import JournalLock
from controller.nodes.protocol import MAX_CONTROLLER_CHARS, ErrorKind, HelloArgs
from controller.nodes.remote import RemoteNodes
from controller.settings.schema import NodesSettings

log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0

_LOOKING = frozenset({"hello", "observe", "lead"})
"""Requests to agents that change nothing for jobs."""
POLL_SECONDS = 0.5
"""How often a standby controller tries to take the lock."""
RENEW_SECONDS = 3.0
"""Leases are renewed this often, also while slurmctld keeps the loop waiting."""
NODE_POLL_SECONDS = 1.0
"""How often a standby controller asks the nodes whether another one still leads. A random time up to as long
is added, so that two standby controllers do not ask at the same time."""


def introduction(journal: Path) -> HelloArgs:
    """How a controller introduces itself to the agents.

    By its host and its journal: only one controller can hold that journal's lock, so the next one need not
    wait for the lease of one that was killed.
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

    `waiting` is called with what is waited for, whenever that changes. Raises JournalError where another
    process has the lock and `standby` is false, or there cannot be a lock.
    """
    said = ""
    while not stop.is_set():
        if lock.take():
            return True
        if not standby:
            raise JournalError(
                f"another controller (pid {lock.holder}) uses the journal {lock.journal}: stop it first, or "
                "set daemon.standby = true to wait for its end"
            )
        if said != lock.holder:
            said = lock.holder
            waiting(f"standby: the controller with pid {said} leads with the journal {lock.journal}")
        await pause(stop, POLL_SECONDS)
    return False


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Sleep, or until `stop` is set."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


async def renew(nodes: RemoteNodes) -> None:
    """Renew the leases until cancelled. The answers go to the fence, the guard of these nodes."""
    under_way: set[asyncio.Task[Mapping[str, NodeError | None]]] = set()
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        # All at the same time: a node that does not answer must not cost the others their lease.
        task = asyncio.create_task(nodes.lead(LEASE_SECONDS))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


async def rival(cluster: ClusterPort, nodes: RemoteNodes, settings: NodesSettings, me: HelloArgs) -> str:
    """A sentence naming the other controller that nodes obey now; empty: none is known.

    Asked before the first lease is taken, so that two controllers never share out the nodes. Waits for all
    nodes for `observe_deadline_seconds`, and `connect_deadline_seconds` longer for the first answer.
    """
    addresses, soon_seconds = settings.addresses, settings.observe_deadline_seconds
    try:
        view = await cluster.observe()
        await nodes.set_nodes({n.name: addresses.get(n.name, n.address or n.name) for n in view.nodes})
    except ClusterError as error:
        log.info("which nodes there are is not known yet: %s", error)
        return ""
    leaders = await nodes.leaders(soon_seconds, soon_seconds + settings.connect_deadline_seconds)
    for node, leader in sorted(leaders.items()):
        if leader is not None and leader.controller != me.controller:
            return f"standby: controller {leader.controller} leads on node {node}"
    return ""


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


_FREE = frozenset({"job", "close", "reservations"})
"""Calls of the cluster port that change nothing. For `observe` the lease may be out of date."""


def fenced(cluster: ClusterPort, fence: Fence) -> ClusterPort:
    """The cluster behind a fence: looking is free, changing is for the leader. `observe` raises NotLeading
    too: a cycle of the loop ends before it has planned anything."""
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
