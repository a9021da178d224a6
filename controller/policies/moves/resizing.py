# SPDX-License-Identifier: GPL-2.0-or-later
"""Sizes of jobs: which may change theirs, who waits for GPUs, who shrinks for those, and what is remembered
from plan to plan."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from controller.model import GpuId, GpuSet, Job, JobId, Node, Placement, Reason, Snapshot, Why, by_node
from controller.policies.placement.draft import Draft
from controller.policies.placement.gangs import accepts

NAME = "grow"
"""What trials and the draft remember under it."""


@dataclass
class Record:
    """What the move remembers."""

    grown: dict[JobId, tuple[float, int]] = field(default_factory=dict)
    """Jobs that grew: when they did last, and the size before."""
    idle: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Nodes where a job could grow: since when so many GPUs have been free there."""


def may_resize(draft: Draft, job: Job) -> bool:
    """Whether the job runs alone on one node, stays as it is, and may change its size."""
    placement = job.placement
    starts_again = job.may_resize and placement.allocation == placement.gpus
    alone = draft.stays(job) and not job.switching and len(by_node(placement.gpus)) == 1
    return alone and (starts_again or job.may_resize_here)


def in_place(job: Job) -> bool:
    """Whether it changes its size where it is. One that is bound to just its GPUs starts again from its
    checkpoint where it can."""
    exact = job.placement.allocation == job.placement.gpus
    return job.may_resize_here and not (job.may_resize and exact)


def within_reach(job: Job, gpus: Iterable[GpuId]) -> list[GpuId]:
    """Those of these GPUs that it can take: in place only GPUs of its allocation."""
    return [gpu for gpu in gpus if not in_place(job) or gpu in job.placement.allocation]


def usable_gpus(snapshot: Snapshot, job: Job) -> GpuSet:
    """Those of its GPUs that it could start on."""
    node = snapshot.nodes.get(node_of(job.placement.gpus))
    return job.placement.gpus & {gpu.id for gpu in node.gpus if gpu.usable} if node else frozenset()


def kept_gpus(snapshot: Snapshot, job: Job, size: int) -> GpuSet:
    """So many of its GPUs, for it to go on with: first those that are usable, then those with the lowest
    numbers."""
    usable = usable_gpus(snapshot, job)
    return frozenset(sorted(job.placement.gpus, key=lambda gpu: (gpu not in usable, gpu))[:size])


def node_of(gpus: GpuSet) -> str:
    """The one node where these are."""
    return next(iter(gpus)).node


def resize(draft: Draft, job: Job, gpus: GpuSet, why: str) -> None:
    """The job goes on with these: in place, or it starts again there."""
    draft.put(job.id, Placement(gpus, job.placement.allocation if in_place(job) else gpus))
    before, after = len(job.placement.gpus), len(gpus)
    how = f"{'grows' if after > before else 'shrinks'} from {before} to {after} GPU{'s' * (after > 1)}"
    draft.say(job.id, Why(Reason.RESIZED, f"{how}: {why}"))


def waiting_jobs(snapshot: Snapshot, draft: Draft) -> list[Job]:
    """Jobs that could start and have no GPUs, the first to be helped first."""
    found = [job for job in snapshot.jobs.values() if job.may_start and not draft.of(job.id).gpus]
    return sorted(found, key=lambda job: (-job.priority_class, job.submit_time, job.id))


class Needs:
    """On which nodes jobs that wait may need GPUs."""

    def __init__(self, snapshot: Snapshot, draft: Draft, waiting: Iterable[Job]) -> None:
        self._snapshot, self._draft = snapshot, draft
        self._largest = max((len(node.gpus) for node in snapshot.nodes.values()), default=1)
        self._jobs = tuple({self.kind(job): job for job in waiting}.values())

    def kind(self, job: Job) -> object:
        """Equal for jobs that fit in the same places."""
        bound = job.placement.allocation or self._draft.of(job.id).allocation
        return (job.signature, job.priority_class, frozenset(gpu.node for gpu in bound))

    def share(self, job: Job) -> tuple[int, int]:
        """Over how many nodes it goes at least, and its GPUs on each."""
        count = job.request.nodes or -(-job.gpus // self._largest)
        return count, -(-job.gpus // count)

    def may_use(self, job: Job, node: Node) -> bool:
        """Whether the job could have its GPUs there, if they were free."""
        bound = job.placement.allocation or self._draft.of(job.id).allocation
        if bound and all(gpu.node != node.name for gpu in bound):
            return False
        share = self.share(job)[1]
        return sum(gpu.usable for gpu in node.gpus) >= share and accepts(node, job, share)

    def at(self, name: str) -> bool:
        """Whether one of them could use GPUs of this node."""
        return any(self.may_use(job, self._snapshot.nodes[name]) for job in self._jobs)


_Step = tuple[Job, int]
"""A job, and the size that it is left with."""


class Shrinking:
    """Jobs that grew give GPUs back within one plan, for jobs that wait (SPEC 1.6): those that grew last
    first, by halves, down to what they asked for. Nothing is taken where it helps no job."""

    def __init__(self, snapshot: Snapshot, draft: Draft, record: Record) -> None:
        self._snapshot, self._draft, self._record = snapshot, draft, record
        self._sizes = {
            job.id: len(job.placement.gpus)
            for job in snapshot.jobs.values()
            if may_resize(draft, job) and len(job.placement.gpus) > job.request.size.wanted
        }
        """Of jobs that grew, as things stand."""
        self._for: dict[JobId, JobId] = {}

    def help(self, waiting: Sequence[Job], needs: Needs) -> set[JobId]:
        """Make room for as many of these as that is possible for, in their order. Returns who shrinks."""
        if self._sizes and waiting:
            free = {name: self._draft.free(self._snapshot).count_on(name) for name in self._snapshot.nodes}
            in_vain: set[object] = set()
            for job in waiting:
                kind = needs.kind(job)
                if kind not in in_vain and not self._help(job, needs, free):
                    in_vain.add(kind)
        for job_id, other in self._for.items():
            job = self._snapshot.jobs[job_id]
            gpus = kept_gpus(self._snapshot, job, self._sizes[job_id])
            resize(self._draft, job, gpus, f"job {other} waits for GPUs")
            self.note(job, len(gpus))
        return set(self._for)

    def note(self, job: Job, size: int) -> None:
        """It has this size from now on."""
        entry = self._record.grown.get(job.id)
        if size <= job.request.size.wanted or entry is None:
            self._record.grown.pop(job.id, None)
        else:
            self._record.grown[job.id] = (entry[0], min(entry[1], size // 2))

    def _help(self, job: Job, needs: Needs, free: dict[str, int]) -> bool:
        """Whether the job has room now."""
        count, share = needs.share(job)
        options: list[tuple[tuple[object, ...], str, list[_Step]]] = []
        for name, there in free.items():
            if not needs.may_use(job, self._snapshot.nodes[name]):
                continue
            steps = self._steps(name, share - there)
            if steps is not None:
                grown_at = max((self._grown_at(victim.id) for victim, _ in steps), default=0.0)
                options.append(((bool(steps), -grown_at, name), name, steps))
        if len(options) < count:
            return False
        for _, name, steps in sorted(options, key=lambda option: option[0])[:count]:
            for victim, size in steps:
                free[name] += self._freed(victim, self._sizes[victim.id], size)
                self._sizes[victim.id] = size
                self._for[victim.id] = job.id
            free[name] -= share
        return True

    def _steps(self, name: str, missing: int) -> list[_Step] | None:
        """Which jobs of this node shrink, so that so many GPUs more are free. None: not enough can."""
        jobs = [self._snapshot.jobs[job_id] for job_id in self._sizes]
        here = [job for job in jobs if node_of(job.placement.gpus) == name]
        steps: list[_Step] = []
        for job in sorted(here, key=lambda job: (-self._grown_at(job.id), -job.id)):
            size = now = self._sizes[job.id]
            while missing > 0 and size // 2 >= job.request.size.wanted:
                missing -= self._freed(job, size, size // 2)
                size //= 2
            if self._freed(job, now, size):
                steps.append((job, size))
        return steps if missing <= 0 else None

    def _freed(self, job: Job, size: int, after: int) -> int:
        """How many GPUs others can have when it shrinks from one size to another."""
        usable = len(usable_gpus(self._snapshot, job))
        return min(size, usable) - min(after, usable)

    def _grown_at(self, job_id: JobId) -> float:
        return self._record.grown.get(job_id, (0.0, 0))[0]
