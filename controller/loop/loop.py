# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop: observe -> decide -> act -> record. The same for the daemon and for simulations.

It is level-triggered: each turn compares what is observed with what is planned. Starting after a crash, an
interrupted switch and a change behind our back are therefore all the same case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller.act.actions import Action
from controller.act.diff import diff
from controller.act.executor import Executor
from controller.act.recorder import Recorder
from controller.act.site import Site
from controller.errors import ClusterError, JournalError, NodeError
from controller.journal.port import JournalPort
from controller.loop.accounting import UPTIME_KEY, Accounting
from controller.loop.blocks import StaleBlocks
from controller.model.clock import Clock
from controller.loop.collecting import CollectedLater
from controller.loop.memory import PolicyMemory
from controller.loop.pacing import Pace, PaceSettings
from controller.loop.problems import Problems
from controller.loop.records import JobRecords
from controller.loop.repairs import Repairs
from controller.model import JobId, Memory, Plan, Snapshot, Solution, value
from controller.nodes.port import NodePort
from controller.observe.identity import Identities
from controller.observe.memory import Memory as JobMemories
from controller.observe.node_cache import Sample
from controller.observe.observer import Observer, Requests
from controller.policies.protocol import Policy, PolicyError
from controller.slurm.port import ClusterPort, ClusterView
from controller.solver import SolverPort

log = logging.getLogger(__name__)


@value(kw_only=True)
class LoopSettings:
    """How often to look, and how long the nodes may take to answer. Seconds."""

    pace: PaceSettings = field(default_factory=PaceSettings)
    observe_deadline_seconds: float = 3.0
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Node name -> address, where it differs from what Slurm knows."""


@value
class Turn:
    """One turn of the loop, for the live view, metrics and tests."""

    snapshot: Snapshot
    plan: Plan
    actions: tuple[Action, ...]
    samples: Mapping[str, Sample]
    reasons: Mapping[JobId, str]
    memory: Memory
    """What the policy remembered before it decided."""
    observe_seconds: float
    plan_seconds: float


@dataclass
class Parts:
    """What a controller is assembled from."""

    cluster: ClusterPort
    nodes: NodePort
    policy_name: str
    policy: Policy
    journal: JournalPort
    recorder: Recorder
    clock: Clock
    requests: Requests
    solver: SolverPort
    priority_class: Callable[[str], int] = lambda _qos: 0
    publish: Callable[[Turn], None] = lambda _turn: None
    report_problems: Callable[[tuple[str, ...]], None] = lambda _all: None


class Controller:
    """Owns the observer, the policy with its memory, and the executor."""

    def __init__(self, parts: Parts, site: Site, settings: LoopSettings | None = None) -> None:
        """Takes over what an earlier controller left in the journal. Raises JournalError."""
        self._parts, self._clock, self._journal = parts, parts.clock, parts.journal
        self.settings = settings or LoopSettings()
        self._memory: JobMemories = site.memory
        self.pace = Pace(parts.clock)
        self.executor = Executor(site, on_change=self.pace.poke)
        self.observer = Observer(site.memory, parts.requests, parts.priority_class)
        self.problems = Problems(parts.recorder, parts.clock, parts.report_problems)
        self._identities = Identities(parts.journal, self.executor, parts.recorder, parts.clock)
        self._accounting = Accounting(site.memory, parts.recorder, parts.clock)
        self._records = JobRecords(parts.journal, site.memory, parts.requests, parts.clock)
        self._repairs = Repairs(parts.nodes, site, parts.journal)
        self._blocks = StaleBlocks(parts.nodes)
        self._policy_memory = PolicyMemory(parts.journal, parts.policy_name)
        self.reasons: dict[JobId, str] = {}
        self._accounting.recall(parts.journal)

    async def run(self, stop: asyncio.Event) -> None:
        """Take turns until `stop` is set. What is under way then is waited for by the caller."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _task: self.pace.wake())
        try:
            while not stop.is_set():
                began = self._clock.now()
                wake_at = await self.turn()
                await self.pace.rest(self.settings.pace, began, wake_at, stop)
        finally:
            stopping.cancel()

    def use(self, name: str, policy: Policy) -> None:
        """Decide by another policy, or the same with other settings, from the next turn on."""
        if name != self._parts.policy_name:
            self._policy_memory = PolicyMemory(self._journal, name)
        self._parts.policy_name, self._parts.policy = name, policy
        self.observer.resync()
        self.pace.poke()

    async def turn(self) -> float:
        """One turn. Returns when the policy wants the next one at the latest.

        Problems with Slurm, with nodes or with the policy are logged once and reported, and cost this turn only.
        """
        self.executor.mark()
        begin = self._clock.now()
        try:
            view, samples = await self._observe()
        except ClusterError as error:
            self.problems.begin("slurm", f"Slurm cannot be observed: {error}")
            self._commit()
            return float("inf")
        self.problems.end("slurm")
        view = self._identities.check(view)
        now = self._clock.now()
        snapshot = self.observer.look(view, samples, self.executor.in_flight(), now, self._solved())
        self.executor.sync(snapshot)
        self._accounting.follow(self.observer.slurm.jobs, snapshot)
        before = self._policy_memory.memory
        plan = self._decide(snapshot)
        planned = self._clock.now()
        actions = diff(
            snapshot,
            plan.targets,
            self.reasons,
            snapshot.jobs if snapshot.changed.everything else snapshot.changed.jobs,
            suspend_in_slurm=self.executor.site.settings.suspend_in_slurm,
            default_method=self.executor.site.settings.default_method,
        )
        actions = self._repairs.mend(actions, self.observer, snapshot)
        self._remember(snapshot, plan)
        # The journal first, where it can be written. Where not, jobs must not wait for its disk.
        self._commit()
        self._act(actions, snapshot)
        for name, problem in plan.problems.items():
            self._parts.solver.submit(name, problem, self.pace.poke)
        self._blocks.clean(self.observer, self.executor.in_flight(), now)
        self._say_problems(samples)
        turn = Turn(
            snapshot,
            plan,
            tuple(actions),
            self.observer.nodes.samples,
            self.reasons,
            before,
            now - begin,
            planned - now,
        )
        self._parts.publish(turn)
        return plan.wake_at

    async def _observe(self) -> tuple[ClusterView, Mapping[str, Sample]]:
        """Slurm and the nodes at the same time; nodes that Slurm names for the first time are asked after."""
        deadline_seconds = self.settings.observe_deadline_seconds
        view, samples = await asyncio.gather(
            self._parts.cluster.observe(), self._parts.nodes.observe(deadline_seconds)
        )
        new = {node.name for node in view.nodes} - self.observer.slurm.nodes.keys()
        addresses = {node.name: node.address or node.name for node in view.nodes}
        known = {node.name: node.address or node.name for node in self.observer.slurm.nodes.values()}
        if view.complete:
            known = {}
        await self._parts.nodes.set_nodes({**known, **addresses, **self._addresses(known, addresses)})
        if new - samples.keys():
            samples = {**samples, **await self._parts.nodes.observe(deadline_seconds)}
        return view, samples

    def _addresses(self, *known: Mapping[str, str]) -> Mapping[str, str]:
        names = {name for mapping in known for name in mapping}
        return {name: at for name, at in self.settings.addresses.items() if name in names}

    def _decide(self, snapshot: Snapshot) -> Plan:
        """The policy's plan. Where the policy fails jobs stay as they are, and it begins anew next time."""
        try:
            with CollectedLater():
                plan = self._parts.policy.plan(snapshot, self._policy_memory.memory)
        except PolicyError as error:
            self.problems.begin("policy", f"policy {self._parts.policy_name}: {error}; jobs stay as they are")
            self.observer.resync()
            return Plan({})
        self.problems.end("policy", "decides again")
        self.observer.expect(plan.targets)
        for job_id, target in plan.targets.items():
            if not target.placement.gpus and job_id in snapshot.jobs:
                promised = target.placement.allocation
                if self._memory.of(job_id).promised != promised:
                    self._memory.change(job_id).promised = promised
        self.reasons.update(plan.reasons)
        for job_id in snapshot.changed.jobs - snapshot.jobs.keys():
            self.reasons.pop(job_id, None)
        return plan

    def _solved(self) -> Mapping[str, Solution]:
        """Solutions since the turn before."""
        solved = self._parts.solver.take()
        for name, solution in solved.items():
            if solution.error:
                self.problems.begin(f"solver {name}", f"problem {name} is not solved: {solution.error}")
            else:
                self.problems.end(f"solver {name}", "solves it again")
        return solved

    def _remember(self, snapshot: Snapshot, plan: Plan) -> None:
        """Everything that a later controller and the reports need."""
        self._policy_memory.take(plan.memory)
        self._records.follow(self.observer, snapshot)
        self._journal.heartbeat(snapshot.time)
        self._journal.save_state(UPTIME_KEY, list(self._clock.uptime()))

    def _commit(self) -> None:
        try:
            self._journal.commit()
        except JournalError as error:
            self.problems.begin("journal", f"{error}; what should be written is kept in memory")
        else:
            self.problems.end("journal")

    def _act(self, actions: list[Action], snapshot: Snapshot) -> None:
        try:
            self.executor.apply(actions, snapshot)
        except JournalError as error:
            self.problems.begin("journal", f"{error}; some actions have to wait for the next turn")

    def _say_problems(self, samples: Mapping[str, Sample]) -> None:
        failing = {name: str(s) for name, s in samples.items() if isinstance(s, NodeError)}
        for name, text in failing.items():
            if name in self.observer.slurm.nodes:
                self.problems.begin(f"node {name}", text)
        answering = samples.keys() - failing.keys()
        self.problems.only("node", set(self.problems.about("node")) - answering, "answers again")
        gone = set(self.problems.about("node")) - self.observer.slurm.nodes.keys()
        self.problems.only("node", set(self.problems.about("node")) - gone, "is not in Slurm any more")
