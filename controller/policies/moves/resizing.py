# SPDX-License-Identifier: GPL-2.0-or-later
"""What growing and shrinking both look at: jobs that may change their size, those that wait for GPUs, and
what is remembered from plan to plan."""

from __future__ import annotations

from collections.abc import Iterable
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
    words = f"{_words(len(job.placement.gpus), len(gpus))}: {why}"
    draft.say(job.id, Why(Reason.RESIZED, words))


def _words(before: int, after: int) -> str:
    return f"{'grows' if after > before else 'shrinks'} from {before} to {after} GPU{'s' * (after > 1)}"


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
