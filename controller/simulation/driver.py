# SPDX-License-Identifier: GPL-2.0-or-later
"""A trace under a policy: the live loop, executor and policy on a simulated cluster and virtual time.

Event driven: the loop looks when a job comes or ends, when an operation ends, and when the policy asks.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.errors import GandivaError
from controller.executor import ExecutorSettings
from controller.loop import Controller, LoopSettings, Tick
from controller.model import JobId, Plan, Snapshot
from controller.nodes.simulated import NodeCosts, SimulatedNodes
from controller.policies.base import Policy
from controller.policies.registry import make_policy, priority_classes
from controller.settings.schema import Settings
from controller.simulation.cluster_spec import ClusterSpec
from controller.simulation.collecting import seldom_collected
from controller.simulation.ground_truth import GroundTruth, Throughputs, tensor_bytes
from controller.simulation.recording import SimulationRecords
from controller.simulation.rounds import InRounds
from controller.simulation.traces import TraceError, TraceJob
from controller.simulation.traces.formats import model_slug
from controller.simulation.virtual_time import SimulationDeadlock, VirtualClock, run_virtual
from controller.slurm.simulated import SimulatedCluster, SimulatedJob, SlurmCosts, request_text


class SimulationError(GandivaError):
    """The simulation cannot go on, or did not end as it must."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of one job of the trace. Times in seconds, those of the trace."""

    id: str
    gpus: int
    submit_seconds: float
    start_seconds: float
    end_seconds: float
    run_seconds: float
    preemptions: int
    migrations: int

    @property
    def jct_seconds(self) -> float:
        """From submission to end."""
        return self.end_seconds - self.submit_seconds

    @property
    def queueing_seconds(self) -> float:
        """From submission to the first start."""
        return self.start_seconds - self.submit_seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole simulation."""

    policy: str
    label: str
    """What tells it from others of one comparison."""
    settings: Settings
    submitted: int
    gpus: int
    jobs: tuple[JobOutcome, ...]
    """Those that ended, in the order of the trace."""
    usage: tuple[tuple[float, int], ...]
    """(time, GPUs in use from then on)."""
    gpu_seconds: float
    decision_seconds: tuple[float, ...]
    """Real time of each decision of the policy."""
    wall_seconds: float


@dataclass
class _Timed:
    """The policy, with a stop watch."""

    policy: Policy
    seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def reads_accrual(self) -> bool:
        return getattr(self.policy, "reads_accrual", False)

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> Plan:
        begin = time.perf_counter()
        plan = self.policy.plan(snapshot, state)
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
    on_progress: Callable[[int, int, float], None] = lambda _done, _all, _time: None
    """Called with jobs ended, jobs in all, virtual time: with each decision, and at the last end."""
    on_tick: Callable[[Tick], None] | None = None
    """Called with each decision."""

    def __post_init__(self) -> None:
        simulation = self.settings.simulation
        counting = simulation.placement == "count"
        self._described = self.cluster
        if counting:
            self.cluster = self.cluster.counted()
        self._ground_truth = GroundTruth(
            self.throughputs, self.cluster.models[0], placement_matters=not counting
        )
        self._largest_node = max(len(node.gpus) for node in self.cluster.nodes)
        self._type_of = {node.name: node.gpus[0].model for node in self.cluster.nodes}
        self._available: dict[tuple[str, ...], int] = {}
        self._by_id: dict[JobId, TraceJob] = {}
        self._work: dict[JobId, float] = {}
        for number, job in enumerate(self.jobs, start=1):
            work = self._check(job)
            if work is not None:
                self._by_id[JobId(number)] = job
                self._work[JobId(number)] = work
        if not self._by_id:
            raise SimulationError(f"{self.trace}: none of its jobs can run on this cluster")

    def _check(self, job: TraceJob) -> float | None:
        """Seconds of work on the reference type; None: left out. Raises TraceError."""
        drop = self.settings.simulation.drop_unfinishable
        available = self._available.get(job.gpu_types)
        if available is None:
            available = self._available[job.gpu_types] = self.cluster.of_types(job.gpu_types)
        if job.gpus > available:
            if drop:
                return None
            types = "+".join(job.gpu_types)
            problem = f"job {job.id} wants {job.gpus} GPUs, the cluster has {available} {types}".rstrip()
            problem += " (--set simulation.drop_unfinishable=true leaves such jobs out)"
            raise TraceError(self.trace, job.line, job.gpus_column, problem)
        if job.duration_seconds is not None:
            return job.duration_seconds
        assert job.steps is not None
        work = self._ground_truth.duration_seconds(job.model, job.gpus, job.steps)
        if work is None and not drop:
            where = f"on {self._ground_truth.reference_type} with {job.gpus} GPUs"
            problem = f"the table of throughputs has no rate of {job.model!r} {where}"
            if not self.throughputs.alone:
                problem = "how long its steps take is not known: --throughputs names the table that says so"
            raise TraceError(self.trace, job.line, "job_type", problem)
        return work

    # -- running --------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Raises SimulationError when jobs are left that nothing will ever start."""
        begin = time.perf_counter()
        random.seed(self.seed)
        with seldom_collected():
            return self._run(begin)

    def _run(self, begin: float) -> Outcome:
        first = min(job.submit_seconds for job in self._by_id.values())
        try:
            records, timed, ended = run_virtual(self._main(), start=min(0.0, first))
        except SimulationDeadlock:
            left = len(self._by_id) - self._ended
            raise SimulationError(
                f"{left} of {len(self._by_id)} jobs are left that policy {self.settings.policy.name} never "
                "starts on this cluster: do their sizes fit its nodes?"
            ) from None
        outcomes = []
        for job_id, job in self._by_id.items():
            history = records.histories[job_id]
            start = history.first_start
            assert start is not None
            outcomes.append(
                JobOutcome(
                    job.id,
                    job.gpus,
                    job.submit_seconds,
                    start,
                    ended[job_id],
                    history.run_seconds,
                    history.preemptions,
                    history.migrations,
                )
            )
        return Outcome(
            policy=self.settings.policy.name,
            label=self.label or self.settings.policy.name,
            settings=self.settings,
            submitted=len(self.jobs),
            gpus=self.cluster.gpus,
            jobs=tuple(outcomes),
            usage=tuple(records.usage),
            gpu_seconds=records.gpu_seconds,
            decision_seconds=tuple(timed.seconds),
            wall_seconds=time.perf_counter() - begin,
        )

    async def _main(self) -> tuple[SimulationRecords, _Timed, dict[JobId, float]]:
        costs = self.settings.simulation
        self._ended = 0
        ends: dict[JobId, float] = {}
        done = asyncio.Event()
        clock = VirtualClock(asyncio.get_running_loop())
        cluster = SimulatedCluster(
            {node.name: node for node in self.cluster.nodes},
            SlurmCosts(costs.rpc_seconds, costs.start_seconds, costs.requeue_seconds),
            keep_ended=False,
            rate=self._rate,
            end_quantum_seconds=costs.round_seconds,
            partial=True,
            tells_durations=True,
            clock=clock.now,
        )
        nodes = SimulatedNodes(
            cluster, NodeCosts(costs.step_seconds, costs.suspend_seconds, costs.resume_seconds)
        )
        records, timed = SimulationRecords(), _Timed(make_policy(self.settings.policy))
        policy, publish = self._in_rounds(timed)
        controller = Controller(
            cluster,
            nodes,
            policy,
            records,
            clock,
            LoopSettings(
                interval_seconds=math.inf,
                coalesce_seconds=costs.coalesce_seconds,
                concurrent=not self._ideal,
                default_weight=self.settings.requests.weight,
                weight_limits=self.settings.requests.weight_limits,
            ),
            self._executor_settings(),
            priority_class=priority_classes(self.settings.policy),
            publish=publish,
            recorder=records,
        )

        def on_end(job: SimulatedJob) -> None:
            assert job.end_time is not None
            ends[job.id] = job.end_time
            self._ended += 1
            controller.poke()
            if self._ended == len(self._by_id):
                self.on_progress(self._ended, self._ended, job.end_time)
                done.set()

        cluster.on_end = on_end
        running = asyncio.create_task(controller.run(done))
        arriving = asyncio.create_task(self._submit(cluster, controller))
        finished, _ = await asyncio.wait((running, arriving), return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            task.result()
        await controller.executor.drain(3600)
        # The loop stopped at the last end: it sees it now.
        await controller.tick()
        if nodes.violations:
            raise SimulationError(f"two jobs on one GPU: {nodes.violations[0]}")
        return records, timed, ends

    def _in_rounds(self, policy: Policy) -> tuple[Policy, Callable[[Tick], None]]:
        """The policy, and who hears of its decisions: as they are where these may be made at any time."""
        costs, on_tick = self.settings.simulation, self.on_tick or (lambda _tick: None)

        def publish(tick: Tick) -> None:
            if self._ended < len(self._by_id):
                self.on_progress(self._ended, len(self._by_id), tick.snapshot.time)
            on_tick(tick)

        if not costs.round_seconds:
            return policy, publish
        # (An event may fall into a look at Slurm; the next look sees it.)
        late_seconds = costs.coalesce_seconds + 2 * costs.rpc_seconds
        rounds = InRounds(policy, costs.round_seconds, costs.reset_floor_seconds, late_seconds)
        return rounds, lambda tick: publish(tick) if rounds.decided else None

    @property
    def _ideal(self) -> bool:
        """Nothing takes time, so nothing is gained by doing it at the same time."""
        costs = self.settings.simulation
        waits = (costs.rpc_seconds, costs.step_seconds, costs.suspend_seconds, costs.resume_seconds)
        return not any(waits)

    def _executor_settings(self) -> ExecutorSettings:
        suspend = self.settings.suspend
        return ExecutorSettings(
            suspend_in_slurm=suspend.mode == "slurm",
            default_method=self.settings.requests.suspend,
            step_deadline_seconds=suspend.step_deadline_seconds,
            retry_after_seconds=suspend.retry_after_seconds,
            unsuspendable=suspend.unsuspendable,
            unsuspendable_tries=suspend.unsuspendable_tries,
            preempt_exempt_ratio=suspend.preempt_exempt_ratio,
            concurrent=not self._ideal,
            start_deadline_seconds=max(60.0, 2 * self.settings.simulation.start_seconds),
        )

    async def _submit(self, cluster: SimulatedCluster, controller: Controller) -> None:
        loop = asyncio.get_running_loop()
        costs = self.settings.simulation
        quantum = costs.round_seconds
        for job_id, job in self._by_id.items():
            when = job.submit_seconds
            if quantum:
                when = math.ceil(when / quantum - 1e-9) * quantum
            if when > loop.time():
                controller.poke()
                await asyncio.sleep(when - loop.time())
            largest, whole = tensor_bytes(job.model)
            speed = costs.checkpoint_bytes_per_second
            move_seconds = (whole or costs.checkpoint_bytes) / speed if speed else 0.0
            cluster.add(
                SimulatedJob(
                    id=job_id,
                    user=job.user,
                    account=job.account,
                    qos=job.qos,
                    request=request_text(
                        job.gpus, nodes=job.nodes, weight=job.weight, model=model_slug(job.model) or None
                    ),
                    work_seconds=self._work[job_id],
                    submit_time=job.submit_seconds,
                    name=job.id,
                    state_bytes=whole,
                    largest_tensor_bytes=largest,
                    checkpoint_seconds=move_seconds,
                    restart_seconds=costs.restart_seconds + move_seconds if costs.restart_seconds else 0.0,
                )
            )
        controller.poke()

    def _rate(self, job: SimulatedJob) -> float:
        trace = self._by_id[job.id]
        gpu_type = self._type_of[job.nodes[0]]
        spread = len(job.nodes) > -(-trace.gpus // self._largest_node)
        if not self.throughputs.alone and not spread:
            return 1.0
        return self._ground_truth.relative_rate(trace.model, trace.gpus, gpu_type, spread=spread)
