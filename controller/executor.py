# SPDX-License-Identifier: GPL-2.0-or-later
"""Carrying actions out: one task per job, each a fixed sequence of steps with deadlines.

Rules that hold at every step:

* GPUs are freed before they are claimed (`Ledger`), in parallel over disjoint GPUs.
* A job is suspended in Slurm only after its nodes acknowledged that its memory is off its GPUs, and its GPUs
  are free only after its nodes have stopped its processes and looked once more.
* What fails is undone as far as possible, and the job keeps its GPUs until its nodes say otherwise.
* Nothing depends on the executor's memory: it may die between any two steps. The next controller sees from
  Slurm and the nodes how far the job got (`Phase`) and goes on from there.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from controller import residuals
from controller.actions import Action, Cancel, Place, Requeue, Resume, Suspend, Withdraw
from controller.clock import Clock
from controller.cluster.port import LIMIT_REASONS, ClusterPort, JobState, SlurmJob
from controller.errors import (
    ClusterError,
    ClusterRefused,
    ClusterUnavailable,
    GandivaError,
    NodeError,
    UnknownJob,
)
from controller.ledger import ClaimFailed, Ledger
from controller.memory import Memory
from controller.model import (
    FailedSuspends,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Phase,
    Snapshot,
    SuspendMethod,
    Unsuspendable,
)
from controller.nodes.port import NodePort, Offload
from controller.observation import InFlight
from controller.policies.servers import by_node
from controller.together import at_once

log = logging.getLogger(__name__)
T = TypeVar("T")

_STARTED = frozenset({JobState.RUNNING, JobState.SUSPENDED})
_OVER = frozenset({JobState.ENDED, JobState.COMPLETING})
_OF_THE_JOB = frozenset(
    {"deadline", "driver", "host_memory", "left_on_gpu", "not_cooperative", "unsupported"}
)
"""Kinds of errors that show that a job cannot be suspended; others are its node's."""
_STILL_OFF = frozenset({"gpu_busy", "unsupported"})
"""Errors of a resume after which the job is off its GPUs as before: they are not free, or the job cannot
move to them (it is not movable then)."""
_LIMIT_SECONDS = 5.0
"""A job at a limit may start when another one ends just now; after that its GPUs are others'."""


class Step(str, enum.Enum):
    """Every step an operation can be killed after. Journaled before it is taken."""

    CLAIM = "claim"
    PREPARE = "prepare"
    BIND = "bind"
    RELEASE = "release"
    AWAIT_START = "await-start"
    PAUSE = "pause"
    OFFLOAD = "offload"
    CHECKPOINT = "checkpoint"
    SLURM_SUSPEND = "slurm-suspend"
    STOP = "stop"
    SLURM_RESUME = "slurm-resume"
    NODE_RESUME = "node-resume"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    UNDO = "undo"


class Outcome(str, enum.Enum):
    """How an operation ended."""

    DONE = "done"
    FAILED = "failed"
    JOB_ENDED = "job-ended"


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """How long things may take, and how jobs are suspended. All times in seconds."""

    suspend_in_slurm: bool = True
    default_method: SuspendMethod = SuspendMethod.COOPERATIVE
    transparent_fallback: bool = True
    step_deadline_seconds: float = 60.0
    offload_deadline_seconds: float = 60.0
    resume_deadline_seconds: float = 120.0
    start_deadline_seconds: float = 60.0
    residual_limit_bytes: int = 0
    residual_fraction: float = 0.1
    release_context: bool = True
    retry_after_seconds: float = 300.0
    unsuspendable: Unsuspendable = Unsuspendable.KEEP
    unsuspendable_tries: int = 3
    """So many suspends must fail in a row before `unsuspendable` counts."""
    place_retry_seconds: float = 10.0
    preempt_exempt_ratio: float = 10.0
    node_call_deadline_seconds: float = 15.0
    concurrent: bool = True
    """Operations are tasks, and speak to all nodes of a gang at the same time. False saves the tasks for both
    where hardly any call waits."""


class Recorder(Protocol):
    """Where operations and slices are written down (the journal, or a list in tests)."""

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        """Returns an id for the other calls."""
        ...

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        """Before the step is taken. (Not told to one whose `keeps_steps` is False.)"""
        ...

    def operation_ends(self, operation: int, outcome: Outcome, error: str, now: float) -> None:
        """It is over."""
        ...

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        """The job may use these GPUs from now on."""
        ...

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        """It is known to have left them."""
        ...

    def event(self, kind: str, message: str, now: float, job_id: JobId | None = None) -> None:
        """Something worth telling an operator."""
        ...


_LEAVES = InFlight(None, frozenset())


@dataclass(slots=True)
class _Operation:
    """One action under way."""

    action: Action
    job: Job
    number: int = 0
    flight: InFlight = _LEAVES
    task: asyncio.Task[None] | None = None
    abandoned: bool = False


class Executor:
    """Runs operations concurrently, at most one per job."""

    def __init__(
        self,
        cluster: ClusterPort,
        nodes: NodePort,
        clock: Clock,
        memory: Memory,
        recorder: Recorder,
        settings: ExecutorSettings,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._clock = clock
        self._memory = memory
        self._recorder = recorder
        self._keeps_steps = getattr(recorder, "keeps_steps", True)
        self._on_change = on_change
        self._ledger = Ledger()
        self._seen = Snapshot(0.0, {}, {})
        self._left: dict[JobId, Mapping[GpuId, int]] = {}
        """What jobs have left on their GPUs since that was seen."""
        self._operations: dict[JobId, _Operation] = {}
        self._ended: dict[JobId, InFlight] = {}
        """Those whose transition ended since the last observation began."""
        self.settings = settings

    # -- what the loop asks ---------------------------------------------------------------------------

    def mark(self) -> None:
        """Call before an observation begins."""
        if self._ended:
            self._ended = {}

    def in_flight(self) -> Mapping[JobId, InFlight]:
        """Jobs in transition, and those whose transition ended since `mark`: what was seen of them may be
        out of date."""
        if not self._operations:
            return self._ended
        return {**self._ended, **{job_id: op.flight for job_id, op in self._operations.items()}}

    def sync(self, snapshot: Snapshot) -> None:
        """Take over who holds which GPU."""
        self._ledger.sync(snapshot)
        self._seen = snapshot
        self._left = {job_id: left for job_id, left in self._left.items() if job_id in snapshot.busy}

    def apply(self, actions: Sequence[Action], snapshot: Snapshot) -> None:
        """Start the actions; returns at once."""
        concurrent = self.settings.concurrent
        for action in actions:
            job_id = action.job_id
            if job_id in self._operations:
                continue
            job = snapshot.jobs[job_id]
            operation = _Operation(action, job)
            if isinstance(action, Place):
                operation.flight = InFlight(action.gpus, action.binding)
            elif isinstance(action, Resume):
                operation.flight = InFlight(action.gpus, job.binding)
            operation.number = self._recorder.operation_begins(
                action, operation.flight.starts_on or job.running_on, self._clock.now()
            )
            if isinstance(action, Suspend | Requeue | Cancel):
                self._ledger.leaving(job_id)
            self._operations[job_id] = operation
            run = self._run(operation)
            name = f"job-{job_id}"
            operation.task = asyncio.create_task(run, name=name) if concurrent else at_once(run, name)

    async def drain(self, deadline_seconds: float) -> bool:
        """Wait for what is under way. False: something was still going on at the deadline."""
        tasks = [op.task for op in self._operations.values() if op.task is not None]
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=deadline_seconds)
        return not pending

    def abandon(self, job_id: JobId) -> None:
        """The job is gone, and its number is another job's now: do nothing more under this number."""
        operation = self._operations.get(job_id)
        if operation is not None and operation.task is not None:
            operation.abandoned = True
            operation.task.cancel()

    def cancel(self) -> None:
        """Drop what is under way, as a crash would; the next controller picks it up."""
        for operation in self._operations.values():
            if operation.task is not None:
                operation.task.cancel()

    # -- operations -----------------------------------------------------------------------------------

    async def _run(self, operation: _Operation) -> None:
        outcome, error = Outcome.DONE, ""
        job_id = operation.job.id
        begin = self._clock.now()
        try:
            await self._perform(operation)
        except (UnknownJob, _JobEnded):
            outcome = Outcome.JOB_ENDED
        except GandivaError as failure:
            outcome, error = Outcome.FAILED, str(failure)
            if not isinstance(failure, ClaimFailed):
                kind = type(operation.action).__name__.lower()
                log.warning("job %s: %s failed: %s; see gandiva explain %s", job_id, kind, failure, job_id)
        except asyncio.CancelledError:
            if not operation.abandoned:
                raise
            outcome = Outcome.JOB_ENDED
            self._ledger.release(job_id)
        except Exception:
            # A bug must cost one operation, not the controller.
            log.exception("job %s: internal error in %s; please report it", job_id, operation.action)
            outcome, error = Outcome.FAILED, "internal error, see the log"
            self._memory[job_id].not_before = self._clock.now() + self.settings.place_retry_seconds
        finally:
            self._ledger.stays(job_id)
            self._operations.pop(job_id, None)
            self._ended[job_id] = operation.flight
        end = self._clock.now()
        self._recorder.operation_ends(operation.number, outcome, error, end)
        if end > begin or outcome is not Outcome.DONE:
            # (What took no time at all, on an ideal cluster, is as the plan had it: nothing is new.)
            self._on_change()

    def _perform(self, operation: _Operation) -> Awaitable[None]:
        match operation.action:
            case Place() as action:
                return self._place(operation, action)
            case Suspend() as action:
                return self._suspend(operation, action)
            case Resume() as action:
                return self._resume(operation, action)
            case Requeue() as action:
                return self._requeue(operation, action)
            case Cancel() as action:
                return self._cancel(operation, action)
            case Withdraw():
                return self._withdraw(operation)

    # -- place ----------------------------------------------------------------------------------------

    async def _place(self, operation: _Operation, action: Place) -> None:
        job = operation.job
        self._step(operation, Step.CLAIM)
        await self._ledger.claim(job.id, action.gpus)
        begin = self._clock.now()
        try:
            residuals.require_room(job, action.gpus, self._seen, self._left)
            self._step(operation, Step.PREPARE)
            await self._prepare(job, action)
            self._step(operation, Step.BIND)
            await self._cluster.bind(job.id, action.binding)
            self._step(operation, Step.RELEASE)
            await self._cluster.release(job.id)
            self._step(operation, Step.AWAIT_START)
            released = self._clock.now()
            started = await self._await_start(job.id)
        except GandivaError as failure:
            settings, limited = self.settings, isinstance(failure, _AtLimit)
            # (As often as if it had been waited for; but meanwhile its GPUs are another's to use.)
            pause = settings.start_deadline_seconds if limited else settings.place_retry_seconds
            self._memory[job.id].not_before = self._clock.now() + pause
            self._recorder.event("place-failed", str(failure), self._clock.now(), job.id)
            if not isinstance(failure, UnknownJob | _JobEnded):
                self._step(operation, Step.UNDO)
                await self._take_back(job.id)
            self._ledger.release(job.id)
            raise
        if started.state in _OVER:
            self._charge(started, action.gpus, released)
            self._ledger.release(job.id)
            raise _JobEnded(f"job {job.id} ended before it was seen running")
        if started.binding != action.binding:
            # Slurm's word counts: from now on these are its GPUs (the next snapshot says so too).
            message = f"started on {_names(started.binding)} instead of {_names(action.binding)}"
            self._recorder.event("binding-differs", message, self._clock.now(), job.id)
            log.error("job %s: %s; it stays there. Who changed its request?", job.id, message)
        # Slurm may have been away when it started; its own word counts where it can be true.
        since = started.start_time
        believable = since is not None and released <= since <= self._clock.now()
        self._begin_slice(job.id, action.gpus, begin, since if believable else None)

    def _charge(self, job: SlurmJob, gpus: GpuSet, released: float) -> None:
        """A job that is over and was not seen running: it was on its GPUs for as long as Slurm states, since
        its release at the earliest (Slurm's times are whole seconds)."""
        assert job.start_time is not None
        now = self._clock.now()
        since = min(max(released, job.start_time), now)
        self._begin_slice(job.id, gpus, now, since)
        if job.end_time is not None:  # (else the loop ends it)
            end = min(since + max(0.0, job.end_time - job.start_time), now)
            if self._memory.stopped(job.id, end):
                self._recorder.slice_ends(job.id, "job ended", end)

    def _prepare(self, job: Job, action: Place) -> Awaitable[object]:
        bound = by_node(action.binding)
        wanted = bound if action.gpus == action.binding else by_node(action.gpus)
        return self._all(
            self._nodes.prepare(
                node,
                job.id,
                uid=job.uid,
                gpus=wanted.get(node, ordinals),
                binding=ordinals,
                deadline_seconds=self.settings.node_call_deadline_seconds,
            )
            for node, ordinals in bound.items()
        )

    async def _await_start(self, job_id: JobId) -> SlurmJob:
        """Until Slurm says RUNNING, or that it ran. Raises ClusterRefused at the start deadline, and long
        before it where a limit of an association or a QOS stands in the way."""
        begin = self._clock.now()
        deadline = begin + self.settings.start_deadline_seconds
        pauses = _pauses()
        while True:
            try:
                job = await self._cluster.job(job_id)
            except ClusterUnavailable:
                if self._clock.now() >= deadline:
                    raise
            else:
                if job.state in _STARTED or (job.state in _OVER and job.start_time is not None):
                    return job
                if job.state in _OVER:
                    raise _JobEnded(f"job {job_id} ended while it was starting")
                now = self._clock.now()
                limited = job.reason.startswith(LIMIT_REASONS) and now >= begin + _LIMIT_SECONDS
                if limited or now >= deadline:
                    kind = _AtLimit if limited else ClusterRefused
                    raise kind(
                        f"Slurm did not start it within {now - begin:.0f} s "
                        f"(reason: {job.reason or 'none given'})"
                    )
            await asyncio.sleep(next(pauses))

    async def _take_back(self, job_id: JobId) -> None:
        """Hold it again. If it started in the last moment, it runs; the next snapshot shows it."""
        try:
            await self._cluster.hold(job_id)
            await self._cluster.unbind(job_id)
        except ClusterRefused as refused:
            log.info("job %s: not taken back: %s", job_id, refused)

    # -- suspend --------------------------------------------------------------------------------------

    async def _suspend(self, operation: _Operation, action: Suspend) -> None:
        job, begin = operation.job, self._clock.now()
        left_at: float | None = None
        if job.phase is not Phase.YIELDED:
            try:
                empty = await self._leave_gpus(operation)
            except GandivaError as failure:
                await self._failed_suspend(operation, failure)
                raise
            if not empty:
                left_at = self._clock.now()
        if self.settings.suspend_in_slurm:
            self._step(operation, Step.SLURM_SUSPEND)
            try:
                await self._patiently(self._cluster.suspend, job.id)
            except ClusterRefused as refused:
                if await self._has_ended(job.id):
                    raise _JobEnded(f"job {job.id} ended while it was being suspended") from refused
                raise
        self._step(operation, Step.STOP)
        try:
            await self._stop(job)
        except GandivaError as failure:
            await self._failed_suspend(operation, failure)
            raise
        self._end_slice(job.id, action.reason, begin, left_at)
        self._ledger.release(job.id)

    async def _stop(self, job: Job) -> None:
        """The job's processes stop, and are seen to have no memory on its GPUs: only then these are free."""
        deadline_seconds = self.settings.node_call_deadline_seconds
        await self._on_nodes(
            job, lambda node: self._nodes.stop(node, job.id, deadline_seconds=deadline_seconds)
        )

    async def _leave_gpus(self, operation: _Operation) -> bool:
        """Get the job's memory off its GPUs. True: it had none.

        Raises NodeError with the reason of the last way that was tried.
        """
        job, settings = operation.job, self.settings
        method = job.request.suspend or settings.default_method
        # Where several GPUs are in use the driver cannot help, and the agent says so; but a job that has not
        # touched any of them yet (it imports, or reads its data) can be stopped as it is.
        may_checkpoint = len(by_node(job.binding)) == 1 and (
            method is SuspendMethod.TRANSPARENT or settings.transparent_fallback
        )
        uncooperative: NodeError | None = None
        if method is not SuspendMethod.TRANSPARENT:
            try:
                self._step(operation, Step.PAUSE)
                await self._pause(job)
                self._step(operation, Step.OFFLOAD)
                answers = await self._on_nodes(job, lambda node: self._offload(node, job))
                self._left[job.id] = {
                    GpuId(node, ordinal): size
                    for node, answer in zip(by_node(job.binding), answers, strict=True)
                    for ordinal, size in answer.left_on.items()
                }
                return all(answer.empty for answer in answers)
            except NodeError as failure:
                if not may_checkpoint or failure.kind not in ("not_cooperative", "deadline"):
                    raise
                uncooperative = failure
                log.info("job %s: %s; trying the driver's checkpoint", job.id, failure)
        self._step(operation, Step.CHECKPOINT)
        try:
            answers = await self._on_nodes(
                job,
                lambda node: self._nodes.checkpoint(
                    node,
                    job.id,
                    residual_limit_bytes=0,  # the driver takes all of a process off, its context too
                    deadline_seconds=settings.offload_deadline_seconds,
                ),
            )
        except NodeError as failure:
            if uncooperative is not None and job.gpus > 1 and failure.kind == "unsupported":
                raise uncooperative from failure  # that is what its user can do something about
            raise
        return all(answer.empty for answer in answers)

    async def _pause(self, job: Job) -> None:
        """All ranks on all nodes at one step boundary (docs/interfaces.md, "Agreeing on one step")."""
        nodes = sorted(by_node(job.binding))
        deadline_seconds = self.settings.step_deadline_seconds
        if len(nodes) == 1:
            await self._nodes.pause(nodes[0], job.id, floor_step=0, wait_seconds=deadline_seconds, sole=True)
            return
        deadline = self._clock.now() + deadline_seconds
        floor_step = 0
        while True:
            answers = await self._all(
                self._nodes.pause(node, job.id, floor_step=floor_step, wait_seconds=0.2, sole=False)
                for node in nodes
            )
            target = max(answer.target_step for answer in answers)
            # An agent sees the ranks of its own node: some may not have attached yet elsewhere.
            ranks = [rank for answer in answers for rank in answer.ranks]
            complete = len(ranks) >= max((rank.world_size for rank in ranks), default=0)
            if complete and all(a.all_blocked and a.target_step == target for a in answers):
                return
            if self._clock.now() >= deadline:
                late = ", ".join(
                    node for node, answer in zip(nodes, answers, strict=True) if not answer.all_blocked
                )
                raise NodeError(
                    late,
                    "deadline",
                    f"job {job.id} did not reach step {target} within {deadline_seconds:g} s",
                )
            floor_step = target

    async def _offload(self, node: str, job: Job) -> Offload:
        settings, limit_bytes, why = self.settings, self.settings.residual_limit_bytes, ""
        if limit_bytes:
            room = residuals.room(job, node, self._seen, settings.residual_fraction)
            if room.bytes < limit_bytes:
                limit_bytes, why = room.bytes, room.why
        try:
            return await self._nodes.offload(
                node,
                job.id,
                residual_limit_bytes=limit_bytes,
                release_context=settings.release_context,
                deadline_seconds=settings.offload_deadline_seconds,
            )
        except NodeError as failure:
            if failure.kind != "left_on_gpu" or not why:
                raise
            # Not for anything of this job's: that never ends it (`suspend.unsuspendable`).
            raise NodeError(node, "gpu_busy", f"{failure.message}; {why}") from failure

    async def _failed_suspend(self, operation: _Operation, failure: GandivaError) -> None:
        """The job keeps its GPUs. Put it back to work, and leave it alone for a while."""
        job = operation.job
        self._ledger.stays(job.id)
        if await self._has_ended(job.id):
            raise _JobEnded(f"job {job.id} ended while it was being suspended") from failure
        now, memory = self._clock.now(), self._memory[job.id]
        if job.phase is Phase.YIELDED:
            # Its GPUs may be another job's by now: what is seen of it at the next turn decides.
            memory.not_before = now + self.settings.place_retry_seconds
            self._recorder.event("suspend-failed", str(failure), now, job.id)
            return
        way_out = Unsuspendable.KEEP
        if isinstance(failure, NodeError) and failure.kind in _OF_THE_JOB:
            before = memory.failed_suspends
            tries = 1 if before is None else before.tries + 1
            way_out = self._way_out(job, tries)
            since = now if before is None else before.since
            memory.failed_suspends = FailedSuspends(tries, since, str(failure), way_out)
        message = f"could not be taken off {_names(job.running_on)}: {failure}; "
        if way_out is Unsuspendable.KEEP:
            memory.unsuspendable_until = now + self.settings.retry_after_seconds
            message += f"it keeps them, next try in {self.settings.retry_after_seconds:g} s"
        else:
            memory.unsuspendable_until = None
            message += f"too many failed suspends in a row, and suspend.unsuspendable is {way_out.value}"
        self._recorder.event("suspend-failed", message, now, job.id)
        log.error("job %s (user %s): %s", job.id, job.user, message)
        self._step(operation, Step.UNDO)
        try:
            await self._go_on(job, job.running_on)
        except GandivaError as undo_failure:
            # Its phase will be STUCK or UNKNOWN, and the loop keeps trying.
            log.error("job %s: not back at work yet, tried again every turn: %s", job.id, undo_failure)

    def _way_out(self, job: Job, tries: int) -> Unsuspendable:
        """What the site does with a job whose suspend has failed so many times in a row. A user who has
        refused that the job moves has refused that it is requeued."""
        settings = self.settings
        refused = settings.unsuspendable is Unsuspendable.REQUEUE and job.request.migrate is False
        return (
            Unsuspendable.KEEP if refused or tries < settings.unsuspendable_tries else settings.unsuspendable
        )

    # -- resume ---------------------------------------------------------------------------------------

    async def _resume(self, operation: _Operation, action: Resume) -> None:
        job = operation.job
        self._step(operation, Step.CLAIM)
        await self._ledger.claim(job.id, action.gpus)
        begin = self._clock.now()
        try:
            residuals.require_room(job, action.gpus, self._seen, self._left)
        except NodeError as failure:
            self._memory[job.id].not_before = self._clock.now() + self.settings.place_retry_seconds
            self._recorder.event("resume-failed", str(failure), self._clock.now(), job.id)
            self._ledger.release(job.id)
            raise
        try:
            if self.settings.suspend_in_slurm or job.phase is not Phase.YIELDED:
                self._step(operation, Step.SLURM_RESUME)
                await self._patiently(self._cluster.resume, job.id)
            self._step(operation, Step.NODE_RESUME)
            await self._resume_on_nodes(job, action.gpus)
        except GandivaError as failure:
            if await self._has_ended(job.id):
                self._ledger.release(job.id)
                raise _JobEnded(f"job {job.id} ended while it was being resumed") from failure
            self._memory[job.id].not_before = self._clock.now() + self.settings.place_retry_seconds
            self._recorder.event("resume-failed", str(failure), self._clock.now(), job.id)
            one_node = len(by_node(job.binding)) == 1
            if isinstance(failure, NodeError) and failure.kind in _STILL_OFF and one_node:
                # (A gang over several nodes may be back on some of them: it counts as STUCK and is tried
                # again.)
                self._step(operation, Step.UNDO)
                if self.settings.suspend_in_slurm:
                    await self._patiently(self._cluster.suspend, job.id)
                await self._stop(job)
                self._ledger.release(job.id)
            raise
        self._begin_slice(job.id, action.gpus, begin)

    async def _go_on(self, job: Job, gpus: GpuSet) -> None:
        if self.settings.suspend_in_slurm:
            await self._patiently(self._cluster.resume, job.id)
        await self._resume_on_nodes(job, gpus)

    async def _resume_on_nodes(self, job: Job, gpus: GpuSet) -> None:
        try:
            await self._put_back(job, gpus)
        except NodeError as failure:
            if failure.kind != "halted" or not self.settings.suspend_in_slurm:
                raise
            # Slurm takes it for running and would not resume it, yet it is frozen: a slurmctld that was
            # killed forgets the suspends of its last seconds. Suspended once more, it can be resumed.
            message = f"{failure}; suspending and resuming it in Slurm once more"
            log.warning("job %s: %s", job.id, message)
            self._recorder.event("thawed", message, self._clock.now(), job.id)
            await self._patiently(self._cluster.suspend, job.id)
            await self._patiently(self._cluster.resume, job.id)
            await self._put_back(job, gpus)

    async def _put_back(self, job: Job, gpus: GpuSet) -> None:
        bound = by_node(job.binding)
        wanted = bound if gpus == job.binding else by_node(gpus)
        await self._all(
            self._nodes.resume(
                node,
                job.id,
                gpus=wanted.get(node, ordinals),
                binding=ordinals,
                deadline_seconds=self.settings.resume_deadline_seconds,
            )
            for node, ordinals in bound.items()
        )

    # -- the others -----------------------------------------------------------------------------------

    async def _requeue(self, operation: _Operation, action: Requeue) -> None:
        job, begin = operation.job, self._clock.now()
        self._step(operation, Step.REQUEUE)
        try:
            await self._patiently(self._cluster.requeue, job.id)
        except ClusterRefused as refused:
            if not await self._has_ended(job.id):
                # (Its user may have said --no-requeue since.) It stays where it is.
                self._stays(job.id, "requeue-failed", refused)
            raise
        if (await self._until(job.id, "requeue", JobState.PENDING, JobState.ENDED)).state is JobState.ENDED:
            raise _JobEnded(f"job {job.id} ended while it was being requeued")
        self._end_slice(job.id, action.reason, begin)
        self._ledger.release(job.id)

    async def _cancel(self, operation: _Operation, action: Cancel) -> None:
        job = operation.job
        self._step(operation, Step.CANCEL)
        try:
            await self._patiently(lambda job_id: self._cluster.end(job_id, action.reason), job.id)
        except ClusterRefused as refused:
            if not await self._has_ended(job.id):
                self._stays(job.id, "cancel-failed", refused)
            raise
        self._recorder.event("cancelled", action.reason, self._clock.now(), job.id)
        log.warning("job %s (user %s): cancelled: %s", job.id, job.user, action.reason)
        # (The loop ends its slice, at the time that Slurm states.)
        await self._until(job.id, "its cancellation", *_OVER)

    def _stays(self, job_id: JobId, kind: str, refused: ClusterRefused) -> None:
        """Slurm does not take it off its GPUs: they are its own until the next try."""
        now, memory = self._clock.now(), self._memory[job_id]
        memory.not_before = memory.unsuspendable_until = now + self.settings.retry_after_seconds
        if memory.failed_suspends is not None:
            memory.failed_suspends = replace(memory.failed_suspends, way_out=Unsuspendable.KEEP)
        self._recorder.event(kind, str(refused), now, job_id)

    async def _until(self, job_id: JobId, after: str, *states: JobState) -> SlurmJob:
        """The job once it is in one of these states. Raises ClusterUnavailable at the start deadline."""
        deadline = self._clock.now() + self.settings.start_deadline_seconds
        pauses = _pauses()
        while (seen := await self._cluster.job(job_id)).state not in states:
            if self._clock.now() >= deadline:
                raise ClusterUnavailable(f"job {job_id} is still {seen.state_name} after {after}")
            await asyncio.sleep(next(pauses))
        return seen

    async def _withdraw(self, operation: _Operation) -> None:
        self._step(operation, Step.UNDO)
        await self._take_back(operation.job.id)

    # -- helpers --------------------------------------------------------------------------------------

    def _step(self, operation: _Operation, step: Step) -> None:
        if operation.abandoned:
            # (A call that ends as it is cancelled may swallow that: `asyncio.wait_for` before Python 3.12.)
            raise asyncio.CancelledError
        if self._keeps_steps:
            self._recorder.operation_step(operation.number, step, self._clock.now())

    def _begin_slice(self, job_id: JobId, gpus: GpuSet, begin: float, since: float | None = None) -> None:
        """`begin`: when it began to get onto its GPUs."""
        now = self._clock.now()
        memory = self._memory[job_id]
        switch_seconds = memory.off_seconds + (now - begin)
        if exempt_seconds := self.settings.preempt_exempt_ratio * switch_seconds:
            memory.exempt_until = now + exempt_seconds
        now = now if since is None else since
        if memory.running_on and memory.running_on != gpus:
            memory.moves += 1
        if self._memory.started(job_id, gpus, now):
            self._recorder.slice_begins(job_id, gpus, now)

    def _end_slice(self, job_id: JobId, reason: str, begin: float, left_at: float | None = None) -> None:
        """`begin`: when it began to get off its GPUs."""
        now = self._clock.now()
        self._memory[job_id].off_seconds = now - begin
        now = now if left_at is None else left_at
        if self._memory.stopped(job_id, now):
            self._memory[job_id].suspends += 1
            self._recorder.slice_ends(job_id, reason, now)

    async def _patiently(self, call: Callable[[JobId], Awaitable[None]], job_id: JobId) -> None:
        """A call to Slurm that is harmless to repeat: again while Slurm is unavailable, a few times."""
        for pause_seconds in (0.2, 1.0, 3.0):
            try:
                await call(job_id)
                return
            except ClusterUnavailable as unavailable:
                log.info("job %s: %s; trying again", job_id, unavailable)
                await asyncio.sleep(pause_seconds)
        await call(job_id)

    async def _has_ended(self, job_id: JobId) -> bool:
        try:
            job = await self._cluster.job(job_id)
        except UnknownJob:
            return True
        except ClusterError:
            return False
        return job.state in _OVER

    def _all(self, calls: Iterable[Coroutine[Any, Any, T]]) -> Awaitable[list[T]]:
        return _all(list(calls), concurrent=self.settings.concurrent)

    def _on_nodes(self, job: Job, call: Callable[[str], Coroutine[Any, Any, T]]) -> Awaitable[list[T]]:
        return self._all(call(node) for node in sorted(by_node(job.binding)))


def _pauses() -> Iterator[float]:
    """Between two looks at a job in Slurm: what takes long is asked after less often."""
    pause_seconds = 0.05
    while True:
        yield pause_seconds
        pause_seconds = min(1.0, pause_seconds * 1.5)


class _AtLimit(ClusterRefused):
    """Slurm starts no more of its user's, account's or QOS' jobs for now."""


class _JobEnded(GandivaError):
    """The job ended by itself meanwhile; nothing is wrong."""


async def _all(calls: Sequence[Coroutine[Any, Any, T]], *, concurrent: bool) -> list[T]:
    """All of them to their end, then the first error if there was one: an undo must not overtake a call
    that is still going on at another node."""
    if len(calls) == 1:
        return [await calls[0]]
    results: list[T | BaseException] = []
    if concurrent:
        results = await asyncio.gather(*calls, return_exceptions=True)
    else:
        for call in calls:
            try:
                results.append(await call)
            except GandivaError as error:
                results.append(error)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


def _names(gpus: GpuSet) -> str:
    return ",".join(str(gpu) for gpu in sorted(gpus)) or "no GPU"
