# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop: observe -> decide -> act -> record. The same for the daemon and for simulations.

It is level-triggered: each cycle compares what is observed with what is planned. Starting after a crash, an
interrupted switch and a change made by others are therefore all the same case.
"""

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from controller.act.actions import Action
from controller.act.context import Context
from controller.act.diff import diff
from controller.act.executor import Executor
from controller.act.recorder import Recorder
from controller.cluster.port import ClusterPort
from controller.errors import ClusterError, JournalError
from controller.journal import Journal
from controller.loop.accounting import UPTIME_KEY, Accounting
from controller.loop.conditions import (
    Conditions,
    report_kept,
    report_nodes,
    report_partitions,
    report_refused,
    report_types,
)
from controller.loop.failures import CYCLE, Failures, go_on
from controller.loop.pacing import Pace, PaceSettings
from controller.loop.poller import Poller
from controller.loop.records import JobRecords
from controller.loop.repairs import Repairs, StaleBlocks
from controller.loop.shares import ShareReader
from controller.loop.state_store import PolicyMemory, StateStore
from controller.model import JobId, Memory, Moved, Plan, Reason, Snapshot, Solution, Why, value
from controller.model.clock import Clock
from controller.nodes.port import NodePort
from controller.observe.identities import Identities
from controller.observe.memory import JobMemories
from controller.observe.node_cache import Sample
from controller.observe.observer import Observer
from controller.observe.requests import RequestReader
from controller.policies.assemble import make_policy, priority_class
from controller.policies.protocol import Policy, PolicyError
from controller.settings.schema import Settings
from controller.solver import SolverPort

log = logging.getLogger(__name__)


REST_FACTOR = 3.0
"""Cycles that are asked for early take a quarter of the time at most."""


@value
class Cycle:
    """One cycle of the loop, for the live view, metrics and tests."""

    snapshot: Snapshot
    plan: Plan
    actions: tuple[Action, ...]
    samples: Mapping[str, Sample]
    """The last of every node, as they are when they are read."""
    reasons: Mapping[JobId, str]
    """Those of all jobs, as they are when they are read."""
    moved: Mapping[JobId, Moved]
    """What a move did last to each job, as they are when they are read."""
    memory: Memory
    """What the policy remembered before it decided, to be read while the cycle is published."""
    observe_seconds: float
    plan_seconds: float


class Controller:
    """Owns the observer, the policy with its memory, and the executor."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterPort,
        nodes: NodePort,
        journal: Journal,
        clock: Clock,
        *,
        solver: SolverPort,
        policy: Policy | None = None,
        pace: PaceSettings | None = None,
        recorder: Recorder | None = None,
        publish: Callable[[Cycle], None] = lambda _cycle: None,
        report: Callable[[tuple[str, ...]], None] = lambda _sentences: None,
        survives: tuple[type[Exception], ...] = (),
    ) -> None:
        """Takes over what an earlier controller left in the journal.

        Args:
            solver: of the problems that plans state. The caller closes it.
            policy: in place of the one that the settings name.
            pace: in place of the settings' own, such as a simulation's.
            recorder: what operations tell; writes to the journal.
            publish: called after every cycle.
            report: called with the sentences of all conditions, whenever these change.
            survives: bugs that cost the part of a cycle that they are in; others end `run`, as a simulation
                should.

        Raises:
            SettingsError: the policy cannot be made from the settings.
            JournalError: the journal cannot be read.
        """
        self._journal, self._generation, self._clock = journal, journal.generation, clock
        self._recorder = recorder or Recorder(journal)
        self._solver, self._publish, self._settings = solver, publish, settings
        self._policy_name = settings.policy.name
        self._policy = make_policy(settings.policy) if policy is None else policy
        self.reasons: dict[JobId, str] = {}
        """Why each job is where it is."""
        self.moved: dict[JobId, Moved] = {}
        """What a move did last to each job that it changed something for."""
        self.pace = Pace(clock, pace or _pace(settings))
        context = Context(cluster, nodes, clock, JobMemories(), self._recorder, settings)
        self.executor = Executor(context, on_change=self.pace.poke)
        self._requests = RequestReader(self._refused, settings.requests)
        identities = Identities(journal, self._reused)
        self.observer = Observer(context.memory, self._requests, identities, priority_class(settings.policy))
        self.observer.save_every_seconds = settings.suspend.save_every_seconds
        context.costs = self.observer.measured.costs
        self.conditions = Conditions(self._recorder, clock, report)
        self._failures = Failures(self.conditions, clock, survives)
        self._poller = Poller(cluster, nodes)
        self._shares = ShareReader(cluster, self.conditions, self.pace.poke)
        self._accounting = Accounting(context.memory, self._recorder, clock)
        self._store = StateStore(journal, context.memory, self.observer.measured)
        self._records = JobRecords(journal, context.memory, self._requests)
        self._repairs = Repairs(context, journal.suspended())
        self._blocks = StaleBlocks(nodes)
        self._policy_memory = PolicyMemory(journal, settings.policy.name)
        self._resync_at = -math.inf
        self._unsettled: set[JobId] = set()
        """Jobs of the last cycle's actions: each is looked at until none is needed any more."""
        saves = settings.suspend.save_every_seconds > 0
        self._accounting.recall(journal, self.observer.measured.utilization, saves=saves)
        self._store.recall(settings.policy.name)
        self._policy_memory.recall()

    async def run(self, stop: asyncio.Event) -> None:
        """Run cycles until `stop` is set. What is under way then is waited for by the caller."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _task: self.pace.wake())
        try:
            while not stop.is_set():
                began = self._clock.now()
                wake_at = await self.cycle()
                await self.pace.rest(began, wake_at, stop)
        finally:
            stopping.cancel()
            self._shares.close()
            self.executor.context.reservations.close()

    def use_settings(self, settings: Settings, policy: Policy) -> None:
        """Go on with other settings, and with a policy made from them, from the next cycle on."""
        self._settings = self.executor.context.settings = settings
        self.pace.settings = _pace(settings)
        self.observer.priority_class = priority_class(settings.policy)
        self.observer.save_every_seconds = settings.suspend.save_every_seconds
        self._requests.use(settings.requests)
        self.use(settings.policy.name, policy)

    def use(self, name: str, policy: Policy) -> None:
        """Decide by another policy, or the same with other settings, from the next cycle on."""
        if name != self._policy_name:
            self._store.use(name)
            self._policy_memory = PolicyMemory(self._journal, name)
            try:
                self._policy_memory.recall()
            except JournalError as error:
                words = f"policy {name} begins with nothing remembered"
                self.conditions.begin("journal", f"{error}; {words}")
        self._policy_name, self._policy = name, policy
        self.observer.resync()
        self.pace.poke()

    async def cycle(self) -> float:
        """One cycle. Returns when the next one is due at the latest.

        Problems with Slurm, with nodes or with the policy are logged once and reported, and cost this cycle
        only, as bugs do that this controller survives; while they go on, cycles are rarer and rarer.
        """
        wake_at = math.inf
        with self._failures.cost(CYCLE):
            wake_at = await self._cycle()
        self.pace.pause_seconds = self._failures.cycle_ended()
        if self.pace.pause_seconds:
            self.observer.resync()
        return wake_at

    async def _cycle(self) -> float:
        began = time.perf_counter()
        try:
            snapshot, answers = await self._observe()
        except ClusterError as error:
            self.conditions.begin("slurm", f"Slurm cannot be observed: {error}")
            self._commit()
            return math.inf
        self.conditions.end("slurm")
        observed = time.perf_counter()
        plan = self._decide(snapshot)
        planned = time.perf_counter()
        actions = self._actions(snapshot, plan)
        with self._failures.cost("the journal's writer"):
            self._remember(snapshot, plan)
        # The journal first, where it can be written. Where not, jobs must not wait for its disk.
        self._commit()
        self._act(actions, snapshot)
        with self._failures.cost("the solver's queue"):
            for name, problem in plan.problems.items():
                self._solver.submit(name, problem, self.pace.poke)
        with self._failures.cost("the removal of what is left over"):
            context, in_flight = self.executor.context, self.executor.in_flight()
            context.reservations.remove_stray(snapshot, context.memory, in_flight)
            self._blocks.clean(self.observer, in_flight, snapshot.time)
        with self._failures.cost("what users see"):
            report_nodes(self.conditions, self.observer, answers, self._settings.suspend.trespass)
            report_partitions(self.conditions, self.observer)
            report_kept(self.conditions, snapshot.jobs, self.observer.looked_at)
            report_refused(self.conditions, self.executor.context.refused, snapshot.jobs.keys())
            report_types(self.conditions, self._settings.policy, self.observer.slurm.nodes.values())
            self._publish(
                Cycle(
                    snapshot,
                    plan,
                    tuple(actions),
                    self.observer.nodes.samples,
                    self.reasons,
                    self.moved,
                    self._policy_memory.memory,
                    observed - began,
                    planned - observed,
                )
            )
        self._policy_memory.take(plan.memory)
        return min(plan.wake_at, self.observer.wake())

    async def _observe(self) -> tuple[Snapshot, Mapping[str, Sample]]:
        self.executor.mark()
        settings, observer = self._settings.nodes, self.observer
        view, answers = await self._poller.ask(
            observer.slurm.nodes, settings.addresses, settings.observe_deadline_seconds
        )
        now = self._clock.now()
        self.executor.context.reservations.look(now, self.pace.settings.resync_seconds)
        if now >= self._resync_at:
            self._resync_at = now + self.pace.settings.resync_seconds
            observer.resync()
        observer.take(view, answers, self.executor.in_flight(), now)
        self._accounting.follow(observer, now)
        if self._settings.policy.reads_shares:
            observer.shares = self._shares.known(now, self._settings.cluster.shares_interval_seconds)
        snapshot = observer.snapshot(self._solved())
        self.executor.sync(snapshot)
        return snapshot, answers

    def _solved(self) -> Mapping[str, Solution]:
        """Solutions since the cycle before."""
        solved = self._solver.take()
        for name, solution in solved.items():
            if solution.error:
                self.conditions.begin(f"solver {name}", f"problem {name} is not solved: {solution.error}")
            else:
                self.conditions.end(f"solver {name}", "solves it again")
        return solved

    def _reused(self, job_id: JobId, message: str) -> None:
        self.executor.abandon(job_id)
        self._records.begin_again(job_id)
        self._recorder.event("id-reused", message, self._clock.now(), job_id)

    def _refused(self, job_id: JobId, message: str) -> None:
        self._recorder.event("invalid-request", message, self._clock.now(), job_id)

    def _decide(self, snapshot: Snapshot) -> Plan:
        """The policy's plan. Where the policy fails jobs go on as they are, and it begins anew next time."""
        try:
            with collected_later():
                plan = self._policy.plan(snapshot, self._policy_memory.memory)
        except PolicyError as error:
            words = f"policy {self._policy_name}: {error}; jobs stay as they are"
            self.conditions.begin("policy", words, error=error)
            self.observer.resync()
            fails = Why(Reason.REPAIRED, "the policy fails; it goes on where it was")
            plan = go_on(snapshot, fails, elsewhere=False)
            self.reasons.update(plan.reasons)
            return plan
        self.conditions.end("policy", "decides again")
        for name, why in plan.refused.items():
            self.conditions.begin(f"solution {name}", f"problem {name} has no useful solution: {why}")
        self.conditions.end_all("solution", lambda name: name not in plan.refused, "is refused no more")
        self.observer.expect(plan.targets.keys())
        self._store.take(plan.targets, snapshot.jobs)
        self.reasons.update(plan.reasons)
        for moved in plan.moved:
            self.moved[moved.job_id] = moved
            self._recorder.moved(moved, plan.reasons.get(moved.job_id, ""), snapshot.time)
        for job_id in self.observer.looked_at:
            if job_id not in snapshot.jobs:
                self.reasons.pop(job_id, None)
                self.moved.pop(job_id, None)
        return plan

    def _actions(self, snapshot: Snapshot, plan: Plan) -> list[Action]:
        """What leads from the snapshot to the plan, and what mends disagreements."""
        actions = diff(
            snapshot,
            plan.targets,
            self.reasons,
            self.observer.looked_at | self._unsettled,
            suspend_in_slurm=self.executor.context.suspends_in_slurm,
            default_method=self._settings.requests.suspend,
            trespass=self._settings.suspend.trespass,
        )
        self._unsettled = {action.job_id for action in actions}
        return self._repairs.mend(actions, self.observer, snapshot.time)

    def _remember(self, snapshot: Snapshot, plan: Plan) -> None:
        """Everything that a later controller and the reports need."""
        if self._journal.generation != self._generation:
            # The file was damaged or removed.
            self._generation = self._journal.generation
            self._policy_memory.write_anew()
            self._store.write_anew()
            self._records.write_anew(snapshot.time)
        self._policy_memory.save(plan.memory)
        self._store.save(snapshot.time)
        self._records.follow(self.observer, snapshot.time)
        self._journal.heartbeat(snapshot.time)
        boot_id, uptime_seconds = self._clock.uptime()
        if boot_id:
            self._journal.save_state(UPTIME_KEY, [boot_id, uptime_seconds])

    def _commit(self) -> None:
        try:
            self._journal.commit()
        except JournalError as error:
            words = "the cluster is led on, and what should be written is kept in memory"
            self.conditions.begin("journal", f"{error}; {words}")
        else:
            self.conditions.end("journal")

    def _act(self, actions: list[Action], snapshot: Snapshot) -> None:
        for action in actions:
            with self._failures.cost(f"job {action.job_id}"):
                try:
                    self.executor.apply([action], snapshot)
                except JournalError as error:
                    self.conditions.begin("journal", f"{error}; some actions have to wait for the next cycle")
                    return


def _pace(settings: Settings) -> PaceSettings:
    return PaceSettings(interval_seconds=settings.loop.interval_seconds, rest_factor=REST_FACTOR)


@contextmanager
def collected_later() -> Iterator[None]:
    """Python looks for garbage after the block, not within it: with 20,000 jobs one such look at what plans
    have made takes longer than a plan itself."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
