# SPDX-License-Identifier: GPL-2.0-or-later
"""A simulated cluster with a controller on it, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from controller.cluster.port import ClusterPort, JobState
from controller.cluster.simulated import SlurmCosts, make_nodes, request_text
from controller.journal import Journal
from controller.loop.loop import Controller, Cycle
from controller.loop.pacing import PaceSettings
from controller.model import JobId
from controller.model.clock import Clock
from controller.nodes.port import NodePort
from controller.nodes.simulated import NodeCosts
from controller.policies.allocations.worker import answers
from controller.policies.moves.move import Move
from controller.policies.presets import PRESETS
from controller.policies.protocol import Policy
from controller.policies.settings import GandivaSettings
from controller.settings.policies import PolicySettings
from controller.settings.schema import Settings, SuspendSettings
from controller.simulation.virtual_time import VirtualClock, run_virtual
from controller.solver import ImmediateSolver, SolverPort
from tests.contract.troubled import TroubledCluster, TroubledNodes

SLICE_SECONDS = 10.0


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run it on virtual time."""

    async def main() -> None:
        await scenario()

    run_virtual(main(), start=1_000_000.0)


def gandiva(*moves: Move) -> Policy:
    """Short slices, and many jobs on a GPU."""
    own = GandivaSettings(slice_seconds=SLICE_SECONDS, max_jobs_per_gpu=8)
    return PRESETS["gandiva"](PolicySettings(gandiva=own), moves)


def fifo(*moves: Move) -> Policy:
    """First come, first served."""
    return PRESETS["fifo"](PolicySettings(name="fifo"), moves)


class World:
    """Make one inside a coroutine run by `run_virtual`."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        gpus: int = 4,
        policy: Policy | None = None,
        slurm_costs: SlurmCosts | None = None,
        node_costs: NodeCosts | None = None,
        clock: Callable[[], Clock] = VirtualClock,
        deltas: bool = False,
        **suspend: object,
    ) -> None:
        """`deltas`: the adapters answer with what changed. `suspend`: settings of this table that are not
        the default."""
        names = [f"n{i + 1}" for i in range(nodes)]
        self.cluster = TroubledCluster(
            {n.name: n for n in make_nodes(names, gpus)},
            slurm_costs or SlurmCosts(0.005, 0.3, 0.1),
            deltas=deltas,
        )
        self.nodes = TroubledNodes(self.cluster, node_costs or NodeCosts(0.1, 0.05, 0.05), deltas=deltas)
        self.policy = policy or gandiva()
        self.policy_name = "gandiva"
        """What it remembers is kept under this name."""
        self.journal_path = folder / "journal.sqlite"
        changes = {"residual_limit_bytes": 0, **suspend}
        self.settings = Settings(suspend=SuspendSettings().model_copy(update=changes))
        self.pace = PaceSettings(interval_seconds=1.0)
        self.cluster_port: ClusterPort = self.cluster
        self.node_port: NodePort = self.nodes
        """What the controller talks to; tests of faults put ports that fail in front."""
        self.solver: SolverPort = ImmediateSolver(answers)
        self.survives: tuple[type[Exception], ...] = ()
        """As the daemon: (Exception,)."""
        self.clock = clock
        """Made anew with each controller."""
        self.cycles: list[Cycle] = []
        self.controller: Controller | None = None
        self._journal: Journal | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def submit(self, gpus: int = 1, work_seconds: float = 1e9, **options: object) -> JobId:
        """A job with this request; other options are fields of the job in Slurm."""
        asked = {
            name: options.pop(name)
            for name in ("nodes", "weight", "suspend", "migrate", "pack", "model", "max_gpus", "search")
            if name in options
        }
        text = request_text(gpus, **asked)
        return self.cluster.submit(text, work_seconds, **options)  # type: ignore[arg-type]

    def start(self) -> Controller:
        """Start a controller, with adapters that have not answered yet."""
        self.cluster._answered = False
        self.nodes._touched = dict.fromkeys(self.cluster.nodes)
        self._journal = Journal(self.journal_path)
        chosen = self.settings.policy.model_copy(update={"name": self.policy_name})
        self.controller = Controller(
            self.settings.model_copy(update={"policy": chosen}),
            self.cluster_port,
            self.node_port,
            self._journal,
            self.clock(),
            solver=self.solver,
            policy=self.policy,
            pace=self.pace,
            survives=self.survives,
            publish=lambda cycle: self.cycles.append(replace(cycle, snapshot=cycle.snapshot.kept())),
        )
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self.controller.run(self._stop))
        return self.controller

    async def kill(self) -> None:
        """As kill -9 does: nothing is finished, nothing is written any more."""
        assert self.controller is not None and self._task is not None and self._journal is not None
        self._task.cancel()
        self.controller.executor.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.sleep(0)
        self._journal.queue.clear()
        self._journal.close()

    async def stop(self) -> None:
        """An orderly end; raises what the loop raised."""
        assert self.controller is not None and self._task is not None and self._journal is not None
        self._stop.set()
        await self._task
        await self.controller.executor.drain(600)
        self._journal.close()

    def running(self) -> set[int]:
        """Jobs that are at work on their GPUs."""
        return {int(j.id) for j in self.cluster.jobs.values() if j.working_since is not None}

    def state(self, job_id: int) -> JobState:
        """What Slurm says of it."""
        return self.cluster.jobs[JobId(job_id)].state

    def worked_seconds(self, job_id: int) -> float:
        """Of its work, so much is done."""
        job = self.cluster.jobs[JobId(job_id)]
        now = asyncio.get_running_loop().time()
        return job.done_seconds + (now - job.working_since if job.working_since is not None else 0.0)

    async def until_ended(self, jobs: list[JobId], limit_seconds: float) -> None:
        """Let time pass until these jobs have ended, at most so long."""
        deadline = asyncio.get_running_loop().time() + limit_seconds
        while any(self.state(j) is not JobState.ENDED for j in jobs):
            assert asyncio.get_running_loop().time() < deadline, {j: self.state(j) for j in jobs}
            await asyncio.sleep(1)

    def check(self) -> None:
        """What must hold at any time."""
        assert self.nodes.violations == [], self.nodes.violations[:3]
