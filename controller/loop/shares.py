# SPDX-License-Identifier: GPL-2.0-or-later
"""The tree of shares, read now and then beside the cycles of the loop: no cycle waits for it."""

import asyncio
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from controller.cluster.port import ClusterPort
from controller.errors import ClusterError
from controller.loop.conditions import Conditions
from controller.model import Share
from controller.model.value import empty


class ShareReader:
    """Keeps what was read last; a read that fails changes nothing, and is reported once."""

    def __init__(self, cluster: ClusterPort, conditions: Conditions, on_change: Callable[[], None]) -> None:
        """`on_change`: called when another tree was read."""
        self._cluster, self._conditions, self._on_change = cluster, conditions, on_change
        self._known: Mapping[str, Share] = empty()
        self._reading: asyncio.Task[None] | None = None
        self._due = -math.inf

    def known(self, now: float, every_seconds: float) -> Mapping[str, Share]:
        """By name; the same object while they are the same. Begins another read where one is due."""
        if self._due > now + every_seconds:
            self._due = now  # the clock was set back, or the setting changed
        if now >= self._due and self._reading is None:
            self._due = now + every_seconds
            self._reading = asyncio.create_task(self._read(), name="read-shares")
        return self._known

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        try:
            found = {share.name: share for share in await self._cluster.shares()}
        except ClusterError as error:
            self._conditions.begin("shares", f"the shares of users are not known anew: {error}")
            return
        finally:
            self._reading = None
        self._conditions.end("shares", "are read again")
        if found != self._known:
            self._known = MappingProxyType(found)
            self._on_change()
