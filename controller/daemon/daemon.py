# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon: waits until it may lead, runs a controller, and answers signals.

SIGTERM and SIGINT end it in order (`controller.daemon.stopping`), SIGHUP reads the settings again, SIGUSR1
records a decision. After kill -9 the next controller goes on from what Slurm and the nodes say.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from pathlib import Path

from controller import __version__
from controller.api.access import Access, read_token
from controller.api.answers import Answers
from controller.api.live import LiveState
from controller.api.metrics import Metrics
from controller.api.server import ApiServer
from controller.daemon import logs, notify
from controller.daemon.decision_file import DecisionFile
from controller.daemon.fence import Fence, NotLeading, fenced
from controller.daemon.leadership import introduction, pause, poll_seconds, renew, rival, wait_to_lead
from controller.daemon.measuring import MeasuringRecorder
from controller.daemon.publishing import Publisher
from controller.daemon.stopping import stop_in_order
from controller.errors import GandivaError
from controller.journal import Journal, JournalReader
from controller.journal.lock import JournalLock
from controller.loop.clock import SystemClock
from controller.loop.loop import Controller, Turn
from controller.nodes.protocol import HelloArgs
from controller.nodes.remote import RemoteNodes
from controller.nodes.ssh import SshSettings, ssh_nodes
from controller.policies.assemble import make_policy
from controller.settings.loading import load_settings
from controller.settings.schema import Settings, needs_restart
from controller.slurm.factory import open_cluster
from controller.slurm.port import ClusterPort
from controller.solver import WorkerSolver

log = logging.getLogger(__name__)


class Daemon:
    """One controller with its API, leading or on standby."""

    def __init__(self, path: Path, settings: Settings) -> None:
        """`path`: of the settings, for the next reload."""
        self._path, self._settings = path, settings
        self._live = LiveState()
        self._metrics = Metrics(self._live, settings.journal.path)
        self._publisher = Publisher(self._live, self._metrics)
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
        if not await wait_to_lead(lock, self._stop, standby=standby, waiting=self._wait):
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
            self._live.stand_by(why)
            notify.ready(why)

    # -- leading and standby ----------------------------------------------------------------------------

    async def _serve(self, journal: Journal, lock: JournalLock) -> None:
        """With the journal's lock: the API, and leading as long as no node obeys another controller."""
        settings = self._settings
        fence, me = Fence(lock), introduction(lock.journal)
        slurm = open_cluster(
            settings.cluster.adapter,
            deadline_seconds=settings.cluster.rpc_deadline_seconds,
            measures=self._metrics,
        )
        cluster = fenced(slurm, fence)
        nodes = ssh_nodes(_ssh_settings(settings), measures=self._metrics, introduction=me, guard=fence)
        api = ApiServer(settings.api.listen, self._answers(journal))
        api.start()
        try:
            while not self._stop.is_set():
                why = await self._rival(cluster, nodes, me) or await self._lead(journal, cluster, nodes)
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

    def _answers(self, journal: Journal) -> Answers:
        return Answers(
            self._live,
            JournalReader(journal.path),
            metrics=self._metrics,
            stale_seconds=max(60.0, 3 * self._settings.loop.interval_seconds),
            access=Access(_token(self._settings)),
        )

    async def _rival(self, cluster: ClusterPort, nodes: RemoteNodes, me: HelloArgs) -> str:
        """Which other controller the nodes obey; empty: none."""
        settings = self._settings.nodes
        return await rival(
            cluster,
            nodes,
            settings.addresses,
            me,
            soon_seconds=settings.observe_deadline_seconds,
            deadline_seconds=settings.observe_deadline_seconds + settings.connect_deadline_seconds,
        )

    async def _lead(self, journal: Journal, cluster: ClusterPort, nodes: RemoteNodes) -> str:
        """One time of leading. Returns why it is over; empty: a signal has ended it."""
        settings = self._settings
        self._waits_for = ""
        solver = WorkerSolver()
        self._controller = controller = Controller(
            settings,
            cluster,
            nodes,
            journal,
            SystemClock(),
            solver=solver,
            recorder=MeasuringRecorder(journal, self._metrics),
            publish=self._publish,
            report=self._publisher.report,
        )
        log.info(
            "gandiva %s leads: policy %s, adapter %s, API on %s",
            __version__,
            settings.policy.name,
            settings.cluster.adapter,
            settings.api.listen,
        )
        self._publisher.begin(settings.policy.name, journal)
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
            self._controller = None
            self._publisher.end()
            await solver.close()

    def _publish(self, turn: Turn) -> None:
        self._decisions.turned(turn, self._settings.policy)
        self._publisher.turned(turn)

    # -- signals ----------------------------------------------------------------------------------------

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
        notify.reloading()
        try:
            new = load_settings(self._path)
            policy = make_policy(new.policy)
            logs.configure(new.log)
        except (GandivaError, OSError) as error:
            log.error(
                "settings not reloaded, the old ones stay in force: %s; correct them and reload again",
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
        self._controller.use_settings(self._settings, policy)
        self._publisher.policy = self._settings.policy.name
        log.info("settings reloaded: policy %s", self._settings.policy.name)
        notify.ready(f"policy {self._settings.policy.name}")


def _token(settings: Settings) -> str | None:
    """What callers must have to see jobs; None: nothing. Raises SettingsError."""
    file = settings.api.token_file
    return read_token(file) if settings.api.private_data and file is not None else None


def _ssh_settings(settings: Settings) -> SshSettings:
    nodes = settings.nodes
    return SshSettings(
        key_file=nodes.ssh_key,
        known_hosts_file=nodes.known_hosts,
        user=nodes.ssh_user,
        port=nodes.ssh_port,
        connect_seconds=nodes.connect_deadline_seconds,
    )
