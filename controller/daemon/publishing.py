# SPDX-License-Identifier: GPL-2.0-or-later
"""What the outside world sees of a turn of the loop: the API, Prometheus, systemd."""

from __future__ import annotations

import time
from dataclasses import replace

from controller.api.live import Health, LiveState
from controller.daemon import notify
from controller.daemon.measuring import TurnMeter
from controller.journal import Journal
from controller.loop.loop import Turn
from controller.model.measures import Measures

JOURNAL_MESSAGE_SECONDS = 3600.0
"""How long `gandiva status` says that the journal had to be replaced."""


class Publisher:
    """Puts each turn, and what is wrong, where clients find it."""

    def __init__(self, live: LiveState, measures: Measures) -> None:
        self._live, self._meter = live, TurnMeter(measures)
        self._started = time.time()
        self._turns = 0
        self._completed = 0.0
        self._turn: Turn | None = None
        self._journal: Journal | None = None
        self._problems: tuple[str, ...] = ()
        self._journal_said: dict[str, float] = {}
        self.policy = ""
        """Name of the policy in force."""

    def begin(self, policy: str, journal: Journal) -> None:
        """This controller begins to lead."""
        self.policy, self._journal, self._problems = policy, journal, ()
        notify.ready(f"policy {policy}")

    def end(self) -> None:
        """It does not lead any more."""
        self._turn = None

    def turned(self, turn: Turn) -> None:
        """A turn was completed."""
        self._turns += 1
        # The loop goes on changing these two.
        self._turn = replace(turn, reasons=dict(turn.reasons), samples=dict(turn.samples))
        self._completed = time.monotonic()
        self._meter.turned(turn)
        self._show()
        notify.alive(f"{len(turn.snapshot.jobs)} jobs, {len(turn.snapshot.nodes)} nodes")

    def report(self, problems: tuple[str, ...]) -> None:
        """These sentences are all that is wrong now."""
        self._problems = problems
        self._show()

    def _show(self) -> None:
        if (turn := self._turn) is None:
            return
        health = Health(
            policy=self.policy,
            started=self._started,
            ticks=self._turns,
            tick_seconds=turn.observe_seconds + turn.plan_seconds,
            problems=(*self._problems, *self._journal_messages()),
        )
        self._live.publish(turn, health, completed=self._completed)

    def _journal_messages(self) -> list[str]:
        """What became of the journal lately."""
        now = time.monotonic()
        messages = [] if self._journal is None else self._journal.messages
        return [
            text
            for text in messages
            if now - self._journal_said.setdefault(text, now) < JOURNAL_MESSAGE_SECONDS
        ]
