# SPDX-License-Identifier: GPL-2.0-or-later
"""The nodes as their agents saw them last, and which jobs and nodes differ from the answer before."""

from collections.abc import Container, Mapping, Set
from operator import attrgetter
from typing import TypeAlias

from controller.errors import NodeError
from controller.model import JobId, value
from controller.model.index import Index
from controller.nodes.port import NodeSample
from controller.nodes.protocol import NodeJob, NodePhase

Sample: TypeAlias = NodeSample | NodeError
OnNode: TypeAlias = NodeJob | NodeError | None
"""What a node says of a job. None: it has no control block of it."""


@value
class Differences:
    """What is not as in the answers before."""

    jobs: set[JobId]
    """Jobs whose control blocks differ."""
    gpus: set[str]
    """Nodes whose GPUs differ."""
    grown: set[str]
    """Nodes with a GPU that has more memory in use than ever since its processes are those that it has."""
    turned: set[str]
    """Nodes that answer again, or not any more."""


class NodeCache:
    """Samples by node."""

    def __init__(self) -> None:
        self.samples: dict[str, Sample] = {}
        """The last of each node."""
        self._facts: dict[str, tuple[object, ...]] = {}
        self._most: dict[str, list[int]] = {}
        """The most memory that was in use on each GPU."""
        self._shown = Index[str, JobId]()
        """Jobs with a control block or memory on each node."""

    def showing(self, job_id: JobId) -> Set[str]:
        """Nodes that show a control block or memory of this job."""
        return self._shown.having(job_id)

    def says(self, node: str, job_id: JobId) -> OnNode:
        """What a node said last of a job."""
        sample = self.samples.get(node) or NodeError(node, "unreachable", "not asked yet")
        return sample.jobs.get(job_id) if isinstance(sample, NodeSample) else sample

    def lives(self, node: str, job_id: JobId) -> bool:
        """Whether the node said last that something of the job runs there."""
        sample = self.samples.get(node)
        return isinstance(sample, NodeSample) and sample.lives(job_id)

    def take(self, samples: Mapping[str, Sample]) -> Differences:
        """Take over samples. What grows as jobs run (steps, utilisation) is no difference."""
        found = Differences(set(), set(), set(), set())
        for name, sample in samples.items():
            before = self.samples.get(name)
            self.samples[name] = sample
            if before is sample:
                continue
            known, now = _blocks(before), _blocks(sample)
            jobs = known.keys() ^ now.keys()
            jobs |= {job_id for job_id in known.keys() & now.keys() if not _same(known[job_id], now[job_id])}
            found.jobs.update(jobs)
            facts, used, most = gpu_facts(sample), _used(sample), self._most.get(name, [])
            if before is None or isinstance(sample, NodeError) is not isinstance(before, NodeError):
                found.turned.add(name)
            if name in found.turned or facts != self._facts.get(name):
                found.gpus.add(name)
                self._facts[name], self._most[name] = facts, used
            elif any(a > b for a, b in zip(used, most, strict=True)):
                found.grown.add(name)
                self._most[name] = [max(pair) for pair in zip(most, used, strict=True)]
            if jobs or name in found.gpus:
                self._shown.put(name, _shown(sample))
        return found

    def keep(self, names: Container[str]) -> None:
        """Forget nodes that Slurm does not have any more."""
        for name in [name for name in self.samples if name not in names]:
            del self.samples[name]
            self._facts.pop(name, None)
            self._most.pop(name, None)
            self._shown.put(name)


def _blocks(sample: Sample | None) -> Mapping[JobId, NodeJob]:
    return sample.jobs if isinstance(sample, NodeSample) else {}


def _used(sample: Sample) -> list[int]:
    return [gpu.memory_used_bytes for gpu in sample.gpus] if isinstance(sample, NodeSample) else []


_STATE = attrgetter("phase", "gpus", "movable", "resizable", "has_store", "saves_yielded", "trespasses")


def _same(a: NodeJob, b: NodeJob) -> bool:
    """Whether a job's phase, place and abilities are the same."""
    return a is b or bool(_STATE(a) == _STATE(b))


def _shown(sample: Sample) -> set[JobId]:
    if not isinstance(sample, NodeSample):
        return set()
    on_gpus = {p.job_id for gpu in sample.gpus for p in gpu.processes if p.job_id is not None}
    return {*sample.jobs, *on_gpus}


def gpu_facts(sample: Sample) -> tuple[object, ...]:
    """What the model's GPUs follow from: health, whose memory is on them, how much of it was left there."""
    if not isinstance(sample, NodeSample):
        return (str(sample),)
    yielded = {job_id for job_id, job in sample.jobs.items() if job.phase is NodePhase.YIELDED}
    gpus: list[object] = []
    for gpu in sample.gpus:
        held = [p for p in gpu.processes if p.memory_bytes]
        owners = sorted([(p.job_id or -1, p.memory_bytes * (p.job_id in yielded)) for p in held])
        gpus.append((gpu.index, gpu.model, gpu.memory_bytes, gpu.healthy, gpu.reason, owners))
    trespasses = [(job.job_id, job.trespasses) for job in sample.jobs.values() if job.trespasses]
    return (gpus, sorted(trespasses))
