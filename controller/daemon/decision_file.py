# SPDX-License-Identifier: GPL-2.0-or-later
"""SIGUSR1: the next decision goes into a file beside the journal, for `gandiva replay`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from controller.loop.loop import Controller, Turn
from controller.settings.policies import PolicySettings
from controller.simulation.snapshot_file import RecordedDecision, dump_decision

log = logging.getLogger(__name__)


class DecisionFile:
    """Writes one decision each time it was asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wanted = False

    def ask(self, controller: Controller | None) -> None:
        """Write the next decision. The controller makes it at once, and anew for all jobs: such a decision
        depends on nothing but what the file holds."""
        self._wanted = True
        if controller is not None:
            controller.observer.resync()
            controller.pace.poke()

    def turned(self, turn: Turn, policy: PolicySettings) -> None:
        """A turn was completed under this policy."""
        if self._wanted and turn.snapshot.changed.everything:
            self._wanted = False
            self._write(turn, policy)

    def _write(self, turn: Turn, policy: PolicySettings) -> None:
        path = self._folder / f"decision-{turn.snapshot.time:.0f}.json"
        decision = RecordedDecision(policy, turn.snapshot, turn.memory, turn.plan)
        try:
            # Users' job names are in it: for the controller and root only.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(dump_decision(decision))
        except OSError as error:
            log.error(
                "the decision cannot be written to file %s: %s; make room, or permit it to this user",
                path,
                error.strerror,
            )
            return
        log.info("decision recorded; replay it with: gandiva replay %s", path)
