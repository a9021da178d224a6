# SPDX-License-Identifier: GPL-2.0-or-later
"""Snapshots made from the one before, for ports that say what changed (`ClusterView.partial`).

The outcome is that of `build_snapshot`, except that jobs which only ran on are not made anew
(`Job.accrues_since`), and that the snapshot says what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace

from controller.cluster.port import ClusterView, JobState, SlurmJob, SlurmNode
from controller.errors import NodeError
from controller.layered import Version, versioned
from controller.memory import Memory
from controller.model import Changes, Job, JobId, Node, Request, Snapshot
from controller.nodes.port import NodeSample
from controller.observation import InFlight, in_transition, make_job, make_node


class Scene:
    """What was seen last of every job and node."""

    def __init__(
        self,
        memory: Memory,
        requests: Callable[[SlurmJob], Request | None],
        priority_class: Callable[[str], int],
    ) -> None:
        self._memory = memory
        self._requests = requests
        self._priority_class = priority_class
        self._slurm_jobs: dict[JobId, SlurmJob] = {}
        self._slurm_nodes: dict[str, SlurmNode] = {}
        self._samples: Version[str, NodeSample | NodeError] = versioned()
        self._jobs: Version[JobId, Job] = versioned()
        self._nodes: Mapping[str, Node] = {}
        self._in_flight: frozenset[JobId] = frozenset()
        self._serial = 0

    @property
    def known(self) -> Set[JobId]:
        """Jobs that Slurm still knows."""
        return self._slurm_jobs.keys()

    def alive(self, job_id: JobId) -> bool:
        """Whether it has not ended."""
        job = self._slurm_jobs.get(job_id)
        return job is not None and job.state is not JobState.ENDED

    def update(
        self,
        view: ClusterView,
        samples: Mapping[str, NodeSample | NodeError],
        in_flight: Mapping[JobId, InFlight],
        now: float,
        *,
        accrued: bool,
    ) -> Snapshot:
        """The snapshot at `now`. `accrued`: bring the times of all running jobs up to date, for a policy
        that does not read `accrues_since`."""
        for job in view.jobs:
            self._slurm_jobs[job.id] = job
        for job_id in view.gone:
            self._slurm_jobs.pop(job_id, None)
        touched = {job.id for job in view.jobs} | view.gone | self._in_flight | frozenset(in_flight)
        nodes = self._see_nodes(view, samples)
        made: dict[JobId, Job] = {}
        over: set[JobId] = set()
        for job_id in touched:
            seen = self._slurm_jobs.get(job_id)
            job_now = None if seen is None else self._job(seen, in_flight.get(job_id), now)
            if job_now is None:
                over.add(job_id)
            else:
                made[job_id] = job_now
        if accrued:
            for job_id, known in self._jobs.items():
                if known.accrues_since is not None and job_id not in touched:
                    made[job_id] = replace(
                        known,
                        run_seconds=known.run_seconds_at(now),
                        gpu_seconds=known.gpu_seconds_at(now),
                        accrues_since=now,
                    )
        jobs = self._jobs = self._jobs.with_changes(made, over)
        self._in_flight = frozenset(in_flight)
        self._serial += 1
        return Snapshot(
            now,
            self._nodes,
            jobs,
            busy=frozenset(job_id for job_id in in_flight if job_id in jobs),
            serial=self._serial,
            changes=Changes(self._serial - 1, frozenset(touched), nodes),
        )

    def _see_nodes(self, view: ClusterView, samples: Mapping[str, NodeSample | NodeError]) -> frozenset[str]:
        """Take over nodes and samples; returns those whose offer of GPUs may have changed."""
        changed = {node.name for node in view.nodes}
        changed.update(
            name
            for name, sample in samples.items()
            if type(sample) is not type(self._samples.get(name)) and name in self._slurm_nodes
        )
        if view.nodes:
            self._slurm_nodes = {**self._slurm_nodes, **{node.name: node for node in view.nodes}}
        if samples:
            self._samples = self._samples.with_changes(samples)
        if view.nodes or samples:
            self._nodes = _Nodes(self._slurm_nodes, self._samples, self._slurm_jobs)
        return frozenset(changed)

    def _job(self, seen: SlurmJob, flight: InFlight | None, now: float) -> Job | None:
        if seen.state is JobState.ENDED or seen.exclusive_gpus:
            return None
        request = self._requests(seen)
        if request is None:
            return None
        memory = self._memory[seen.id]
        since = None if memory.running_since is None else now
        job = make_job(seen, request, self._samples, memory, self._priority_class, now, since)
        return job if flight is None else in_transition(job, flight)


class _Nodes(Mapping[str, Node]):
    """Nodes of one snapshot, made when somebody looks at them: most snapshots' are looked at by nobody.
    The parts are never changed after."""

    def __init__(
        self,
        described: Mapping[str, SlurmNode],
        samples: Mapping[str, NodeSample | NodeError],
        present: Mapping[JobId, SlurmJob],
    ) -> None:
        self._described = described
        self._samples = samples
        self._present = present
        self._made: dict[str, Node] = {}

    def __getitem__(self, name: str) -> Node:
        node = self._made.get(name)
        if node is None:
            node = make_node(self._described[name], self._samples.get(name), self._present)
            self._made[name] = node
        return node

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def __contains__(self, name: object) -> bool:
        return name in self._described
