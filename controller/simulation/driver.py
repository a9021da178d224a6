# SPDX-License-Identifier: GPL-2.0-or-later
"""A trace under a policy: the controller on a simulated cluster, in virtual time.

Event driven: the loop begins a cycle when a job comes or ends, when an operation ends, and when the policy
asks.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from controller.cluster.progress import Progress
from controller.cluster.simulated import SimulatedCluster, SlurmCosts
from controller.cluster.simulated_job import SimulatedJob
from controller.errors import GandivaError, SettingsError
from controller.journal.memory import MemoryJournal
from controller.loop.loop import Controller, Cycle
from controller.loop.pacing import PaceSettings
from controller.model import JobId, Memory, Plan, Share, Snapshot
from controller.nodes.simulated import NodeCosts, SimulatedNodes
from controller.observe.rates import Table
from controller.policies.allocations.settings import unknown_types
from controller.policies.allocations.worker import answers
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy, PolicyError
from controller.policies.site import Part, load_part
from controller.settings.schema import Settings
from controller.simulation.cluster_spec import ClusterSpec
from controller.simulation.collecting import seldom_collected
from controller.simulation.ground_truth import Throughputs
from controller.simulation.outcome import Outcome, gpu_seconds, job_outcomes, usage_curve
from controller.simulation.rounds import InRounds
from controller.simulation.traces import TraceJob
from controller.simulation.virtual_time import (
    SETTLED_SECONDS,
    SimulationDeadlock,
    VirtualClock,
    run_virtual,
)
from controller.simulation.workload import Workload
from controller.solver import ImmediateSolver


@dataclass
class Timed:
    """A policy, with a stop watch."""

    policy: Policy
    seconds: list[float] = field(default_factory=list)
    """Real time of each plan."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """That of the policy. Raises GandivaError where it fails: the simulation ends then."""
        begin = time.perf_counter()
        try:
            plan = self.policy.plan(snapshot, memory)
        except PolicyError as error:
            raise GandivaError(f"the policy failed at {snapshot.time:g} s: {error}") from error
        self.seconds.append(time.perf_counter() - begin)
        return plan


@dataclass
class Simulation:
    """One trace, one cluster, one policy; `run` once."""

    trace: Path
    """For messages."""
    jobs: Sequence[TraceJob]
    cluster: ClusterSpec
    settings: Settings
    throughputs: Throughputs = field(default_factory=Throughputs)
    seed: int = 0
    label: str = ""
    """Default: the policy's name."""
    policy: Policy | None = None
    """In place of the one that the settings name."""
    rates: Table = field(default_factory=dict)
    """Declared ones: what is measured replaces them."""
    on_progress: Callable[[int, int, float], None] = lambda _done, _all, _time: None
    """Called with jobs ended, jobs in all, virtual time: with each decision, and at the last end."""
    on_cycle: Callable[[Cycle], None] = lambda _cycle: None
    """Called with each decision."""

    def __post_init__(self) -> None:
        """Raises GandivaError where no job can run or the policy cannot be made, or where its settings name a
        GPU type that the cluster does not have."""
        for wrong in unknown_types(self.settings.policy.in_use, self.cluster.models):
            raise SettingsError(f"{wrong} of the cluster")
        if self.settings.simulation.placement == "count":
            self.cluster = self.cluster.counted(by_node=self.settings.policy.name == "gandiva")
        costs = self.settings.simulation
        self._workload = Workload(self.trace, self.jobs, self.cluster, self.throughputs, costs)
        self._ends: dict[JobId, float] = {}
        """When each job's work was done."""
        self._dropped: set[JobId] = set()
        """Jobs that ended before."""
        self._progress = _progress_part(costs.progress, self.settings.policy.own)
        self._policy = Timed(self.policy or make_policy(self.settings.policy, self._progress))
        self.journal = MemoryJournal()

    def run(self) -> Outcome:
        """Raises GandivaError when jobs are left that nothing will ever start."""
        begin = time.perf_counter()
        random.seed(self.seed)
        jobs = self._workload.jobs
        first = min(job.submit_seconds for job in jobs.values())
        try:
            with seldom_collected():
                run_virtual(self._main(), start=min(0.0, first))
        except SimulationDeadlock:
            raise GandivaError(
                f"{len(jobs) - len(self._ends)} of {len(jobs)} jobs are left that policy "
                f"{self.settings.policy.name} never starts on this cluster: do their sizes fit its nodes?"
            ) from None
        slices = self.journal.slices
        return Outcome(
            label=self.label or self.settings.policy.name,
            settings=self.settings,
            submitted=len(self.jobs),
            gpus=self.cluster.gpus,
            jobs=job_outcomes(
                {i: job for i, job in jobs.items() if i not in self._dropped}, self._ends, self.journal
            ),
            usage=usage_curve(slices),
            gpu_seconds=gpu_seconds(slices),
            decision_seconds=tuple(self._policy.seconds),
            wall_seconds=time.perf_counter() - begin,
        )

    async def _main(self) -> None:
        costs, done = self.settings.simulation, asyncio.Event()
        clock = VirtualClock()
        cluster = SimulatedCluster(
            {node.name: node for node in self.cluster.nodes},
            SlurmCosts(costs.rpc_seconds, costs.start_seconds, costs.requeue_seconds),
            keep_ended=False,
            end_quantum_seconds=costs.round_seconds,
            progress=next((cast(Progress, part.made) for part in self._progress), None),
            deltas=True,
            tells_durations=True,
            tree=share_tree(costs.shares),
            clock=clock.now,
        )
        reads_rates = self.policy is not None or self.settings.policy.reads_rates
        nodes = SimulatedNodes(
            cluster,
            NodeCosts(costs.step_seconds, costs.suspend_seconds, costs.resume_seconds),
            deltas=True,
            progress=reads_rates and costs.measure_rates,
            tells_steps=costs.measure_rates,
        )
        cluster.rate = lambda job, beside: self._workload.rate(job, beside, nodes.gpus_of(job))
        policy, publish = self._in_rounds()
        controller = Controller(
            patient(self.settings),
            cluster,
            nodes,
            self.journal,
            clock,
            solver=ImmediateSolver(answers),
            policy=policy,
            pace=PaceSettings(
                interval_seconds=math.inf,
                coalesce_seconds=max(costs.coalesce_seconds, SETTLED_SECONDS),
                resync_seconds=math.inf,
            ),
            publish=publish,
        )
        controller.observer.measured.rates.declare(self.rates)

        def on_end(job: SimulatedJob) -> None:
            assert job.end_time is not None
            self._ends[job.id] = job.end_time
            if job.state_name != "COMPLETED":
                self._dropped.add(job.id)
            controller.pace.poke()
            if len(self._ends) == len(self._workload.jobs):
                self.on_progress(len(self._ends), len(self._ends), job.end_time)
                done.set()

        cluster.on_end = on_end
        running = asyncio.create_task(controller.run(done))
        arriving = asyncio.create_task(self._submit(cluster, nodes, controller))
        finished, _ = await asyncio.wait((running, arriving), return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            task.result()
        await controller.executor.drain(3600)
        # The loop stopped at the last end: it sees it now.
        await controller.cycle()
        if nodes.violations:
            raise GandivaError(f"two jobs on one GPU: {nodes.violations[0]}")

    def _in_rounds(self) -> tuple[Policy, Callable[[Cycle], None]]:
        """The policy, and what is called with its decisions."""
        costs = self.settings.simulation

        def publish(cycle: Cycle) -> None:
            if len(self._ends) < len(self._workload.jobs):
                self.on_progress(len(self._ends), len(self._workload.jobs), cycle.snapshot.time)
            self.on_cycle(cycle)

        if not costs.round_seconds:
            return self._policy, publish
        # An event may fall into a look at Slurm; the next look sees it.
        late_seconds = costs.coalesce_seconds + 2 * costs.rpc_seconds
        rounds = InRounds(self._policy, costs.round_seconds, costs.reset_floor_seconds, late_seconds)
        return rounds, lambda cycle: publish(cycle) if rounds.decided else None

    async def _submit(self, cluster: SimulatedCluster, nodes: SimulatedNodes, controller: Controller) -> None:
        loop = asyncio.get_running_loop()
        for job_id, job in self._workload.jobs.items():
            when = self._workload.submit_time(job)
            if when > loop.time():
                controller.pace.poke()
                await asyncio.sleep(when - loop.time())
            if self._workload.has_store(job_id):
                nodes.storing.add(job_id)
            cluster.add(self._workload.as_submitted(job_id))
        controller.pace.poke()


def _progress_part(name: str, own: Mapping[str, Any]) -> list[Part]:
    """The part that `simulation.progress` names, if it names one. Raises SettingsError."""
    if not name:
        return []
    part = load_part(name, own)
    if not all(callable(getattr(part.made, call, None)) for call in ("attach", "begin", "stop")):
        raise SettingsError(f"simulation.progress: {name} has not the methods attach, begin and stop")
    return [part]


def share_tree(shares: Mapping[str, float]) -> tuple[Share, ...]:
    """The associations that the settings name, parents first: accounts below the root, users in accounts."""
    accounts = dict.fromkeys(name.partition("/")[0] for name in shares)
    tree = [Share("root", None, 1.0), *(Share(name, "root", shares.get(name, 1.0)) for name in accounts)]
    users = [name for name in shares if "/" in name]
    return (*tree, *(Share(name, name.partition("/")[0], shares[name], 0.0, 0.0) for name in users))


def patient(settings: Settings) -> Settings:
    """The settings, with deadlines that the simulated Slurm keeps however long it takes to start a job."""
    seconds = max(settings.suspend.start_deadline_seconds, 2 * settings.simulation.start_seconds)
    suspend = settings.suspend.model_copy(update={"start_deadline_seconds": seconds})
    return settings.model_copy(update={"suspend": suspend})
