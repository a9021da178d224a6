# SPDX-License-Identifier: GPL-2.0-or-later
"""Who leads: of several controllers one acts, the others wait until it is gone (docs/high-availability.md).

Controllers that share a journal, on one host, are told apart by a lock of the kernel on a file beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from controller.errors import JournalError
from controller.journal.lock import JournalLock

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""How often a waiting controller looks whether it may lead."""


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
