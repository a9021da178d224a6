# SPDX-License-Identifier: GPL-2.0-or-later
"""A controller with all that is around it: the journal's readers, the API, a solver, leases, figures.

The daemon makes one of these, and so does `gandiva run`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from controller.api.access import Access
from controller.api.answers import Answers
from controller.api.live import LiveState
from controller.api.metrics import Metrics
from controller.api.server import ApiServer
from controller.cluster.port import ClusterPort
from controller.daemon import leadership
from controller.daemon.measuring import MeasuringRecorder
from controller.daemon.publishing import Publisher
from controller.journal import Journal, JournalReader
from controller.loop.clock import SystemClock
from controller.loop.loop import Controller, Cycle
from controller.nodes.remote import RemoteNodes
from controller.policies.allocations.worker import COMMAND as SOLVER_COMMAND
from controller.policies.protocol import Policy
from controller.settings.schema import Settings
from controller.solver import WorkerSolver


class Assembly:
    """What outlives one time of leading."""

    def __init__(self, journal: Path) -> None:
        self.live = LiveState()
        self.metrics = Metrics(self.live, journal)
        self.publisher = Publisher(self.live, self.metrics)
        self._journal = journal

    def serve(self, listen: str, interval_seconds: float, token: str | None = None) -> ApiServer:
        """The API, which is to be stopped. `listen`: as of `ApiServer`. `interval_seconds`: the longest time
        between two cycles. `token`: what callers must have to see jobs. Raises GandivaError."""
        answers = Answers(
            self.live,
            JournalReader(self._journal),
            metrics=self.metrics,
            stale_seconds=max(60.0, 3 * interval_seconds),
            access=Access(token),
        )
        api = ApiServer(listen, answers)
        api.start()
        return api

    @asynccontextmanager
    async def leading(
        self,
        settings: Settings,
        policy: Policy,
        cluster: ClusterPort,
        nodes: RemoteNodes,
        journal: Journal,
        publish: Callable[[Cycle], None],
    ) -> AsyncIterator[Controller]:
        """A controller, to be run; it survives its bugs. `publish`: as of `Controller`. Operations that are
        under way at the end are cut off. Raises what `Controller` does."""
        solver = WorkerSolver(SOLVER_COMMAND)
        controller = Controller(
            settings,
            cluster,
            nodes,
            journal,
            SystemClock(),
            solver=solver,
            policy=policy,
            recorder=MeasuringRecorder(journal, self.metrics),
            publish=publish,
            report=self.publisher.report,
            survives=(Exception,),
        )
        self.publisher.begin(settings.policy.name, journal)
        renewing = asyncio.create_task(leadership.renew(nodes), name="leases")
        try:
            yield controller
        finally:
            renewing.cancel()
            controller.executor.cancel()
            self.publisher.end()
            await solver.close()
