# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon: waits until it may lead, runs a controller, and answers signals.

SIGTERM and SIGINT end it in order (`controller.daemon.stopping`), SIGHUP reads the settings again, SIGUSR1
records a decision. After kill -9 the next controller goes on from what Slurm and the nodes say.
"""

import asyncio
import logging
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from controller import __version__
from controller.api.access import read_token
from controller.cluster.adapter import open_cluster
from controller.cluster.port import ClusterPort
from controller.daemon import leadership, logs
from controller.daemon.assembly import Assembly
from controller.daemon.publishing import DecisionFile, tell_systemd
from controller.daemon.stopping import stop_in_order
from controller.errors import GandivaError, NotLeading, SettingsError
from controller.journal import Journal
from controller.journal.lock import JournalLock
from controller.loop.loop import Controller, Cycle
from controller.nodes.remote import RemoteNodes
from controller.nodes.ssh import ssh_nodes
from controller.observe.declared import DeclaredFile, RatesFileError, declared_path
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.loading import load_settings
from controller.settings.ownership import require_own
from controller.settings.schema import Settings, needs_restart

log = logging.getLogger(__name__)


def run(settings_path: Path, *, foreground: bool) -> int:
    """Run the daemon; returns its exit status. Without `foreground` it goes into the background first."""
    settings = load_settings(settings_path)
    try:
        # While there is a terminal that can show what is wrong with the log.
        logs.configure(settings.log)
    except OSError as error:
        raise SettingsError(f"log.file: cannot write {settings.log.file}: {error.strerror}") from error
    # A policy that cannot be made is an error now, not when this controller has to take over.
    own_policy(settings)
    _warn_of_deprecated(settings_path, settings)
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


class Daemon:
    """One controller with its API, leading or on standby."""

    def __init__(self, path: Path, settings: Settings) -> None:
        """`path`: of the settings, for the next reload."""
        self._path, self._settings = path, settings
        self._assembly = Assembly(settings.journal.path)
        self._decisions = DecisionFile(settings.journal.path.parent)
        self._controller: Controller | None = None
        """While this one leads."""
        self._stop = asyncio.Event()
        self._may_release = True
        """The signal that ends the daemon lets daemon.at_stop count."""
        self._waits_for = ""

    async def run(self) -> None:
        """Until a signal ends it. Raises GandivaError when it cannot start."""
        self._handle_signals()
        lock = JournalLock(self._settings.journal.path)
        standby = self._settings.daemon.standby
        if not await leadership.wait_to_lead(lock, self._stop, standby=standby, waiting=self._wait):
            log.info("stopped without having led")
            return
        settings = self._settings.journal
        with Journal(
            lock.journal, retention_days=settings.retention_days, detail_days=settings.detail_days, lock=lock
        ) as journal:
            await self._serve(journal, lock)

    def _wait(self, why: str) -> None:
        if why != self._waits_for:
            self._waits_for = why
            log.info("%s", why)
            self._assembly.live.stand_by(why)
            tell_systemd("READY=1", why)

    async def _serve(self, journal: Journal, lock: JournalLock) -> None:
        """With the journal's lock: the API, and leading as long as no node obeys another controller."""
        settings = self._settings
        fence, me = leadership.Fence(lock), leadership.introduction(lock.journal)
        slurm = open_cluster(
            settings.cluster.adapter,
            deadline_seconds=settings.cluster.rpc_deadline_seconds,
            measures=self._assembly.metrics,
        )
        cluster = leadership.fenced(slurm, fence)
        nodes = ssh_nodes(settings.nodes, measures=self._assembly.metrics, introduction=me, guard=fence)
        api = self._assembly.serve(settings.api.listen, settings.loop.interval_seconds, _token(settings))
        try:
            while not self._stop.is_set():
                why = await leadership.rival(cluster, nodes, self._settings.nodes, me)
                why = why or await self._lead(journal, cluster, nodes)
                if why:
                    if not self._settings.daemon.standby:
                        raise NotLeading(why)
                    self._wait(why)
                    pause_seconds = leadership.NODE_POLL_SECONDS * random.uniform(1.0, 2.0)
                    await leadership.pause(self._stop, pause_seconds)
                    if not lock.is_ours():
                        raise NotLeading(why)
                    fence.reopen()
        finally:
            api.stop()
            with suppress(GandivaError):
                await nodes.close()
                await cluster.close()

    async def _lead(self, journal: Journal, cluster: ClusterPort, nodes: RemoteNodes) -> str:
        """One time of leading. Returns why it is over; empty: a signal has ended it."""
        settings = self._settings
        self._waits_for = ""
        policy, publish = own_policy(settings), self._publish
        async with self._assembly.leading(settings, policy, cluster, nodes, journal, publish) as controller:
            self._controller = controller
            try:
                return await self._run(controller, cluster, journal)
            finally:
                self._controller = None

    async def _run(self, controller: Controller, cluster: ClusterPort, journal: Journal) -> str:
        """Its loop, and the orderly stop. Returns as `_lead` does."""
        settings = self._settings
        log.info(
            "gandiva %s leads: policy %s, adapter %s, API on %s",
            __version__,
            settings.policy.name,
            settings.cluster.adapter,
            settings.api.listen,
        )
        self._declared = DeclaredFile(declared_path(journal.path))
        self._take_declared()
        try:
            await controller.run(self._stop)
            tell_systemd("STOPPING=1")
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

    def _take_declared(self) -> None:
        """Rates that `gandiva rates import` has written since the cycle before."""
        try:
            declared = self._declared.changed()
        except RatesFileError as error:
            log.error("%s; the rates declared before stay", error)
            return
        if declared is not None and self._controller is not None:
            self._controller.observer.measured.rates.declare(declared)
            self._controller.observer.resync()
            log.info("declared rates of %d models from %s", len(declared), self._declared.path)

    def _publish(self, cycle: Cycle) -> None:
        self._take_declared()
        self._decisions.completed(cycle, self._settings.policy)
        self._assembly.publisher.completed(cycle)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end, True)
        loop.add_signal_handler(signal.SIGINT, self._end, False)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR1, lambda: self._decisions.ask(self._controller))

    def _end(self, may_release: bool) -> None:
        self._may_release = may_release
        self._stop.set()

    def _reload(self) -> None:
        if self._stop.is_set():
            # Another policy would suspend and place jobs again while the controller releases them.
            log.warning("settings %s are not reloaded: the controller is stopping", self._path)
            return
        tell_systemd(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        tell_systemd("READY=1", self._take_settings())

    def _take_settings(self) -> str:
        """Read them again. Returns what systemd shows; empty: what it showed before."""
        try:
            new = load_settings(self._path)
            policy = own_policy(new)
            logs.configure(new.log)
        except (GandivaError, OSError) as error:
            text = "settings not reloaded, the old ones stay in force: %s; correct them and reload again"
            log.error(text, error, extra={"file": self._path})
            return ""
        for key in needs_restart(self._settings, new):
            log.warning("%s has changed, which takes effect at the next start only", key)
        _warn_of_deprecated(self._path, new)
        self._settings = new
        if self._controller is None:
            log.info("settings reloaded; this controller does not lead")
            return ""
        self._controller.use_settings(new, policy)
        self._assembly.publisher.policy = new.policy.name
        log.info("settings reloaded: policy %s", new.policy.name)
        return f"policy {new.policy.name}"


def _warn_of_deprecated(path: Path, settings: Settings) -> None:
    for each in settings.policy.deprecated:
        log.warning("file %s: %s", path, each)


def own_policy(settings: Settings) -> Policy:
    """The policy of the settings. Raises SettingsError, also where another user can change its files."""
    require_own((settings.policy.name, *settings.policy.moves), os.geteuid())
    return make_policy(settings.policy)


def _token(settings: Settings) -> str | None:
    """What callers must have to see jobs; None: nothing. Raises SettingsError."""
    file = settings.api.token_file
    return read_token(file) if settings.api.private_data and file is not None else None
