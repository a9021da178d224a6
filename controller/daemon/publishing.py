# SPDX-License-Identifier: GPL-2.0-or-later
"""What the outside world sees of a cycle of the loop: the API, Prometheus, systemd, a decision on file."""

import logging
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from controller.api.live import Health, LiveState
from controller.daemon.measuring import CycleMeter
from controller.journal import Journal
from controller.loop.loop import Controller, Cycle
from controller.model.measures import Measures
from controller.settings.policies import PolicySettings
from controller.simulation.snapshot_file import RecordedDecision, dump_decision

log = logging.getLogger(__name__)

JOURNAL_MESSAGE_SECONDS = 3600.0
"""How long `gandiva status` says that the journal had to be replaced."""


class Publisher:
    """Puts each cycle, and what is wrong, where clients find it."""

    def __init__(self, live: LiveState, measures: Measures) -> None:
        self._live, self._meter = live, CycleMeter(measures)
        self._started = time.time()
        self._cycles = 0
        self._completed = 0.0
        self._cycle: Cycle | None = None
        self._journal: Journal | None = None
        self._problems: tuple[str, ...] = ()
        self._journal_said: dict[str, float] = {}
        self.policy = ""
        """Name of the policy in force."""

    def begin(self, policy: str, journal: Journal) -> None:
        self.policy, self._journal, self._problems = policy, journal, ()
        tell_systemd("READY=1", f"policy {policy}")

    def end(self) -> None:
        self._cycle = None

    def completed(self, cycle: Cycle) -> None:
        self._cycles += 1
        # The loop goes on changing these.
        reasons, samples = dict(cycle.reasons), dict(cycle.samples)
        before = None if self._cycle is None else self._cycle.snapshot
        self._cycle = replace(cycle, snapshot=cycle.snapshot.kept(before), reasons=reasons, samples=samples)
        self._completed = time.monotonic()
        self._meter.completed(cycle)
        self._show()
        tell_systemd("WATCHDOG=1", f"{len(cycle.snapshot.jobs)} jobs, {len(cycle.snapshot.nodes)} nodes")

    def report(self, problems: tuple[str, ...]) -> None:
        """These sentences are all that is wrong now."""
        self._problems = problems
        self._show()

    def _show(self) -> None:
        if (cycle := self._cycle) is None:
            return
        health = Health(
            policy=self.policy,
            started=self._started,
            ticks=self._cycles,
            tick_seconds=cycle.observe_seconds + cycle.plan_seconds,
            problems=(*self._problems, *self._journal_messages()),
        )
        self._live.publish(cycle, health, completed=self._completed)

    def _journal_messages(self) -> list[str]:
        now = time.monotonic()
        messages = [] if self._journal is None else self._journal.messages
        return [
            text
            for text in messages
            if now - self._journal_said.setdefault(text, now) < JOURNAL_MESSAGE_SECONDS
        ]


def tell_systemd(state: str, status: str = "") -> bool:
    """Tell systemd of the daemon's state (`Type=notify`, sd_notify(3)), such as `READY=1`, and what it does.
    False: systemd does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    message = f"{state}\nSTATUS={' '.join(status.splitlines())}" if status else state
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            # The loop must not wait for systemd: a full socket buffer loses this message only.
            sock.setblocking(False)
            sock.sendto(message.encode(), address)
    except OSError:
        return False
    return True


class DecisionFile:
    """SIGUSR1: the next decision goes into a file beside the journal, for `gandiva replay`."""

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

    def completed(self, cycle: Cycle, policy: PolicySettings) -> None:
        """A cycle was completed under this policy."""
        if not (self._wanted and cycle.snapshot.changed.everything):
            return
        self._wanted = False
        path = self._folder / f"decision-{cycle.snapshot.time:.0f}.json"
        decision = RecordedDecision(policy, cycle.snapshot, cycle.memory, cycle.plan)
        try:
            # Users' job names are in it: for the controller and root only.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(dump_decision(decision))
        except OSError as error:
            why = f"{error.strerror}; make room, or permit it to this user"
            log.error("the decision cannot be written to file %s: %s", path, why)
        else:
            log.info("decision recorded; replay it with: gandiva replay %s", path)
