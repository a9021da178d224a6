# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster port for a real Slurm, whatever way it is talked to.

Here are the rules that slurmctld does not enforce itself (docs/slurm-facts.md gives the proofs): it would
hold a running job, requeue a finished one (which runs it again), and forget the begin time of a requeued job
that is changed before it is through with its last run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, cast

from controller.cluster.command import CommandTransport, Load
from controller.cluster.gres import bound_gres
from controller.cluster.partitions import by_node
from controller.cluster.port import ClusterJob, ClusterNode, ClusterView, JobState
from controller.cluster.pyslurm import PyslurmTransport, require_pyslurm
from controller.cluster.raw import JobRecord
from controller.cluster.records import (
    array_rooms,
    array_tasks,
    shares_record,
    slurm_job,
    slurm_node,
)
from controller.cluster.request import read_asked
from controller.cluster.reserved import Reserved
from controller.cluster.states import REHELD_WITHIN_SECONDS, REQUEUED_HELD, job_state
from controller.errors import ClusterError, ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import GpuSet, JobId, Share
from controller.model.measures import Measures

log = logging.getLogger(__name__)

MAX_WAITING_TASKS = 64
"""So many held tasks of one array get records of their own ahead of time. The rest of a large array stays in
one record, as Slurm keeps it."""

SPLITTING_SHARE = 0.25
"""Splitting arrays takes no more of a look's deadline than this, but for the call that is under way; the rest
is split at the next looks: a user who submits a thousand arrays must not keep the controller from looking."""

SETTLE_SECONDS = 0.5
"""slurmctld passes suspend, resume and kill on to the nodes after it has answered, and may do so in the wrong
order when they follow each other within milliseconds: a job was then RUNNING for Slurm and frozen for good on
its node in half of the tries (docs/slurm-facts.md, Suspend and resume; none in 110 tries with 0.05 s between
them). So two such calls for one job are kept this far apart. Slices are much longer: only a call that undoes
another one waits."""

REVOKED_SECONDS = 2.5
"""A job that starts anew in the second in which its last run was ended FAILS on its node, for good: slurmd
takes the new credential for the one that it has just revoked (`Job credential revoked`, seen on 24.11; both
times are whole seconds). So it is bound no sooner than this after its requeue, which is its submit time."""

PARTITIONS_SECONDS = 10.0
"""So often the partitions are read: they change when an administrator changes them."""

_POLL_SECONDS = 0.05

CALLS: Final = (
    "load", "job", "bind", "unbind", "release", "hold", "split", "suspend", "resume", "requeue_hold", "end",
    "partitions", "shares", "reserve", "reservations", "unreserve", "prefer",
)  # fmt: skip
OUTCOMES: Final = ("ok", "unknown_job", "refused", "unavailable", "cut_off", "error")
"""`cut_off`: ended at the deadline (or when the controller stopped), without an answer."""
_OUTCOME_OF: Final = {
    UnknownJob: "unknown_job",
    ClusterRefused: "refused",
    ClusterUnavailable: "unavailable",
    asyncio.CancelledError: "cut_off",
}

Call = TypeVar("Call", bound=Callable[..., Awaitable[Any]])


def _within_deadline(what: str) -> Callable[[Call], Call]:
    """Drops a call at the deadline, which ends whatever process does it. `what` it does, for the message."""

    def wrap(call: Call) -> Call:
        async def within(self: SlurmCluster, *arguments: Any) -> Any:
            seconds = self._deadline_seconds
            try:
                return await asyncio.wait_for(call(self, *arguments), seconds)
            except asyncio.TimeoutError:
                asked = what.format(*arguments)
                raise ClusterUnavailable(
                    f"{asked}: not done within {seconds:g} s; slurmctld may hang"
                ) from None

        return cast(Call, within)

    return wrap


class SlurmCluster:
    """Implements `ClusterPort` over a transport, which `close` closes. `deadline_seconds`: how long one call
    may take, waits included."""

    def __init__(self, transport: CommandTransport, *, deadline_seconds: float) -> None:
        self._transport = transport
        self._deadline_seconds = deadline_seconds
        self._models: dict[str, str] = {}
        self._partitions: Mapping[str, Mapping[str, str]] = {}
        self._partitions_at = -math.inf
        self._shared: frozenset[int] = frozenset()
        self._known: dict[JobRecord, ClusterJob] = {}
        self._records: Sequence[JobRecord] = ()
        self._jobs: tuple[ClusterJob, ...] = ()
        """What the records amount to."""
        self._jobs_change_at = math.inf
        """A job's begin time comes."""
        self._split_again = False
        """The records are later than the last look for arrays to split."""
        self._passed_on_at: dict[JobId, float] = {}
        self._reserved = Reserved(transport)

    @_within_deadline("observing the cluster")
    async def observe(self) -> ClusterView:
        now = time.monotonic()
        if now >= self._partitions_at + PARTITIONS_SECONDS:
            self._partitions, self._partitions_at = by_node(await self._transport.partitions()), now
        load = await self._transport.load()
        if load.jobs is not self._records or self._split_again or time.time() >= self._jobs_change_at:
            if split := await self._split_arrays(load.jobs):
                load = await self._transport.load()
            self._take(load.jobs, time.time())
            self._split_again = split
        return ClusterView(time=time.time(), jobs=self._jobs, nodes=self._nodes(load))

    def _take(self, records: Sequence[JobRecord], now: float) -> None:
        """The port's view of the jobs. Most of them are as they were, and what is known of them depends on
        nothing else: not making them anew saves 40 ms of 3,000."""
        rooms, jobs, known = array_rooms(records), [], self._known
        self._records, self._known = records, {}
        self._shared = frozenset(record.id for record in records if shares_record(record))
        for record in records:
            alone = record.begin_time <= now and record.id not in rooms
            job = known.get(record) if alone else None
            if job is None:
                job = slurm_job(record, now=now, array_room=rooms.get(record.id, True))
            if alone:
                self._known[record] = job
            jobs.append(job)
        self._jobs = tuple(jobs)
        self._jobs_change_at = min((r.begin_time for r in records if r.begin_time > now), default=math.inf)

    def _nodes(self, load: Load) -> tuple[ClusterNode, ...]:
        known = self._partitions
        nodes = tuple(slurm_node(r, load.whole_gpu_jobs, known.get(r.name, {})) for r in load.nodes)
        self._models = {node.name: node.gpus[0].model for node in nodes if node.gpus}
        return nodes

    @_within_deadline("reading the shares")
    async def shares(self) -> tuple[Share, ...]:
        return await self._transport.shares()

    @_within_deadline("reading job {}")
    async def job(self, job_id: JobId) -> ClusterJob:
        return slurm_job(await self._transport.job(job_id), now=time.time())

    @_within_deadline("binding job {}")
    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        gres, nodes = await self._gres(job_id, binding)
        record = await self._settled(job_id)
        if record.priority != 0:
            raise ClusterRefused(f"job {job_id} is not held: binding it would race with Slurm's scheduler")
        if shares_record(record):
            raise ClusterRefused(f"job {job_id} stands for the array tasks {record.array_tasks}")
        # With room between its limits Slurm would add nodes to the required ones; above them it drops some.
        resize = not record.gres or not record.min_nodes == record.max_nodes == len(nodes)
        await self._transport.bind(job_id, gres, nodes, resize)

    async def _gres(self, job_id: JobId, gpus: GpuSet) -> tuple[tuple[str, ...], list[str]]:
        """The GRES on each node, and the nodes."""
        nodes = {gpu.node for gpu in gpus}
        if not nodes <= self._models.keys():
            self._nodes(await self._transport.load())
        if gone := sorted(nodes - self._models.keys()):
            raise ClusterRefused(f"job {job_id}: {', '.join(gone)} is no node with GPUs of ours (any more)")
        return bound_gres(gpus, self._models), sorted(nodes)

    @_within_deadline("unbinding job {}")
    async def unbind(self, job_id: JobId) -> None:
        record = await self._settled(job_id)
        if (asked := read_asked(record.request)) is None:
            raise ClusterRefused(f"job {job_id}: its admin_comment does not say what its user asked for")
        released = 0.0 < record.begin_time - time.time() <= REHELD_WITHIN_SECONDS
        await self._transport.unbind(job_id, asked, begin_now=released)

    @_within_deadline("releasing job {}")
    async def release(self, job_id: JobId) -> None:
        if job_id in self._shared:
            raise ClusterRefused(f"job {job_id} stands for several array tasks: release would start all")
        await self._reserved.release(job_id)

    @_within_deadline("holding job {}")
    async def hold(self, job_id: JobId) -> None:
        await self._require_pending(job_id)
        await self._transport.hold(job_id)
        # It may have started between the two calls; slurmctld holds running jobs without a word.
        await self._require_pending(job_id)

    @_within_deadline("requeueing job {}")
    async def requeue(self, job_id: JobId) -> None:
        record = await self._transport.job(job_id)
        state = job_state(record.state)
        if state is JobState.PENDING:
            if record.priority != 0:
                await self.hold(job_id)
        elif state in (JobState.RUNNING, JobState.SUSPENDED, JobState.CONFIGURING):
            await self._settle(job_id)
            await self._transport.requeue_hold(job_id)
        elif record.reason != REQUEUED_HELD:
            raise ClusterRefused(f"job {job_id} is {record.state[0]}: requeueing it would run it again")

    @_within_deadline("cancelling job {}")
    async def end(self, job_id: JobId, reason: str) -> None:
        record = await self._transport.job(job_id)
        if job_state(record.state) not in (JobState.ENDED, JobState.COMPLETING):
            await self._settle(job_id)
            await self._transport.end(job_id, reason)

    @_within_deadline("suspending job {}")
    async def suspend(self, job_id: JobId) -> None:
        await self._switch(job_id, JobState.SUSPENDED)

    @_within_deadline("resuming job {}")
    async def resume(self, job_id: JobId) -> None:
        await self._switch(job_id, JobState.RUNNING)

    @_within_deadline("reserving GPUs for job {}")
    async def reserve(self, job_id: JobId, gpus: GpuSet, seconds: float) -> None:
        gres, nodes = await self._gres(job_id, gpus)
        await self._reserved.make(job_id, gpus, gres, nodes, seconds)

    @_within_deadline("ending the reservation for job {}")
    async def unreserve(self, job_id: JobId) -> None:
        await self._reserved.end(job_id)

    @_within_deadline("reading the reservations")
    async def reservations(self) -> Mapping[JobId, GpuSet]:
        return await self._reserved.look()

    async def close(self) -> None:
        await self._transport.close()

    async def _switch(self, job_id: JobId, wanted: JobState) -> None:
        """Suspend or resume. Slurm refuses to resume what runs, and does not even answer for a job that it
        does not know: so an error is followed by a look."""
        await self._settle(job_id)
        try:
            if wanted is JobState.SUSPENDED:
                await self._transport.suspend(job_id)
            else:
                await self._transport.resume(job_id)
        except ClusterError as error:
            record = await self._transport.job(job_id)
            if job_state(record.state) is not wanted:
                raise
            log.debug("job %d: %s; it is %s already", job_id, error, wanted.value)
        finally:
            self._passed_on_at[job_id] = time.monotonic()

    async def _settle(self, job_id: JobId) -> None:
        """Wait until the nodes have got what was last asked of this job."""
        since = time.monotonic() - SETTLE_SECONDS
        self._passed_on_at = {job: then for job, then in self._passed_on_at.items() if then > since}
        await asyncio.sleep(self._passed_on_at.get(job_id, since) - since)

    async def _settled(self, job_id: JobId) -> JobRecord:
        """The job's record once it is pending and over with its last run. Raises ClusterRefused when it is
        not pending, ClusterUnavailable when it does not get there in time."""
        give_up_at = time.monotonic() + 0.9 * self._deadline_seconds
        waited = completing = False
        while True:
            record = await self._transport.job(job_id)
            state = job_state(record.state)
            if state is JobState.PENDING:
                # Its last kill was when it was requeued, or (repeated) until just now.
                since = time.time() if completing else float(record.submit_time)
                left_seconds = since + REVOKED_SECONDS - time.time()
                if waited or not record.restarts or not 0.0 < left_seconds <= REVOKED_SECONDS:
                    return record
                waited = True
                await asyncio.sleep(left_seconds)
                continue
            if state is not JobState.COMPLETING:
                raise ClusterRefused(f"job {job_id} is {record.state[0]}, not pending: too late to change it")
            completing = True
            if time.monotonic() >= give_up_at:
                raise ClusterUnavailable(f"job {job_id} is still not through with its last run")
            await asyncio.sleep(min(_POLL_SECONDS, max(0.0, give_up_at - time.monotonic())))

    async def _require_pending(self, job_id: JobId) -> None:
        record = await self._transport.job(job_id)
        if job_state(record.state) is not JobState.PENDING:
            raise ClusterRefused(f"job {job_id} is {record.state[0]}: only pending jobs can be held")

    async def _split_arrays(self, records: Sequence[JobRecord]) -> bool:
        """Give waiting array tasks records of their own, some at a time. Whether anything changed."""
        waiting = Counter(
            record.array_job_id
            for record in records
            if job_state(record.state) is JobState.PENDING and not shares_record(record)
        )
        now = time.time()
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + SPLITTING_SHARE * self._deadline_seconds
        changed = False
        for record in records:
            if clock() >= give_up_at:
                log.info("there are many job arrays to split: the rest of them at the next look")
                break
            if not shares_record(record) or not _may_split(record, now):
                continue
            wanted = min(MAX_WAITING_TASKS, record.array_limit or MAX_WAITING_TASKS)
            room = wanted - waiting[record.array_job_id]
            tasks = array_tasks(record, max(room, 0) + 1)[:-1]
            if tasks:
                try:
                    await self._transport.split(JobId(record.array_job_id), tasks)
                except ClusterRefused as refused:  # it changed meanwhile; the next look will tell
                    log.info("array %d: %s", record.array_job_id, refused)
                changed = True
        return changed


def _may_split(record: JobRecord, now: float) -> bool:
    """Whether tasks of this record could be placed if they had records of their own."""
    if job_state(record.state) is not JobState.PENDING or record.priority != 0 or record.dependency:
        return False
    job = slurm_job(record._replace(array_tasks=""), now=now)
    return job.eligible and not job.user_hold


def open_cluster(
    adapter: Literal["pyslurm", "command"], *, deadline_seconds: float, measures: Measures | None = None
) -> SlurmCluster:
    """The cluster port of the Slurm that this host belongs to. Makes no connection before its first call.
    `measures` is told how long each call took. Raises SettingsError: pyslurm is not installed."""
    if adapter == "pyslurm":
        require_pyslurm()
    transport = PyslurmTransport() if adapter == "pyslurm" else CommandTransport()
    if measures is not None:
        transport = measured(transport, measures)
    return SlurmCluster(transport, deadline_seconds=deadline_seconds)


def measured(transport: CommandTransport, measures: Measures) -> CommandTransport:
    """The transport, which tells of its CALLS."""

    def timed(name: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(transport, name)

        async def measured_call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            outcome = "ok"
            try:
                return await call(*arguments, **named)
            except BaseException as error:
                outcome = _OUTCOME_OF.get(type(error), "error")
                raise
            finally:
                seconds = time.perf_counter() - began
                measures.slurm_call(name, outcome, seconds)
                job_id = arguments[0] if arguments else None
                log.debug("%s: %s after %.1f ms", name, outcome, seconds * 1000, extra={"job": job_id})

        return measured_call

    calls = {name: timed(name) for name in CALLS}
    return cast(CommandTransport, types.SimpleNamespace(close=transport.close, **calls))
