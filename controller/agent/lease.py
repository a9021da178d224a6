# SPDX-License-Identifier: GPL-2.0-or-later
"""A node obeys one controller at a time: who that is, for how long, is in `leader.json`.

Controllers with one journal are kept apart by its lock. This keeps apart those that have different ones, on
different hosts or by mistake. A controller has a lease of some seconds that each of its requests renews;
until it is over, others are told `not_leader`. The file is root's, in root's folder, on a tmpfs that a reboot
empties; whatever in it makes no sense counts as no lease.
"""

import contextlib
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.agent.deadline import Deadline
from controller.agent.files import locked, rewrite
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, LeaderInfo

FILE = "leader.json"
_MAX_BYTES = 4096
_LOCK_SECONDS = 2.0

log = logging.getLogger(__name__)


class _Lease(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    controller: str = Field(min_length=1, max_length=protocol.MAX_CONTROLLER_CHARS)
    until: float = Field(ge=0, allow_inf_nan=False)
    """By the clock that counts from boot, so that setting the time changes nothing."""


class Leases:
    """The lease of one node, shared by all agents that run on it."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE

    def holder(self) -> LeaderInfo | None:
        with self._opened() as descriptor:
            return None if descriptor is None else _read(descriptor)

    def renew(self, controller: str, seconds: float) -> None:
        """Take the lease or prolong it. Raises AgentError not_leader while another controller has it."""
        with self._opened() as descriptor:
            if descriptor is None:
                return
            leader = _read(descriptor)
            if leader is not None and leader.controller != controller:
                raise _not_leader(leader)
            if leader is None:
                log.info("controller %s leads", controller)
            mine = _Lease(controller=controller, until=_now() + seconds).model_dump_json().encode()
            try:
                # All that is ever read, in one call: no end of an earlier lease is behind it, even if this
                # process ends right here.
                rewrite(descriptor, mine.ljust(_MAX_BYTES))
            except OSError as error:
                log.warning("%s: %s", self._path, error)

    def allow_nameless(self) -> None:
        """For a session that has not said whose it is: raises AgentError not_leader while a controller has
        the lease."""
        if (leader := self.holder()) is not None:
            raise _not_leader(leader)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        """The file under a lock; None where there cannot be one: a full disk must not keep jobs off their
        GPUs."""
        with contextlib.ExitStack() as stack:
            file: int | None = None
            try:
                self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                file = stack.enter_context(locked(self._path, Deadline(_LOCK_SECONDS)))
            except TimeoutError:
                raise AgentError(ErrorKind.INTERNAL, "another agent here keeps the lease locked") from None
            except OSError as error:
                log.warning("%s: %s", self._path, error)
            yield file


def _read(descriptor: int) -> LeaderInfo | None:
    """Who has the lease, unless it is over or makes no sense."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return None
    try:
        lease = _Lease.model_validate_json(os.pread(descriptor, _MAX_BYTES, 0))
    except (OSError, ValidationError):
        return None
    seconds = lease.until - _now()
    valid = 0 < seconds <= protocol.MAX_LEASE_SECONDS
    return LeaderInfo(controller=lease.controller, seconds=seconds) if valid else None


def _not_leader(leader: LeaderInfo) -> AgentError:
    said = f"controller {leader.controller} leads here (its lease ends in {leader.seconds:.0f} s)"
    return AgentError(ErrorKind.NOT_LEADER, said)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
