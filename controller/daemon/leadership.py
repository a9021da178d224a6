# SPDX-License-Identifier: GPL-2.0-or-later
"""Who leads: of several controllers one acts, the others stand by (docs/high-availability.md).

Controllers that share a journal, on one host, contend for a lock of the kernel on a file beside it. Those on
different hosts, or with different journals, contend for the nodes: each agent obeys one controller at a time,
by a lease of `LEASE_SECONDS` that its requests renew (`controller.agent.lease`). A controller without a lease
changes nothing on nodes or in Slurm (`controller.daemon.fence`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from controller.daemon.fence import LEASE_SECONDS
from controller.errors import ClusterError, JournalError, NodeError
from controller.journal.lock import JournalLock
from controller.nodes.protocol import MAX_CONTROLLER_CHARS, HelloArgs
from controller.nodes.remote import RemoteNodes
from controller.slurm.port import ClusterPort

log = logging.getLogger(__name__)

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
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except asyncio.TimeoutError:
        return


async def renew(nodes: RemoteNodes) -> None:
    """Renew the leases until cancelled. The answers go to the fence, the guard of these nodes."""
    under_way: set[asyncio.Task[Mapping[str, NodeError | None]]] = set()
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        # All at the same time: a node that does not answer must not cost the others their lease.
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
    """A sentence naming the other controller that nodes obey now; empty: none is known.

    Asked before the first lease is taken, so that two controllers never share out the nodes. `addresses`: of
    nodes whose address is not the one in Slurm. Waits for all nodes for `soon_seconds`, and for the first
    answer until the deadline.
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
