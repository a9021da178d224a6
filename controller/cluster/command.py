# SPDX-License-Identifier: GPL-2.0-or-later
"""The way to slurmctld through Slurm's own commands: for sites whose Slurm has no matching pyslurm.

Works from Slurm 24.11 on. Reading 3,000 jobs takes about 1.5 s of a processor, against 50 ms with pyslurm.
`SlurmCluster` makes the cluster port out of it.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from controller.cluster import replies, reserving
from controller.cluster.commands import run
from controller.cluster.partitions import SCONTROL, Partition, parse_partitions
from controller.cluster.raw import JobRecord, NodeRecord
from controller.cluster.records import array_tasks, shares_record
from controller.cluster.request import Asked
from controller.cluster.reserving import Reservation
from controller.cluster.shares import SSHARE, parse_shares
from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import GpuId, JobId, Share

log = logging.getLogger(__name__)

MAX_COMMENT_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Load:
    jobs: tuple[JobRecord, ...]
    """Gandiva jobs, also those that ended recently."""
    nodes: tuple[NodeRecord, ...]
    whole_gpu_jobs: dict[GpuId, JobId]
    """GPUs that running jobs hold as GRES `gpu`, as far as Slurm tells which."""


class CommandTransport:
    """Talks to slurmctld with squeue and scontrol. A call raises `ClusterUnavailable`, `ClusterRefused` or
    `UnknownJob`, and ends at once when it is cancelled, however slurmctld hangs."""

    def __init__(self) -> None:
        self._names: dict[JobId, str] = {}

    def remember(self, records: Iterable[JobRecord], *, all_jobs: bool = False) -> None:
        """Learn how the commands name these jobs.

        To scontrol an array's id, which is also the id of one of its tasks, means all of its tasks.
        """
        names = {JobId(record.id): _name(record) for record in records}
        self._names = names if all_jobs else {**self._names, **names}

    async def load(self) -> Load:
        jobs_text = await run("squeue", "--json", "--states=all", what="reading the jobs")
        nodes_text = await run("scontrol", "show", "nodes", "--json", what="reading the nodes")
        # 25 MB for 3,000 jobs: not in the event loop.
        jobs, whole = await asyncio.to_thread(replies.gandiva_jobs, jobs_text, "reading the jobs")
        self.remember(jobs, all_jobs=True)
        return Load(jobs, replies.nodes(nodes_text, "reading the nodes"), whole)

    async def partitions(self) -> tuple[Partition, ...]:
        """All partitions, hidden ones too."""
        what = "reading the partitions"
        return parse_partitions(await run(*SCONTROL, what=what), what)

    async def shares(self) -> tuple[Share, ...]:
        """The tree of associations. pyslurm does not know what users have used."""
        what = "reading the shares"
        return parse_shares(await run(*SSHARE, what=what), what)

    async def job(self, job_id: JobId) -> JobRecord:
        """One job, freshly. Raises UnknownJob."""
        what = f"reading job {job_id}"
        text = await run("scontrol", "show", "job", str(job_id), "--json", what=what, job_id=job_id)
        # The id of an array stands for all of its tasks.
        for record in replies.any_jobs(text, what):
            if record.id == job_id:
                self.remember([record])
                return record
        raise UnknownJob(f"job {job_id}: Slurm does not know it (any more)")

    async def whole_gpus(self, job_ids: Collection[JobId]) -> dict[GpuId, JobId]:
        """The GPUs that these jobs hold as GRES `gpu`. Jobs that are gone hold none."""
        what = "reading which GPUs ordinary jobs hold"
        ids = ",".join(str(job_id) for job_id in sorted(job_ids))
        try:
            text = await run("squeue", "--json", "--states=all", f"--jobs={ids}", what=what)
        except UnknownJob:
            return {}
        _, whole = replies.gandiva_jobs(text, what)
        return whole

    async def bind(self, job_id: JobId, gres: Sequence[str], nodes: Sequence[str], resize: bool) -> None:
        """Make a pending job ask for one of each GRES on each of exactly these nodes, and start as soon as it
        is released. `resize`: its number of nodes must change, and a request of GPUs per job must go."""
        wanted = ",".join(f"{each}:1" for each in gres)
        fields = [f"Gres={wanted}", f"ReqNodeList={','.join(nodes)}", "StartTime=now"]
        if resize:
            fields += [f"NumNodes={len(nodes)}", "TresPerJob="]
        await self._update(job_id, f"binding job {job_id}", fields)

    async def unbind(self, job_id: JobId, asked: Asked, *, begin_now: bool) -> None:
        """Make a pending job ask for what its user asked for. `begin_now`: nobody wishes its begin time."""
        fields = [f"ReqNodeList={asked.nodelist or ''}", *(["StartTime=now"] if begin_now else [])]
        if asked.gpus_per_node is None:
            fields += ["TresPerNode=", f"TresPerJob=gres/gpu:{asked.gpus}"]
        else:
            fields.append(f"Gres=gpu:{asked.gpus_per_node}")
        if asked.nodes is not None:
            fields.append(f"NumNodes={asked.nodes}")
        await self._update(job_id, f"unbinding job {job_id}", fields)

    async def release(self, job_id: JobId) -> None:
        """Undo any hold."""
        await self._scontrol(job_id, "release", what=f"releasing job {job_id}")

    async def hold(self, job_id: JobId) -> None:
        """Hold as Gandiva's own holds are (reason JobHeldUser). slurmctld accepts this for running jobs."""
        await self._scontrol(job_id, "uhold", what=f"holding job {job_id}")

    async def split(self, array_id: JobId, tasks: Sequence[int]) -> None:
        """Give these held tasks of an array records, and job ids, of their own. Not the last ones: asked for
        all the tasks of a record, Slurm leaves them together."""
        # Any update of some tasks does; holding held tasks is the mildest.
        which = f"{array_id}_[{','.join(str(task) for task in tasks)}]"
        await run("scontrol", "uhold", which, what=f"splitting array {array_id}", job_id=array_id)

    async def suspend(self, job_id: JobId) -> None:
        await self._scontrol(job_id, "suspend", what=f"suspending job {job_id}")

    async def resume(self, job_id: JobId) -> None:
        await self._scontrol(job_id, "resume", what=f"resuming job {job_id}")

    async def requeue_hold(self, job_id: JobId) -> None:
        """Stop a running job and put it back, held. Does nothing to a job that does not run."""
        # Without `Incomplete` a job that has just finished would run again.
        await self._scontrol(job_id, "requeuehold", "Incomplete", what=f"requeueing job {job_id}")

    async def end(self, job_id: JobId, reason: str) -> None:
        """Write the reason behind the job's comment and cancel the job."""
        what = f"cancelling job {job_id}"
        name = await self._name_of(job_id)
        comment = _one_line(reason)
        try:
            squeue = ("squeue", "--noheader", "--states=all", f"--jobs={name}", "--format=%k")
            own = (await run(*squeue, what=what, job_id=job_id)).strip()
            if comment not in own:  # the call may be repeated
                behind = "" if own in ("", "(null)") else f"{own}; "
                await self._update(job_id, what, [f"Comment={behind}{comment}"])
        except ClusterRefused as refused:  # the journal has the reason, too
            log.info("job %s: no comment: %s", job_id, refused)
        await run("scancel", name, what=what, job_id=job_id)

    async def reserve(
        self, job_id: JobId, partition: str, gres: Sequence[str], nodes: Sequence[str], seconds: float
    ) -> None:
        """Hold one of each GRES on each of these nodes for a job, without a process."""
        command = reserving.salloc(job_id, partition, gres, nodes, seconds)
        what = f"reserving GPUs for job {job_id}"
        try:
            await run(*command, what=what)
        except ClusterUnavailable as unavailable:
            if reserving.BUSY not in str(unavailable):
                raise
            raise ClusterRefused(f"{what}: they, or the cores and the memory beside them, are busy") from None

    async def reservations(self) -> tuple[Reservation, ...]:
        """What `reserve` made and has not ended yet."""
        return reserving.parse(await run(*reserving.SQUEUE, what="reading the reservations"))

    async def unreserve(self, own_id: JobId) -> None:
        """End a reservation, by its own id."""
        await run("scancel", str(own_id), what=f"ending reservation {own_id}", job_id=own_id)

    async def prefer(self, job_id: JobId, priority: int) -> None:
        """Give a job this priority in Slurm, which refuses that for a held one."""
        await self._update(job_id, f"setting the priority of job {job_id}", [f"Priority={priority}"])

    async def close(self) -> None:
        """Nothing is kept open."""

    async def _update(self, job_id: JobId, what: str, fields: Sequence[str]) -> None:
        name = await self._name_of(job_id)
        await run("scontrol", "update", f"JobId={name}", *fields, what=what, job_id=job_id)

    async def _scontrol(self, job_id: JobId, *words: str, what: str) -> None:
        await run("scontrol", *words, await self._name_of(job_id), what=what, job_id=job_id)

    async def _name_of(self, job_id: JobId) -> str:
        if job_id not in self._names:
            await self.job(job_id)
        return self._names[job_id]


def _one_line(text: str) -> str:
    """Parts of it may be a job's own words: printable ASCII without quotes, of bounded length."""
    plain = "".join(c if " " <= c <= "~" and c not in "'\"\\" else "?" for c in text)
    return plain[:MAX_COMMENT_CHARACTERS]


def _name(record: JobRecord) -> str:
    """How scontrol names one job, and no other."""
    if record.id != record.array_job_id or shares_record(record):
        return str(record.id)  # a record of several tasks is never changed as a whole
    tasks = (record.array_task_id,) if record.array_task_id >= 0 else array_tasks(record)
    return f"{record.id}_{tasks[0]}" if tasks else str(record.id)
