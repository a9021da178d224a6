# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon: waits until it may lead, puts the parts together, and answers signals.

SIGTERM and SIGINT end it in order (`controller.daemon.stopping`); SIGHUP reads the settings again. kill -9 does no
harm either: the next controller goes on from what Slurm and the nodes say.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from controller import __version__
from controller.act.recording import JournalRecorder
from controller.api.access import Access, read_token
from controller.api.answers import Answers
from controller.api.live import Health, LiveState
from controller.api.metrics import Metrics
from controller.api.server import ApiServer
from controller.clock import SystemClock
from controller.daemon import logs, notify
from controller.daemon.leadership import (
    Fence,
    FencedCluster,
    NotLeading,
    introduction,
    pause,
    poll_seconds,
    renew,
    rival,
    wait_to_lead,
)
from controller.daemon.measuring import MeasuringRecorder, TurnMeter
from controller.daemon.stopping import stop_in_order
from controller.errors import GandivaError, SettingsError
from controller.executor import ExecutorSettings
from controller.journal import Journal, JournalReader
from controller.journal.lock import JournalLock
from controller.loop import Controller, LoopSettings, Tick
from controller.nodes.remote import RemoteNodes
from controller.nodes.ssh import SshSettings, ssh_nodes
from controller.policies.registry import make_policy, priority_classes
from controller.settings import Settings, load_settings, needs_restart
from controller.slurm.factory import open_cluster

log = logging.getLogger(__name__)

REST_FACTOR = 3.0
"""A quarter of the time at most goes into turns of the loop that were asked for early."""
TOLD_SECONDS = 3600.0
"""How long `gandiva status` says that the journal had to be replaced."""


def _token(settings: Settings) -> str | None:
    """What callers must have to see jobs; None: nothing. Raises SettingsError."""
    file = settings.api.token_file
    return read_token(file) if settings.api.private_data and file is not None else None


def executor_settings(settings: Settings) -> ExecutorSettings:
    """The executor's part of the settings."""
    suspend = settings.suspend
    return ExecutorSettings(
        suspend_in_slurm=suspend.mode == "slurm",
        default_method=settings.requests.suspend,
        transparent_fallback=suspend.transparent_fallback,
        step_deadline_seconds=suspend.step_deadline_seconds,
        offload_deadline_seconds=suspend.offload_deadline_seconds,
        resume_deadline_seconds=suspend.resume_deadline_seconds,
        start_deadline_seconds=suspend.start_deadline_seconds,
        residual_limit_bytes=suspend.residual_limit_bytes,
        residual_fraction=suspend.residual_fraction,
        release_context=suspend.release_context,
        retry_after_seconds=suspend.retry_after_seconds,
        unsuspendable=suspend.unsuspendable,
        unsuspendable_tries=suspend.unsuspendable_tries,
        preempt_exempt_ratio=suspend.preempt_exempt_ratio,
    )


def loop_settings(settings: Settings) -> LoopSettings:
    """The loop's part of the settings."""
    return LoopSettings(
        interval_seconds=settings.loop.interval_seconds,
        rest_factor=REST_FACTOR,
        observe_deadline_seconds=settings.nodes.observe_deadline_seconds,
        default_weight=settings.requests.weight,
        weight_limits=settings.requests.weight_limits,
        addresses=dict(settings.nodes.addresses),
    )


def _ssh_settings(settings: Settings) -> SshSettings:
    nodes = settings.nodes
    return SshSettings(
        key_file=nodes.ssh_key,
        known_hosts_file=nodes.known_hosts,
        user=nodes.ssh_user,
        port=nodes.ssh_port,
        connect_seconds=nodes.connect_deadline_seconds,
    )


class Daemon:
    """One controller with its API."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self._settings = settings
        self._live = LiveState()
        self._metrics = Metrics(self._live, settings.journal.path)
        self._turns = TurnMeter(self._metrics)
        self._turned = 0.0
        self._started = time.time()
        self._ticks = 0
        self._last: Tick | None = None
        self._controller: Controller | None = None
        self._stop: asyncio.Event | None = None
        self._policy_state: Mapping[str, Any] | None = None
        """What the policy remembered before the next decision."""
        self._record_next = False
        self._may_release = True
        """The signal that ends the daemon lets daemon.at_stop count."""
        self._journal: Journal | None = None
        self._told: dict[str, float] = {}
        self._waits_for = ""

    async def run(self) -> None:
        """Until a signal ends it. Raises GandivaError when it cannot start."""
        self._stop = asyncio.Event()
        self._handle_signals()
        lock = JournalLock(self._settings.journal.path)
        standby = self._settings.daemon.standby
        if not await wait_to_lead(lock, self._stop, standby=standby, waiting=self._wait):
            log.info("stopped without having led")
            return
        settings = self._settings.journal
        with Journal(
            lock.journal, retention_days=settings.retention_days, detail_days=settings.detail_days, lock=lock
        ) as journal:
            await self._lead(journal, lock)

    def _wait(self, why: str) -> None:
        if why != self._waits_for:
            self._waits_for = why
            log.info("%s", why)
            self._live.stand_by(why)
            notify.ready(why)

    async def _lead(self, journal: Journal, lock: JournalLock) -> None:
        """With the journal's lock: as soon as no node obeys another controller. Until a signal ends it."""
        assert self._stop is not None
        settings = self._settings
        self._journal = journal
        fence, me = Fence(lock), introduction(lock.journal)
        cluster = FencedCluster(
            open_cluster(
                settings.cluster.adapter,
                deadline_seconds=settings.cluster.rpc_deadline_seconds,
                measures=self._metrics,
            ),
            fence,
        )
        nodes = ssh_nodes(_ssh_settings(settings), measures=self._metrics, introduction=me, guard=fence)
        answers = Answers(
            self._live,
            JournalReader(journal.path),
            metrics=self._metrics,
            stale_seconds=max(60.0, 3 * settings.loop.interval_seconds),
            access=Access(_token(settings)),
        )
        api = ApiServer(settings.api.listen, answers)
        api.start()
        try:
            while not self._stop.is_set():
                at_nodes = self._settings.nodes
                why = await rival(
                    cluster,
                    nodes,
                    at_nodes.addresses,
                    me,
                    soon_seconds=at_nodes.observe_deadline_seconds,
                    deadline_seconds=at_nodes.observe_deadline_seconds + at_nodes.connect_deadline_seconds,
                )
                if not why:
                    why = await self._control(journal, cluster, nodes)
                if why:
                    if not self._settings.daemon.standby:
                        raise NotLeading(why)
                    self._wait(why)
                    await pause(self._stop, poll_seconds())
                    if not lock.is_ours():
                        raise NotLeading(why)
                    fence.reopen()
        finally:
            api.stop()
            with suppress(GandivaError):
                await nodes.close()
                await cluster.close()

    async def _control(self, journal: Journal, cluster: FencedCluster, nodes: RemoteNodes) -> str:
        """One time of leading. Returns why it is over; empty: a signal has ended it."""
        assert self._stop is not None
        settings = self._settings
        self._waits_for = ""
        self._controller = controller = Controller(
            cluster,
            nodes,
            make_policy(settings.policy),
            journal,
            SystemClock(),
            loop_settings(settings),
            executor_settings(settings),
            priority_class=priority_classes(settings.policy),
            publish=self._publish,
            report_trouble=lambda _all: self._republish(),
            recorder=MeasuringRecorder(JournalRecorder(journal), self._metrics),
        )
        log.info(
            "gandiva %s leads: policy %s, adapter %s, API on %s",
            __version__,
            settings.policy.name,
            settings.cluster.adapter,
            settings.api.listen,
        )
        notify.ready(f"policy {settings.policy.name}")
        renewing = asyncio.create_task(renew(nodes), name="leases")
        try:
            await controller.run(self._stop)
            notify.stopping()
            daemon = self._settings.daemon
            await stop_in_order(
                controller,
                cluster,
                release=daemon.at_stop == "release" and self._may_release,
                deadline_seconds=daemon.stop_deadline_seconds,
            )
            return ""
        except NotLeading as why:
            log.error("this controller does not lead any more: %s", why)
            controller.executor.cancel()
            await controller.executor.drain(1.0)
            return str(why)
        finally:
            renewing.cancel()
            controller.executor.cancel()
            self._controller = self._last = None

    # -- what the loop tells ----------------------------------------------------------------------------

    def _publish(self, tick: Tick) -> None:
        state, self._policy_state = self._policy_state, tick.plan.state
        if self._record_next and state is not None:
            self._record_next = False
            self._record(tick, state)
        self._ticks += 1
        self._last = tick
        self._turned = time.monotonic()
        self._turns.turned(tick)
        self._republish()
        notify.alive(f"{len(tick.snapshot.jobs)} jobs, {len(tick.snapshot.nodes)} nodes")

    def _republish(self) -> None:
        controller, tick = self._controller, self._last
        if controller is None or tick is None:
            return
        health = Health(
            policy=controller.policy.name,
            started=self._started,
            ticks=self._ticks,
            tick_seconds=tick.observe_seconds + tick.plan_seconds,
            problems=(*controller.troubles, *self._told_of_journal()),
        )
        self._live.publish(tick.snapshot, tick.plan.reasons, health, turned=self._turned)

    def _told_of_journal(self) -> list[str]:
        """What became of the journal lately."""
        now = time.monotonic()
        messages = self._journal.messages if self._journal is not None else []
        return [text for text in messages if now - self._told.setdefault(text, now) < TOLD_SECONDS]

    # -- signals --------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._stop is not None
        loop.add_signal_handler(signal.SIGTERM, self._end, True)
        loop.add_signal_handler(signal.SIGINT, self._end, False)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR1, self._ask_for_record)

    def _end(self, may_release: bool) -> None:
        assert self._stop is not None
        self._may_release = may_release
        self._stop.set()

    def _ask_for_record(self) -> None:
        """SIGUSR1: the next decision goes into a file beside the journal, for `gandiva replay`."""
        self._record_next = True

    def _record(self, tick: Tick, state: Mapping[str, Any]) -> None:
        from controller.simulation.snapshot_file import RecordedDecision, dump_decision

        path = self._settings.journal.path.parent / f"decision-{tick.snapshot.time:.0f}.json"
        try:
            # Users' job names are in it: for the controller and root only.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(
                    dump_decision(RecordedDecision(self._settings.policy, tick.snapshot, state, tick.plan))
                )
        except OSError as error:
            log.error(
                "the decision cannot be recorded in file %s: %s; make room, or mend its rights",
                path,
                error.strerror,
            )
            return
        log.info("decision recorded; replay it with: gandiva replay %s", path)

    def _reload(self) -> None:
        """SIGHUP. Bad settings change nothing."""
        if self._stop is not None and self._stop.is_set():
            # Whoever lets jobs go on for the time without a controller must not get another policy.
            log.warning("settings %s are not reloaded: the controller is stopping", self._path)
            return
        notify.reloading()
        try:
            new = load_settings(self._path)
            policy = make_policy(new.policy)
            logs.configure(new.log)
        except (GandivaError, OSError) as error:
            log.error(
                "settings not reloaded, the old ones stay in force: %s; mend and reload again",
                error,
                extra={"file": self._path},
            )
            notify.ready()
            return
        for key in needs_restart(self._settings, new):
            log.warning("%s has changed, which takes effect at the next start only", key)
        self._settings = new
        if self._controller is None:
            log.info("settings reloaded; this controller does not lead")
            notify.ready()
            return
        self._controller.settings = loop_settings(new)
        self._controller.executor.settings = executor_settings(new)
        self._controller.priority_class = priority_classes(new.policy)
        self._controller.use(policy)
        log.info("settings reloaded: policy %s", new.policy.name)
        notify.ready(f"policy {new.policy.name}")


def run(settings_path: Path, *, foreground: bool) -> int:
    """Run the daemon; returns its exit status. Without `foreground` it goes into the background first."""
    settings = load_settings(settings_path)
    try:
        # Before there is no terminal any more that could say what is wrong with it.
        logs.configure(settings.log)
    except OSError as error:
        raise SettingsError(f"log.file: cannot write {settings.log.file}: {error.strerror}") from error
    if not foreground:
        _to_background(settings)
    try:
        asyncio.run(Daemon(settings_path, settings).run())
    except GandivaError as error:
        log.critical("%s", error)
        return 1
    return 0


def _to_background(settings: Settings) -> None:
    if settings.log.file is None:
        raise SettingsError(
            "without -D the daemon needs log.file in the settings: it has no terminal to write to"
        )
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
