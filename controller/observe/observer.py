# SPDX-License-Identifier: GPL-2.0-or-later
"""The one place that compares what is seen with what was known, and says what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from types import MappingProxyType
from typing import TypeAlias

from controller.model import (
    ALL_CHANGED,
    UNPROFILED,
    Changes,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Node,
    Profile,
    Request,
    Snapshot,
    Solution,
    Target,
    Usage,
)
from controller.nodes.port import NodeJob, NodeSample
from controller.observe.derive import InFlight, make_job, make_node, make_profile
from controller.observe.memory import Memory
from controller.observe.node_cache import NodeCache, Sample
from controller.observe.slurm_cache import SlurmCache
from controller.slurm.port import ClusterView, JobState, SlurmJob

RESYNC_SECONDS = 300.0
"""So often everything is said to have changed: what was missed for whatever reason is found then."""

Requests: TypeAlias = Callable[[SlurmJob], Request | None]


class Observer:
    """Takes views and samples, keeps what they said last, and makes snapshots."""

    def __init__(self, memory: Memory, requests: Requests, priority_class: Callable[[str], int]) -> None:
        """`requests`: the parsed request of a job, or None where it makes no sense; the job is left out
        then."""
        self.slurm, self.nodes = SlurmCache(), NodeCache()
        self.priority_class = priority_class
        self._memory, self._requests = memory, requests
        self._made_nodes: dict[str, Node] = {}
        self._jobs: dict[JobId, Job] = {}
        self._usage: dict[JobId, Usage] = {}
        self._profiles: dict[JobId, Profile] = {}
        self._in_flight: frozenset[JobId] = frozenset()
        self._timers: list[tuple[float, JobId]] = []
        """When what is held back may be tried again."""
        self._pending: dict[JobId, Target] = {}
        """Targets of the last plans that are not observed yet."""
        self._holders: dict[GpuId, set[JobId]] = {}
        self._on: dict[JobId, GpuSet] = {}
        self._solutions: dict[str, Solution] = {}
        self._resync_at = float("-inf")

    def expect(self, targets: Mapping[JobId, Target]) -> None:
        """The plan wants these: their jobs count as changed until they are as wanted."""
        self._pending.update(targets)

    def resync(self) -> None:
        """Say with the next snapshot that everything changed."""
        self._resync_at = float("-inf")

    def look(
        self,
        view: ClusterView,
        samples: Mapping[str, Sample],
        in_flight: Mapping[JobId, InFlight],
        now: float,
        solved: Mapping[str, Solution] = MappingProxyType({}),
    ) -> Snapshot:
        """The snapshot at `now`. Cost: what changed, and a comparison of what the adapters answered.

        Args:
            solved: solutions that came since the look before, by the names of their problems.
        """
        jobs, nodes = self.slurm.take(view)
        on_nodes, answering = self.nodes.take(samples)
        self.nodes.keep(self.slurm.nodes)
        everything = now >= self._resync_at
        if everything:
            self._resync_at = now + RESYNC_SECONDS
            jobs |= self.slurm.jobs.keys() | self._jobs.keys()
            nodes |= self.slurm.nodes.keys()
        jobs |= on_nodes | self._in_flight | in_flight.keys() | self._memory.take_changed() | self._due(now)
        jobs |= self._pending.keys()
        self._in_flight = frozenset(in_flight)
        gone_usage = {job_id: self._usage[job_id] for job_id in jobs if job_id in self._usage}
        changed = {job_id for job_id in jobs if self._take(job_id, in_flight.get(job_id), now)}
        changed |= self._share(changed)
        self._measure(samples, changed)
        changed_nodes = self._take_nodes(nodes | answering)
        self._solutions.update(solved)
        usage = {**{i: u for i, u in gone_usage.items() if i not in self._usage}, **self._usage}
        return Snapshot(
            time=now,
            nodes=dict(self._made_nodes),
            jobs=dict(self._jobs),
            usage=usage,
            profiles=dict(self._profiles),
            solutions=dict(self._solutions),
            changed=ALL_CHANGED
            if everything
            else Changes(frozenset(changed), frozenset(changed_nodes), frozenset(solved)),
        )

    # -- jobs -----------------------------------------------------------------------------------------

    def _take(self, job_id: JobId, flight: InFlight | None, now: float) -> bool:
        """Look at one job anew. Whether it is not as it was, or not as the plan wants it."""
        before = self._jobs.get(job_id)
        job = self._make(job_id, flight, now)
        usage = self._memory.of(job_id).usage
        target = self._pending.get(job_id)
        if job is None:
            self._pending.pop(job_id, None)
            self._profiles.pop(job_id, None)
            self._usage.pop(job_id, None)
            self._jobs.pop(job_id, None)
            return before is not None
        if target is not None and _as_wanted(job, target):
            del self._pending[job_id]
        if job.held_until is not None:
            heappush(self._timers, (job.held_until, job_id))
        until = self._memory.of(job_id).unsuspendable_until
        if until is not None and until > now:
            heappush(self._timers, (until, job_id))
        if before is not None:
            # Who is on the same GPUs is noted apart.
            shares_with = (
                before.placement.shares_with if before.placement.gpus == job.placement.gpus else frozenset()
            )
            job = replace(job, placement=replace(job.placement, shares_with=shares_with))
        same = before == job and self._usage.get(job_id) == usage
        self._jobs[job_id] = job
        self._usage[job_id] = usage
        return not same or target is not None

    def _make(self, job_id: JobId, flight: InFlight | None, now: float) -> Job | None:
        seen = self.slurm.jobs.get(job_id)
        if seen is None or seen.state is JobState.ENDED or seen.exclusive_gpus:
            return None
        request = self._requests(seen)
        if request is None:
            return None
        memory = self._memory.of(job_id)
        return make_job(seen, request, self.nodes.samples, memory, flight, self.priority_class, now)

    def _due(self, now: float) -> set[JobId]:
        due: set[JobId] = set()
        while self._timers and self._timers[0][0] <= now:
            due.add(heappop(self._timers)[1])
        return due

    def _share(self, changed: set[JobId]) -> set[JobId]:
        """Note who is on the same GPUs; returns further jobs for which that changed."""
        touched: set[JobId] = set()
        for job_id in changed:
            job = self._jobs.get(job_id)
            on = frozenset[GpuId]() if job is None or job.leaving else job.placement.gpus
            before = self._on.pop(job_id, frozenset())
            if on:
                self._on[job_id] = on
            for gpu in before - on:
                self._holders[gpu].discard(job_id)
            for gpu in on - before:
                self._holders.setdefault(gpu, set()).add(job_id)
            touched.update(*(self._holders[gpu] for gpu in before | on))
        further: set[JobId] = set()
        for job_id in touched:
            job = self._jobs[job_id]
            others = frozenset().union(*(self._holders[gpu] for gpu in self._on[job_id])) - {job_id}
            if others != job.placement.shares_with:
                placement = replace(job.placement, shares_with=others)
                self._jobs[job_id] = replace(job, placement=placement)
                further.add(job_id)
        return further

    # -- nodes and figures ----------------------------------------------------------------------------

    def _take_nodes(self, names: set[str]) -> set[str]:
        """Make these nodes anew; returns those that offer other GPUs than before."""
        changed: set[str] = set()
        for name in names:
            seen, before = self.slurm.nodes.get(name), self._made_nodes.pop(name, None)
            node = None
            if seen is not None:
                node = make_node(seen, self.nodes.samples.get(name), self.slurm.jobs.keys())
                self._made_nodes[name] = node
            if _offer(node) != _offer(before):
                changed.add(name)
        return changed

    def _measure(self, samples: Mapping[str, Sample], changed: set[JobId]) -> None:
        """Bring the profiles of jobs on these nodes up to date; adds to `changed` those that differ."""
        seen: dict[JobId, list[NodeJob]] = {}
        peaks: dict[JobId, int] = {}
        for sample in samples.values():
            if isinstance(sample, NodeSample):
                for job_id, on_node in sample.jobs.items():
                    seen.setdefault(job_id, []).append(on_node)
                for job_id, held_bytes in sample.held_bytes().items():
                    peaks[job_id] = max(peaks.get(job_id, 0), held_bytes)
        for job_id in seen.keys() & self._jobs.keys():
            known = self._profiles.get(job_id, UNPROFILED)
            profile = make_profile(known, seen[job_id], peaks.get(job_id, 0))
            if profile is not known:
                self._profiles[job_id] = profile
                changed.add(job_id)


def _as_wanted(job: Job, target: Target) -> bool:
    """Whether a target is observed. A waiting job that is promised an allocation has it in `promised`."""
    wanted = target.placement
    if wanted.gpus:
        return not job.switching and job.placement.gpus == wanted.gpus
    return not job.placement.gpus and (not wanted.allocation or job.allocation == wanted.allocation)


def _offer(node: Node | None) -> tuple[object, ...] | None:
    """What placement depends on."""
    if node is None:
        return None
    gpus = tuple((gpu.id, gpu.model, gpu.shards, gpu.usable) for gpu in node.gpus)
    return (gpus, node.available, node.cpus, node.memory_bytes, node.memory_free_bytes, node.switch)
