# SPDX-License-Identifier: GPL-2.0-or-later
"""What is wrong just now: logged and reported once when it begins, and once when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from controller.act.recorder import Recorder
from controller.loop.clock import Clock
from controller.model import JobId

log = logging.getLogger(__name__)


class Problems:
    """Sentences by what they are about, such as `slurm`, `journal`, `node n1`, `gpu n1:0`."""

    def __init__(self, recorder: Recorder, clock: Clock, report: Callable[[tuple[str, ...]], None]) -> None:
        self._recorder, self._clock, self._report = recorder, clock, report
        self._known: dict[str, str] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._known.values())

    def about(self, kind: str) -> list[str]:
        """Names of what is known to be wrong of this kind."""
        return [where.partition(" ")[2] for where in self._known if where.partition(" ")[0] == kind]

    def begin(self, where: str, message: str, job_id: JobId | None = None) -> None:
        """Something is wrong; nothing happens when that is known."""
        if self._known.get(where) == message:
            return
        self._known[where] = message
        log.error("%s; gandiva check says what to look at", message, extra=_fields(where))
        self._report(self.sentences)
        if where != "journal":
            self._recorder.event("trouble", message, self._clock.now(), job_id)

    def end(self, where: str, why: str = "answers again") -> None:
        """It is not wrong any more; nothing happens when it was not."""
        if self._known.pop(where, None) is not None:
            message = f"{where}: {why}"
            log.warning("%s", message, extra=_fields(where))
            self._report(self.sentences)
            self._recorder.event("recovered", message, self._clock.now())

    def only(self, kind: str, found: Iterable[str], why: str) -> None:
        """Of this kind only these are still wrong."""
        for name in set(self.about(kind)) - set(found):
            self.end(f"{kind} {name}", why)


def _fields(where: str) -> dict[str, str]:
    """For the log: `node n1` -> the node."""
    kind, _, name = where.partition(" ")
    return {"node": name} if kind == "node" and name else {}
