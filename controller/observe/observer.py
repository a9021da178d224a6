# SPDX-License-Identifier: GPL-2.0-or-later
"""The one place that compares what is seen with what was known, and says what changed."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from types import MappingProxyType

from controller.cluster.port import ClusterView, JobState
from controller.model import (
    ALL_CHANGED,
    IN_HOST_MEMORY,
    Changes,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Node,
    Phase,
    Share,
    Snapshot,
    Solution,
    Usage,
)
from controller.model.index import Index
from controller.model.timers import Timers
from controller.model.value import empty
from controller.nodes.port import NodeSample
from controller.nodes.protocol import NodeJob
from controller.observe.identities import Identities
from controller.observe.jobs import InFlight, Seen, changes_at, make_job
from controller.observe.measured import Measured
from controller.observe.memory import JobMemories, group
from controller.observe.node_cache import Differences, NodeCache, Sample
from controller.observe.nodes import make_node, offer, trespassers
from controller.observe.requests import RequestReader
from controller.observe.slurm_cache import SlurmCache


class Observer:
    """Keeps what views and samples said last, and makes snapshots of it: `take`, then `snapshot`."""

    def __init__(
        self,
        memory: JobMemories,
        requests: RequestReader,
        identities: Identities,
        priority_class: Callable[[str], int],
    ) -> None:
        """`priority_class`: that of a QOS."""
        self.slurm, self.nodes = SlurmCache(identities), NodeCache()
        self.priority_class = priority_class
        self.save_every_seconds = 0.0
        """`suspend.save_every_seconds`."""
        self.shares: Mapping[str, Share] = empty()
        self.looked_at: set[JobId] = set()
        """Jobs of which anything is new since the snapshot before, also what snapshots do not show."""
        self.trespassers: dict[str, Mapping[int, JobId]] = {}
        """Jobs that have memory where they should have none, by node and index of the GPU."""
        self._memory, self._requests = memory, requests
        self._made_nodes: dict[str, Node] = {}
        self._jobs: dict[JobId, Job] = {}
        self._usage: dict[JobId, Usage] = {}
        self._solutions: dict[str, Solution] = {}
        self.jobs: Mapping[JobId, Job] = MappingProxyType(self._jobs)
        """As they are now: between `take` and `snapshot` without whom they share GPUs with."""
        self.made_nodes: Mapping[str, Node] = MappingProxyType(self._made_nodes)
        """As they are now."""
        self.measured = Measured(self._jobs, self._usage, self._made_nodes, self.nodes.samples)
        self._gone: set[JobId] = set()
        self._flights: Mapping[JobId, InFlight] = {}
        self._timers = Timers()
        self._named: Set[JobId] = frozenset()
        self._on = Index[JobId, GpuId]()
        """Where jobs are that share their GPUs with others on them."""
        self.bad: dict[str, GpuSet] = {}
        """GPUs that are not healthy, of nodes that have any and say so."""
        self._everything = True
        self._now = 0.0
        self._answered: Set[str] = frozenset()
        self._node_changes = Differences(set(), set(), set(), set())
        self._changed: set[JobId] = set()
        self._changed_nodes: set[str] = set()

    def expect(self, job_ids: Set[JobId]) -> None:
        """A plan names these: they count as changed in the next snapshot, whatever became of it."""
        self._named = job_ids

    def resync(self) -> None:
        """Say with the next snapshot that everything changed."""
        self._everything = True

    def wake(self) -> float:
        """When a job changes by itself, if nothing happens before."""
        return self._timers.first()

    def take(
        self,
        view: ClusterView,
        samples: Mapping[str, Sample],
        in_flight: Mapping[JobId, InFlight],
        now: float,
    ) -> None:
        """Take over what the adapters answered. Cost: what changed, and the comparison of the answers."""
        slurm_jobs, slurm_nodes = self.slurm.take(view)
        node_changes = self.nodes.take(samples)
        removed = {name for name in slurm_nodes if name not in self.slurm.nodes}
        if removed:
            self.nodes.keep(self.slurm.nodes)
        jobs = slurm_jobs | node_changes.jobs | self._named
        while self._timers.first() <= now:
            jobs.add(self._timers.pop())
        jobs |= self._flights.keys() | in_flight.keys()
        for name in node_changes.turned | removed:
            jobs |= self.slurm.on(name)
        nodes = slurm_nodes | node_changes.gpus
        for job_id in slurm_jobs:
            nodes |= self.nodes.showing(job_id)
        if self._everything:
            jobs |= {*self.slurm.jobs, *self.jobs, *self._memory.known()}
            nodes |= self.slurm.nodes.keys()
        self._now, self._flights = now, in_flight
        self._answered, self._node_changes = samples.keys(), node_changes
        for job_id in self._gone:
            if job_id not in self._jobs:
                del self._usage[job_id]
        self.looked_at, self._changed, self._gone = set(), set(), set()
        self._changed_nodes = {name for name in nodes if self._look_at_node(name)}
        for name in self._changed_nodes:
            jobs |= self.slurm.on(name)
        self._look(jobs | self._memory.take_changed())
        self._changed |= self._named & self.jobs.keys()
        self._named = frozenset()

    def snapshot(self, solved: Mapping[str, Solution] = empty()) -> Snapshot:
        """The snapshot at the time of the last `take`, with what memory has learned since. It holds until the
        next one: see `Snapshot.kept`.

        Args:
            solved: solutions since the snapshot before, by the names of their problems.
        """
        self._solutions.update(solved)
        self._look(self._memory.take_changed())
        self._note_sharing()
        looked_at = self._changed | self._node_changes.jobs
        nodes = self._node_changes.gpus | self._node_changes.grown
        profiles, steps = self.measured.follow(looked_at, nodes, self._answered, self._now)
        self._changed |= profiles
        self.looked_at |= profiles | steps
        changes = Changes(frozenset(self._changed), frozenset(self._changed_nodes), frozenset(solved))
        if self._everything:
            changes, self._everything = ALL_CHANGED, False
        return Snapshot(
            time=self._now,
            nodes=self.made_nodes,
            jobs=self.jobs,
            usage=MappingProxyType(self._usage),
            profiles=MappingProxyType(self.measured.profiles),
            rates=self.measured.rates.table,
            job_rates=self.measured.rate_meter.rates,
            costs=self.measured.costs.table,
            models=self.measured.models,
            shares=self.shares,
            solutions=MappingProxyType(self._solutions),
            changed=changes,
        )

    def _note_sharing(self) -> None:
        """Which jobs are on the same GPUs at the same time, after some have changed."""
        touched: set[JobId] = set()
        for job_id in self._changed:
            job = self.jobs.get(job_id)
            shares = job is not None and job.phase in _SHARING and not job.leaving
            on: GpuSet = job.placement.gpus if job is not None and shares else frozenset()
            before = self._on.of(job_id)
            if self._on.put(job_id, on):
                touched |= self._on.having_any(before | on) | {job_id}
        for job_id in touched & self.jobs.keys():
            others = frozenset(self._on.having_any(self._on.of(job_id))) - {job_id}
            if others != self.jobs[job_id].placement.shares_with:
                self._jobs[job_id] = _sharing(self.jobs[job_id], others)
                self._changed.add(job_id)

    # -- jobs -----------------------------------------------------------------------------------------

    def _look(self, job_ids: Iterable[JobId]) -> None:
        for job_id in job_ids:
            self.looked_at.add(job_id)
            before, seen = self.jobs.get(job_id), self._seen(job_id)
            if seen is None:
                self._timers.set(job_id, None)
                if before is not None:
                    self._changed.add(job_id)
                    self._gone.add(job_id)
                    self._memory.lift(before.user)
                    del self._jobs[job_id]
                if job_id not in self.slurm.jobs:
                    self.measured.forget(job_id)
                    self._requests.forget(job_id)
                continue
            job, usage = make_job(seen), seen.memory.usage
            if job.has_store and not seen.memory.has_store:
                self._memory.change(job_id).has_store = True  # it is looked at once more
            off = job.phase in IN_HOST_MEMORY and job.has_store and not job.switching
            if off and job.saves_off != seen.memory.saves_off:
                self._memory.change(job_id).saves_off = job.saves_off
            self._timers.set(job_id, changes_at(seen, job))
            if before is not None and before.placement.gpus == job.placement.gpus:
                # With whom it shares them is noted apart.
                job = _sharing(job, before.placement.shares_with)
            if before != job:
                self._jobs[job_id] = job
                self._changed.add(job_id)
            if self._usage.get(job_id) != usage:
                self._usage[job_id] = usage
                self._changed.add(job_id)

    def _seen(self, job_id: JobId) -> Seen | None:
        """What the job is made of. None: it is no Gandiva job, or over."""
        job = self.slurm.jobs.get(job_id)
        if job is None or job.state is JobState.ENDED or job.exclusive_gpus:
            return None
        request = self._requests.of(job)
        if request is None:
            return None
        return Seen(
            job=job,
            request=request,
            on_nodes={name: self.nodes.says(name, job_id) for name in job.nodes},
            prepared=self._prepared(job_id) if not job.nodes else frozenset(),
            bad=frozenset[GpuId]().union(*(self.bad.get(name, ()) for name in job.nodes)),
            memory=self._memory.of(job_id),
            flight=self._flights.get(job_id),
            limit=self._memory.limits.get(group(job)),
            method=self._requests.method(request),
            priority_class=self.priority_class(job.qos),
            save_every_seconds=self.save_every_seconds,
            now=self._now,
        )

    def _prepared(self, job_id: JobId) -> GpuSet:
        blocks = {name: self.nodes.says(name, job_id) for name in self.nodes.showing(job_id)}
        own = ((name, block.gpus) for name, block in blocks.items() if isinstance(block, NodeJob))
        return frozenset(GpuId(name, ordinal) for name, ordinals in own for ordinal in ordinals)

    # -- nodes ----------------------------------------------------------------------------------------

    def _look_at_node(self, name: str) -> bool:
        """Make it anew; whether it offers other GPUs than before."""
        seen, before = self.slurm.nodes.get(name), self.made_nodes.get(name)
        if seen is None:
            for by_node in (self._made_nodes, self.trespassers, self.bad):
                by_node.pop(name, None)
            return before is not None
        sample = self.nodes.samples.get(name)
        node = make_node(seen, sample, self.slurm.jobs)
        if isinstance(sample, NodeSample):  # else what the node said last stands
            known = self.trespassers.pop(name, {})
            bad = frozenset(gpu.id for gpu in node.gpus if not gpu.healthy)
            if bad and (found := trespassers(sample, self.slurm.jobs)):
                self.trespassers[name] = found
            for job_id in {*known.values(), *self.trespassers.get(name, {}).values()}:
                self._note_trespass(job_id)
            self.bad.pop(name, None)
            if bad:
                self.bad[name] = bad
        if node == before:
            return False
        self._made_nodes[name] = node
        return offer(node) != offer(before)

    def _note_trespass(self, job_id: JobId) -> None:
        there = any(job_id in jobs.values() for jobs in self.trespassers.values())
        if there != (self._memory.of(job_id).trespasses_since is not None):
            self._memory.change(job_id).trespasses_since = self._now if there else None


def _sharing(job: Job, others: frozenset[JobId]) -> Job:
    if job.placement.shares_with == others:
        return job
    return replace(job, placement=replace(job.placement, shares_with=others))


_SHARING = frozenset({Phase.STARTING, Phase.RESUMING, Phase.RUNNING, Phase.COMPLETING})
"""A job in another phase that keeps others from its GPUs does not share them."""
