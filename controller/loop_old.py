# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop: observe -> plan -> diff -> apply -> record. The same for the daemon and for simulation.

It is level-triggered: each tick compares the world as it is with the plan. Starting after a crash, an
interrupted switch and a change behind our back are therefore all the same case.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from controller.actions import Action, Place, diff
from controller.clock import Clock
from controller.cluster.port import ClusterPort, ClusterView, JobState, SlurmJob
from controller.collecting import CollectedLater
from controller.errors import ClusterError, GandivaError, JournalError, NodeError
from controller.executor import Executor, ExecutorSettings, Recorder, Step
from controller.frozen import quickly_made
from controller.journal import JobRecord, Journal
from controller.lingering import lingering
from controller.lost import Lost
from controller.memory import Memory
from controller.model import GpuSet, Job, JobId, Phase, Plan, Request, Snapshot
from controller.nodes.port import NodePort, NodeSample
from controller.observation import build_snapshot, trespassers
from controller.policies.base import Policy
from controller.recording import JournalRecorder, Records
from controller.requests import InvalidRequest, parse_request
from controller.requeued import Requeued
from controller.scene import Scene
from controller.signal import Signal
from controller.together import both
from controller.weights import WeightLimits

log = logging.getLogger(__name__)

LEFTOVER_SECONDS = 5.0
"""A control block is removed when its job was seen to be over, or elsewhere, for so long."""

CLOCK_DRIFT_SECONDS = 2.0
"""More than this between the time of day and the time since boot: the wall clock was stepped."""

LONGEST_LOOK_SECONDS = 10.0
"""One look at a GPU says no more than this about how busy it was."""

_STATE_KEY = "policy-state:"
_UPTIME_KEY = "uptime"
_LAST_STEPS = frozenset({Step.AWAIT_START.value, Step.NODE_RESUME.value})
"""With these a job gets onto its GPUs, if nothing comes between."""
_OVER = frozenset({JobState.ENDED, JobState.COMPLETING})
_RUNNING, _STUCK = Phase.RUNNING, Phase.STUCK
"""(Python 3.11 takes seven times as long to read these of their class, which is done for every job.)"""
_OFF_GPU = frozenset({Phase.SUSPENDED, Phase.YIELDED, Phase.QUEUED, Phase.INELIGIBLE})


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How often to look, and how long the nodes may take to answer. Seconds."""

    interval_seconds: float = 1.0
    """Infinity: only when something is reported (`Controller.poke`) or the policy asks for it."""
    coalesce_seconds: float = 0.02
    """Ends of operations that come together are planned for together."""
    rest_factor: float = 0.0
    """An early turn comes no sooner after the last one than this many times what that took (at most
    `interval_seconds`): on a large site operations end all the time, and looking at everything at each end
    would be all the controller does."""
    concurrent: bool = True
    """Ask Slurm and the nodes at the same time. False saves the tasks for it where nothing has to be waited
    for."""
    observe_deadline_seconds: float = 3.0
    default_weight: float = 1.0
    weight_limits: WeightLimits = field(default_factory=WeightLimits)
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Node name -> address, where it differs from what Slurm knows."""


@quickly_made
@dataclass(frozen=True, slots=True)
class Tick:
    """One turn of the loop, for the live view, metrics and tests."""

    snapshot: Snapshot
    plan: Plan
    actions: tuple[Action, ...]
    node_errors: Mapping[str, str]
    observe_seconds: float
    plan_seconds: float


class Controller:
    """Owns the executor, the policy's state, and the controller's memory of jobs."""

    def __init__(
        self,
        cluster: ClusterPort,
        nodes: NodePort,
        policy: Policy,
        journal: Journal | Records,
        clock: Clock,
        settings: LoopSettings | None = None,
        executor_settings: ExecutorSettings | None = None,
        priority_class: Callable[[str], int] = lambda _qos: 0,
        publish: Callable[[Tick], None] = lambda _tick: None,
        report_trouble: Callable[[tuple[str, ...]], None] = lambda _all: None,
        recorder: Recorder | None = None,
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._journal = journal
        self._clock = clock
        self._publish = publish
        self._report_trouble = report_trouble
        self._memory = Memory()
        if recorder is None:
            assert isinstance(journal, Journal), "other records need a recorder of their own"
            recorder = JournalRecorder(journal)
        self._recorder = recorder
        self._changed = Signal()
        self._requests: dict[tuple[JobId, str, str, str], Request | None] = {}
        self._records: dict[JobId, JobRecord] = {}
        self._submissions: dict[JobId, tuple[str, float]] = {}
        self._strangers: set[JobId] = set()
        self._was_running: dict[JobId, tuple[float, GpuSet]] = {}
        """Jobs that an earlier controller left on GPUs: until when it saw them, and where."""
        self._was_starting: dict[JobId, float] = {}
        """Jobs that an earlier controller was putting on GPUs, and when it took the last step to that."""
        self._looked_at: float | None = None
        """When jobs were last seen, by this controller or an earlier one."""
        self._requeued = Requeued()
        self._lost = Lost(nodes)
        self._trouble: dict[str, str] = {}
        self._first_look = True
        self._generation = journal.generation if isinstance(journal, Journal) else 0
        self.settings = settings or LoopSettings()
        self.priority_class = priority_class
        self.policy = policy
        self._scene = Scene(self._memory, self._request_of, priority_class)
        self._addresses: dict[str, str] = {}
        self._put_off: frozenset[JobId] = frozenset()
        self._leftovers: dict[tuple[str, JobId], float] = {}
        """Control blocks that nobody seems to need, and since when."""
        self._forgetting: dict[tuple[str, JobId], asyncio.Task[None]] = {}
        """Those that are just being removed."""
        self._policy_state: Mapping[str, Any] = {}
        self.executor = Executor(
            cluster,
            nodes,
            clock,
            self._memory,
            self._recorder,
            executor_settings or ExecutorSettings(),
            on_change=self._changed.set,
        )
        self._recall()

    # -- running --------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until `stop` is set. What is under way then is waited for by the caller (`executor.drain`)."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _task: self._changed.wake())
        try:
            while not stop.is_set():
                began = self._clock.now()
                wake_at = await self.tick()
                ended = self._clock.now()
                wait_seconds: float | None = self.settings.interval_seconds
                if wake_at is not None:
                    wait_seconds = min(self.settings.interval_seconds, max(0.0, wake_at - self._clock.now()))
                if wait_seconds == math.inf:
                    wait_seconds = None
                if not stop.is_set():
                    await self._changed.wait(wait_seconds)
                if self._changed.is_set() and not stop.is_set():
                    rest_seconds = self.settings.rest_factor * (ended - began) - (self._clock.now() - ended)
                    longest = self.settings.interval_seconds
                    await asyncio.sleep(max(self.settings.coalesce_seconds, min(rest_seconds, longest)))
                self._changed.clear()
        finally:
            stopping.cancel()

    async def tick(self) -> float | None:
        """One turn. Returns when the policy wants the next one at the latest.

        Trouble with Slurm or with nodes is logged once and reported, and costs this turn only.
        """
        self.executor.mark()
        begin = self._clock.now()
        try:
            view, samples = await self._observe()
        except ClusterError as error:
            self._say_trouble("slurm", f"Slurm cannot be observed: {error}")
            self._commit()
            return None
        self._no_more_trouble("slurm")
        view = self._without_strangers(view)
        observed = self._clock.now()
        snapshot = self._snapshot(view, samples, observed)
        self.executor.sync(snapshot)
        self._keep_time(view, snapshot)
        with CollectedLater():
            plan = self.policy.plan(snapshot, self._policy_state)
        planned = self._clock.now()
        actions = diff(
            snapshot,
            plan,
            suspend_in_slurm=self.executor.settings.suspend_in_slurm,
            default_method=self.executor.settings.default_method,
            only=self._worth_a_look(snapshot, plan),
        )
        if out_of_reach := self._lost.look(view, samples, snapshot.busy, observed):
            actions = [action for action in actions if action.job_id not in out_of_reach]
            actions += self._lost.actions(snapshot)
        actions += self._requeued.actions(view, snapshot)
        self._remember(view, snapshot, plan)
        # The journal first, where it can be written. Where not, jobs must not wait for its disk.
        self._commit()
        self._apply(self._without_lingering(actions, samples), snapshot)
        await self._clean_up(view, samples)
        node_errors = {n: str(s) for n, s in samples.items() if isinstance(s, NodeError)}
        for name, text in node_errors.items():
            if name in self._addresses:
                self._say_trouble(f"node {name}", text)
        if not view.partial:
            self._tell_trespassers(view, samples)
        if self._trouble:
            for name in samples:
                if name not in node_errors:
                    self._no_more_trouble(f"node {name}")
            for where in list(self._trouble):
                kind, _, name = where.partition(" ")
                if kind == "node" and name not in self._addresses:
                    self._no_more_trouble(where, "is not in Slurm any more")
        self._publish(Tick(snapshot, plan, tuple(actions), node_errors, observed - begin, planned - observed))
        return plan.wake_at

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong just now, one sentence each."""
        return tuple(self._trouble.values())

    def poke(self) -> None:
        """Something happened: look now rather than at the end of the interval."""
        self._changed.set()

    def use(self, policy: Policy) -> None:
        """Plan by another policy (or the same with other settings) from the next tick on."""
        if policy.name != self.policy.name:
            self._policy_state = {}
            try:
                self._policy_state = self._journal.load_state(_STATE_KEY + policy.name) or {}
            except JournalError as error:
                self._say_trouble("journal", f"{error}; policy {policy.name} begins with nothing remembered")
        self.policy = policy
        # Weights and their limits may be others now. (What cannot be read stays so, and was told.)
        self._requests = {key: request for key, request in self._requests.items() if request is None}
        self._changed.set()

    # -- observing ------------------------------------------------------------------------------------

    async def _observe(self) -> tuple[ClusterView, Mapping[str, NodeSample | NodeError]]:
        """Slurm and the nodes at the same time; nodes that Slurm names for the first time are asked after."""
        deadline_seconds = self.settings.observe_deadline_seconds
        if self.settings.concurrent:
            view, samples = await both(self._cluster.observe(), self._nodes.observe(deadline_seconds))
        else:
            view, samples = await self._cluster.observe(), await self._nodes.observe(deadline_seconds)
        addresses = {n.name: self.settings.addresses.get(n.name, n.address or n.name) for n in view.nodes}
        if not view.partial:
            self._addresses = addresses
        elif addresses:
            self._addresses = {**self._addresses, **addresses}
        if addresses:
            await self._nodes.set_nodes(self._addresses)
        if addresses and any(name not in samples for name in addresses):
            samples = {**samples, **await self._nodes.observe(deadline_seconds)}
        return view, samples

    def _without_strangers(self, view: ClusterView) -> ClusterView:
        """The view without jobs that have the number of an earlier, different job.

        A slurmctld that lost its last moments gives numbers out again. Such a job is left out once, so that
        everybody takes the earlier one for gone; from the next look on it is a new job.
        """
        if view.partial:
            return view
        unknown = [job.id for job in view.jobs if job.id not in self._submissions]
        if unknown and isinstance(self._journal, Journal):
            with suppress(JournalError):  # told by `_commit`
                self._submissions.update(self._journal.submissions(unknown))
        strangers = set()
        for job in view.jobs:
            known = self._submissions.setdefault(job.id, (job.user, job.submit_time))
            if not _same_job(known, job):
                strangers.add(job.id)
                self._submissions[job.id] = (job.user, job.submit_time)
                self.executor.abandon(job.id)
                message = f"is another job than the one with this number before (of user {known[0]})"
                log.warning("job %s (user %s): %s", job.id, job.user, message)
                self._recorder.event("number-reused", message, self._clock.now(), job.id)
        if len(self._submissions) > 4 * len(view.jobs) + 1000:
            present = {job.id for job in view.jobs}
            self._submissions = {i: known for i, known in self._submissions.items() if i in present}
        if not strangers:
            return view
        self._strangers |= strangers
        return replace(view, jobs=tuple(job for job in view.jobs if job.id not in strangers))

    def _snapshot(
        self, view: ClusterView, samples: Mapping[str, NodeSample | NodeError], now: float
    ) -> Snapshot:
        in_flight = self.executor.in_flight()
        if view.partial:
            accrued = not getattr(self.policy, "reads_accrual", False)
            return self._scene.update(view, samples, in_flight, now, accrued=accrued)
        return build_snapshot(
            view, samples, self._memory, in_flight, self._request_of, self.priority_class, now
        )

    def _worth_a_look(self, snapshot: Snapshot, plan: Plan) -> frozenset[JobId] | None:
        """Jobs that can need an action. None: all of them."""
        if snapshot.changes is None or plan.changed is None:
            return None
        looked_at = snapshot.changes.jobs | plan.changed | self._put_off
        find = snapshot.jobs.get
        self._put_off = frozenset(
            [i for i in looked_at if (job := find(i)) is not None and job.not_before is not None]
        )
        return looked_at

    def _request_of(self, job: SlurmJob) -> Request | None:
        key = (job.id, job.request, job.account, job.qos)
        if key not in self._requests:
            try:
                request = parse_request(job.request, self.settings.default_weight)
                self._requests[key] = self.settings.weight_limits.apply(request, job.account, job.qos)
            except InvalidRequest as error:
                self._requests[key] = None
                message = (
                    f"its request cannot be read and it stays held: {error}; cancel it and submit it again"
                )
                log.error("job %s (user %s): %s", job.id, job.user, message)
                self._recorder.event("invalid-request", message, self._clock.now(), job.id)
        return self._requests[key]

    # -- keeping time and records -----------------------------------------------------------------------

    def _recall(self) -> None:
        """What an earlier controller left in the journal."""
        self._policy_state = self._journal.load_state(_STATE_KEY + self.policy.name) or {}
        last_seen = self._journal.last_heartbeat()
        now = self._clock.now()
        set_by = 0.0 if last_seen is None else self._clock_was_set_by(last_seen, now)
        for operation in self._journal.open_operations():
            log.info(
                "job %s: %s was interrupted after step %r; going on from where the job is",
                operation.job_id,
                operation.kind,
                operation.step or "none",
            )
            if operation.step in _LAST_STEPS and operation.step_time is not None:
                self._was_starting[operation.job_id] = min(operation.step_time + set_by, now)
            self._journal.end_operation(operation.op_id, "interrupted", now)
        if last_seen is not None:
            self._looked_at = seen_until = min(last_seen + set_by, now)
            places = self._journal.open_places() if isinstance(self._journal, Journal) else {}
            for job_id in self._journal.close_open_slices(last_seen):
                self._was_running[job_id] = (seen_until, places.get(job_id, frozenset()))
        if isinstance(self._journal, Journal):
            self._requeued.recall(self._journal.suspended())
        for job_id, totals in self._journal.totals().items():
            memory = self._memory[job_id]
            memory.run_seconds = totals.run_seconds
            memory.gpu_seconds = totals.gpu_seconds
            memory.moves = totals.moves
            memory.suspends = totals.suspends
            if totals.utilization_fraction is not None:
                memory.watched_seconds = totals.run_seconds
                memory.busy_seconds = totals.run_seconds * totals.utilization_fraction

    def _clock_was_set_by(self, last_seen: float, now: float) -> float:
        """By how many seconds the wall clock was stepped while no controller ran (more than it may drift).

        What policies remember is moved by as much: a turn that began an hour from now would last that long.
        """
        saved = self._journal.load_state(_UPTIME_KEY)
        boot_id, uptime_seconds = self._clock.uptime()
        if not (isinstance(saved, list) and len(saved) == 2 and boot_id and saved[0] == boot_id):
            return min(0.0, now - last_seen)  # nobody was there before the last time that somebody saw
        away_seconds = max(0.0, uptime_seconds - float(saved[1]))
        set_by = now - away_seconds - last_seen
        if abs(set_by) < CLOCK_DRIFT_SECONDS:
            return 0.0
        log.warning("the wall clock was stepped by %+.0f s while no controller ran", set_by)
        shift = getattr(self.policy, "shift_times", None)
        if shift is not None:
            self._policy_state = shift(self._policy_state, set_by)
        return set_by

    def _keep_time(self, view: ClusterView, snapshot: Snapshot) -> None:
        """Begin and end slices that nobody asked for: jobs found running at start, and jobs that ended."""
        now, changes = snapshot.time, snapshot.changes
        if changes is None:
            seen: Iterable[Job] = snapshot.jobs.values()
            present = {j.id for j in view.jobs}
            known, gone_jobs = self._memory.known(), {i for i in self._memory.known() if i not in present}
        else:
            seen = [snapshot.jobs[job_id] for job_id in changes.jobs if job_id in snapshot.jobs]
            known = [job_id for job_id in changes.jobs if job_id in self._memory]
            gone_jobs = {job_id for job_id in known if job_id not in self._scene.known}
        told: dict[JobId, SlurmJob] = {}
        for job in seen:
            if job.id in snapshot.busy:
                continue
            memory = self._memory[job.id]
            # (One that is stuck in a switch which a killed controller had begun has not left them either.)
            on_gpus = job.phase is _RUNNING or (job.phase is _STUCK and job.id in self._was_running)
            if on_gpus and memory.running_since is None:
                told = told or {j.id: j for j in view.jobs}
                since = self._ran_since(job.id, told[job.id].start_time if job.id in told else None, now)
                self._memory.started(job.id, job.running_on, since)
                self._recorder.slice_begins(job.id, job.running_on, since)
            elif job.phase in _OFF_GPU and self._memory.stopped(job.id, now):
                self._recorder.slice_ends(job.id, "found off its GPUs", now)
            memory.profile = job.profile
        ended = {j.id: j for j in view.jobs if j.state in _OVER}
        for job_id in known if ended or gone_jobs else ():
            if job_id in snapshot.busy:
                continue
            gone = job_id in gone_jobs
            if gone or job_id in ended:
                end = _end_of(ended.get(job_id), self._memory[job_id].running_since, now)
                if job_id in self._was_running and self._memory[job_id].running_since is None:
                    # It went on while no controller was there, and ended.
                    since, gpus = self._was_running[job_id]
                    end = _end_of(ended.get(job_id), since, now if job_id in ended else since)
                    self._memory.started(job_id, gpus, since)
                    self._recorder.slice_begins(job_id, gpus, since)
                if self._memory.stopped(job_id, end):
                    self._recorder.slice_ends(job_id, "job ended", end)
            if gone:
                self._memory.forget(job_id)
        if self._was_running or self._was_starting:
            # Jobs on nodes that do not answer yet (an agent takes a moment to start) are judged when they do.
            unseen = {job.id for job in seen if job.phase is Phase.UNKNOWN}
            self._was_running = {j: was for j, was in self._was_running.items() if j in unseen}
            self._was_starting = {j: since for j, since in self._was_starting.items() if j in unseen}
        if changes is None:
            self._watch_utilization(snapshot)
        self._looked_at = now

    def _watch_utilization(self, snapshot: Snapshot) -> None:
        """How busy the GPUs of running jobs are. One Gandiva job is on a GPU at a time, so the utilisation of
        the GPU is the job's. NVML's figure is of the last second: a slice's first look does not count."""
        if self._looked_at is None:
            return
        seconds = min(snapshot.time - self._looked_at, LONGEST_LOOK_SECONDS)
        seen = {
            gpu.id: gpu.utilization_fraction
            for node in snapshot.nodes.values()
            for gpu in node.gpus
            if gpu.utilization_fraction is not None
        }
        for job in snapshot.jobs.values():
            memory = self._memory[job.id]
            since = memory.running_since
            if (
                job.phase is not _RUNNING
                or job.id in snapshot.busy
                or since is None
                or since > self._looked_at
            ):
                continue
            used = [seen[gpu] for gpu in job.running_on if gpu in seen]
            if used and len(used) == len(job.running_on):
                memory.watched_seconds += seconds
                memory.busy_seconds += seconds * sum(used) / len(used)

    def _ran_since(self, job_id: JobId, started: float | None, now: float) -> float:
        """Since when a job is on its GPUs that is found there: a running job goes on when no controller is
        there (nobody else stops it), and Slurm may have started it between two looks."""
        if job_id in self._was_running:
            return self._was_running[job_id][0]
        if started is not None and self._looked_at is not None and self._looked_at <= started <= now:
            return started
        return self._was_starting.get(job_id, now)

    def _remember(self, view: ClusterView, snapshot: Snapshot, plan: Plan) -> None:
        """Everything a later controller and the reports need."""
        if not getattr(self._journal, "keeps_jobs", True):
            self._policy_state = plan.state
            return
        if isinstance(self._journal, Journal) and self._journal.generation != self._generation:
            self._generation = self._journal.generation
            self._write_anew(self._journal, snapshot.time)
        if plan.state is not self._policy_state:
            self._policy_state = plan.state
            self._journal.save_state(_STATE_KEY + self.policy.name, dict(plan.state))
        if self._first_look and not view.partial and isinstance(self._journal, Journal):
            with suppress(JournalError):  # told by `_commit`; the next look is the first one then
                self._journal.end_gone({job.id for job in view.jobs}, snapshot.time)
                self._first_look = False
        self._journal.heartbeat(snapshot.time)
        self._journal.save_state(_UPTIME_KEY, list(self._clock.uptime()))
        for slurm_job in view.jobs:
            request = self._request_of(slurm_job)
            if request is None:
                continue
            record = self._record(slurm_job, request)
            if self._records.get(slurm_job.id) != record:
                if slurm_job.id in self._strangers and isinstance(self._journal, Journal):
                    self._strangers.discard(slurm_job.id)
                    self._journal.begin_again(slurm_job.id)
                self._records[slurm_job.id] = record
                self._journal.upsert_job(record)
        if view.partial:
            present: Set[JobId] = self._scene.known
            forgotten = [job_id for job_id in view.gone if job_id in self._records]
        else:
            present = {job.id for job in view.jobs}
            forgotten = [job_id for job_id in self._records if job_id not in present]
        for job_id in forgotten:
            record = self._records.pop(job_id)
            if record.end_time is None:
                # slurmctld forgot it before we saw its end (it was down, or MinJobAge is short).
                self._journal.upsert_job(_ended_unseen(record, snapshot.time))
        if len(self._requests) > 4 * len(present) + 1000:
            self._requests = {key: r for key, r in self._requests.items() if key[0] in present}

    def _write_anew(self, journal: Journal, now: float) -> None:
        """The file was damaged or removed: what is known of living jobs goes into the new one."""
        self._records.clear()
        journal.save_state(_STATE_KEY + self.policy.name, dict(self._policy_state))
        for job_id in self._memory.known():
            memory = self._memory[job_id]
            journal.carry_over(job_id, memory.run_seconds_at(now), memory.gpu_seconds_at(now))
            if memory.running_since is not None:
                journal.open_slice(job_id, memory.running_on, now)

    def _record(self, job: SlurmJob, request: Request) -> JobRecord:
        memory = self._memory[job.id]
        ended = job.state is JobState.ENDED
        utilization = memory.utilization_fraction
        return JobRecord(
            id=job.id,
            user=job.user,
            gpus=request.gpus,
            submit_time=job.submit_time,
            name=job.name,
            account=job.account,
            partition=job.partition,
            weight=request.weight,
            start_time=memory.first_start,
            end_time=(job.end_time or self._clock.now()) if ended else None,
            state=job.state_name,
            request=_request_json(request),
            moves=memory.moves,
            suspends=memory.suspends,
            step_seconds=memory.profile.step_seconds,
            peak_memory_bytes=memory.profile.peak_memory_bytes or None,
            exit_code=job.exit_code if ended else None,
            # (Rounded, so that it is not written at every look.)
            utilization_fraction=None if utilization is None else round(utilization, 2),
        )

    def _commit(self) -> None:
        try:
            self._journal.commit()
        except JournalError as error:
            self._say_trouble(
                "journal", f"{error}; the cluster is led on, and what should be written is kept in memory"
            )
        else:
            self._no_more_trouble("journal")

    # -- acting ---------------------------------------------------------------------------------------

    def _without_lingering(
        self, actions: list[Action], samples: Mapping[str, NodeSample | NodeError]
    ) -> list[Action]:
        """The actions but those that would start a second copy of a job."""
        there = lingering({a.job_id for a in actions if isinstance(a, Place)}, samples)
        for job_id, node in there.items():
            message = f"pending in Slurm, but still living on {node}: not placed until Slurm has ended that"
            now = self._clock.now()
            self._memory[job_id].not_before = now + self.executor.settings.place_retry_seconds
            log.warning("job %s: %s", job_id, message)
            self._recorder.event("place-failed", message, now, job_id)
        return [action for action in actions if action.job_id not in there] if there else actions

    def _apply(self, actions: list[Action], snapshot: Snapshot) -> None:
        try:
            self.executor.apply(actions, snapshot)
        except JournalError as error:
            self._say_trouble("journal", f"{error}; some actions have to wait for the next turn")

    async def _clean_up(self, view: ClusterView, samples: Mapping[str, NodeSample | NodeError]) -> None:
        """Control blocks of jobs that are over, or were prepared on nodes that they did not get. (Those of
        jobs in transition are left alone.) Usually the epilog was here first; and since a running job needs
        its block, one look does not count: slurmctld may have lost its memory, or answer with an old one."""
        leftovers: dict[tuple[str, JobId], float] = {}
        now = self._clock.now()
        for name, job_id in self._not_needed(view, samples):
            since = leftovers[name, job_id] = self._leftovers.get((name, job_id), now)
            if not view.partial and now - since < LEFTOVER_SECONDS:
                continue
            if (name, job_id) in self._forgetting:
                continue
            if not self.settings.concurrent:
                await self._forget(name, job_id)
                continue
            # Beside the loop: its lock may be held, and its user may have filled it. A turn waits for no
            # single node.
            self._forgetting[name, job_id] = asyncio.create_task(
                self._forget(name, job_id), name=f"forget-{job_id}"
            )
        self._leftovers = leftovers

    def _not_needed(
        self, view: ClusterView, samples: Mapping[str, NodeSample | NodeError]
    ) -> list[tuple[str, JobId]]:
        """Node and job of the control blocks that nobody seems to need."""
        if view.partial:
            alive = self._scene.alive
            found = [
                (name, job_id)
                for name, sample in samples.items()
                if isinstance(sample, NodeSample)
                for job_id in (sample.jobs if sample.changed is None else sample.changed)
                if not alive(job_id) and job_id in sample.jobs
            ]
        else:
            homes = {j.id: j.nodes for j in view.jobs if j.state is not JobState.ENDED}
            found = [
                (name, job_id)
                for name, sample in samples.items()
                if isinstance(sample, NodeSample)
                for job_id in sample.jobs
                if ((home := homes.get(job_id)) is None or (home and name not in home))
                # (One that lives here needs it, whatever Slurm has forgotten.)
                and not sample.living({job_id})
            ]
        in_flight = self.executor.in_flight() if found else {}
        return [(name, job_id) for name, job_id in found if job_id not in in_flight]

    async def _forget(self, node: str, job_id: JobId) -> None:
        try:
            await self._nodes.forget(node, job_id)
        except GandivaError as error:
            log.info("job %s: control block not removed: %s", job_id, error, extra={"node": node})
        finally:
            self._forgetting.pop((node, job_id), None)

    # -- trouble --------------------------------------------------------------------------------------

    def _tell_trespassers(self, view: ClusterView, samples: Mapping[str, NodeSample | NodeError]) -> None:
        """Name the jobs whose memory keeps a GPU from others."""
        present = {job.id: job for job in view.jobs}
        found: set[str] = set()
        for name, sample in samples.items():
            if not isinstance(sample, NodeSample):
                found.update(where for where in self._trouble if where.startswith(f"gpu {name}:"))
                continue
            for index, job_id in trespassers(sample, present).items():
                where = f"gpu {name}:{index}"
                found.add(where)
                user = present[job_id].user if job_id in present else "unknown"
                message = (
                    f"job {job_id} (user {user}) has memory on {name}:{index}, which it should have left: no"
                    " other job gets that GPU before the memory is gone; if it stays, cancel the job"
                )
                self._say_trouble(where, message, job_id)
        for where in [where for where in self._trouble if where.startswith("gpu ") and where not in found]:
            self._no_more_trouble(where, "has no memory of jobs any more that should have left it")

    def _say_trouble(self, where: str, message: str, job_id: JobId | None = None) -> None:
        """Log and report once when it begins, not every tick."""
        if self._trouble.get(where) == message:
            return
        self._trouble[where] = message
        log.error("%s; gandiva check says what to look at", message, extra=_about(where))
        self._report_trouble(self.troubles)
        if where != "journal":
            self._recorder.event("trouble", message, self._clock.now(), job_id)

    def _no_more_trouble(self, where: str, why: str = "answers again") -> None:
        if self._trouble.pop(where, None) is not None:
            message = f"{where}: {why}"
            log.warning("%s", message, extra=_about(where))
            self._report_trouble(self.troubles)
            self._recorder.event("recovered", message, self._clock.now())


def _about(where: str) -> dict[str, str]:
    """For the fields of the log: `node n1` -> the node."""
    kind, _, name = where.partition(" ")
    return {"node": name} if kind == "node" and name else {}


def _end_of(job: SlurmJob | None, since: float | None, now: float) -> float:
    """When a job that is over left its GPUs: Slurm's end time, unless its clock was stepped."""
    end = job.end_time if job is not None else None
    return end if end is not None and (since or 0.0) <= end <= now else now


def _same_job(known: tuple[str, float], job: SlurmJob) -> bool:
    """Whether this is the job that was known by its user and its submit time. (A requeue changes the submit
    time, and is counted. While the name service is away, a user's number stands for the name.)"""
    user, submit_time = known
    same_user = job.user == user or str(job.uid) in (job.user, user)
    requeued = job.restart_count > 0 or job.state is JobState.COMPLETING
    return same_user and (requeued or abs(job.submit_time - submit_time) < 1.0)


def _request_json(request: Request) -> dict[str, Any]:
    return {
        "gpus": request.gpus,
        "nodes": request.nodes,
        "weight": request.weight,
        "weight_asked": request.weight_asked,
        "weight_limit": request.weight_limit or None,
        "min_gpus": request.min_gpus,
        "max_gpus": request.max_gpus,
        "pack": request.pack,
        "migrate": request.migrate,
        "suspend": request.suspend.value if request.suspend else None,
        "gpu_types": list(request.gpu_types),
        "model": request.model,
    }


def _ended_unseen(record: JobRecord, now: float) -> JobRecord:
    return replace(record, end_time=now, state="UNKNOWN")
