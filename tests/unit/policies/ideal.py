# SPDX-License-Identifier: GPL-2.0-or-later
"""An ideal cluster: plans take effect at once, jobs run for their durations, preempted jobs requeue or stay
bound.

Each plan is compared with that of a second policy that sees the snapshot and the memory for the first time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from controller.model import (
    ALL_CHANGED,
    NOWHERE,
    Changes,
    Configuration,
    Costs,
    Gpu,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Memory,
    Node,
    Note,
    Phase,
    Placement,
    Plan,
    Profile,
    Rate,
    Reason,
    Request,
    Size,
    Snapshot,
    Solution,
    StateAt,
    Usage,
    gpu_type,
    rate_key,
    reason_of,
)
from controller.policies.allocations.worker import answers
from controller.policies.protocol import Policy
from controller.solver import ImmediateSolver

GIB = 1024**3
MEASURED_SECONDS = 20.0
"""After so long in one configuration a job's rate is known."""


def make_node(name: str, gpus: int, model: str = "a100", shards: int = 64, **changes: Any) -> Node:
    cards = tuple(
        Gpu(id=GpuId(name, i), model=model, memory_bytes=80 * GIB, shards=shards) for i in range(gpus)
    )
    return replace(Node(name=name, gpus=cards), **changes)


def cluster(nodes: int, gpus: int) -> list[Node]:
    return [make_node(f"n{i + 1}", gpus) for i in range(nodes)]


def make_job(
    number: int,
    gpus: int = 1,
    duration: float | None = None,
    *,
    submit: float = 0.0,
    weight: float = 1.0,
    nodes: int | None = None,
    model: str | None = None,
    **changes: Any,
) -> Job:
    request = Request(
        size=Size.exactly(gpus), nodes=nodes, weight=weight, duration_seconds=duration, model=model
    )
    job = Job(
        id=JobId(number),
        user="alice",
        request=request,
        submit_time=submit,
        phase=Phase.QUEUED,
        may_start=True,
        may_move=True,
    )
    return replace(job, **changes)


def running(job: Job, gpus: GpuSet) -> Job:
    """On these GPUs."""
    placement = Placement(gpus, job.placement.allocation or gpus)
    return replace(
        job,
        phase=Phase.RUNNING,
        placement=placement,
        last=gpus,
        promised=frozenset(),
        promised_size=0,
        may_start=False,
        may_stop=True,
    )


def suspended(job: Job, gpus: GpuSet) -> Job:
    """Bound to these GPUs, and off them."""
    placement = Placement(frozenset(), gpus)
    return replace(job, phase=Phase.SUSPENDED, placement=placement, last=gpus, may_start=True, may_stop=False)


def gpu_set(*names: str) -> GpuSet:
    """`gpu_set("n1:0", "n1:1")`."""
    return frozenset(GpuId(name.split(":")[0], int(name.split(":")[1])) for name in names)


@dataclass
class Timeline:
    """Everything that happened."""

    runs: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    preemptions: int = 0
    plans: int = 0
    running: list[tuple[float, frozenset[int]]] = field(default_factory=list)

    def jct(self, jobs: Iterable[Job]) -> list[float]:
        """Time from submission to the end."""
        return [self.ends[int(job.id)] - job.submit_time for job in jobs]


class Ideal:
    """Runs jobs under a policy."""

    def __init__(
        self,
        make: Callable[[], Policy],
        nodes: Iterable[Node],
        jobs: Iterable[Job],
        *,
        bound: bool = False,
        check: bool = True,
        keep_seconds: float = 0.0,
    ) -> None:
        """`bound`: stopped jobs stay bound to their GPUs, as with suspend; else they are as new. `check`:
        compare each plan with one made from nothing. `keep_seconds`: a job keeps its GPUs so long."""
        self.make, self.policy, self.bound, self.check = make, make(), bound, check
        self.keep_seconds = keep_seconds
        self.nodes = {node.name: node for node in nodes}
        self.arrivals = sorted(jobs, key=lambda j: (j.submit_time, j.id))
        self.changed: set[JobId] = set()
        self.changed_nodes: set[str] = set()
        self.jobs: dict[JobId, Job] = {}
        self.usage: dict[JobId, Usage] = {}
        self.profiles: dict[JobId, Profile] = {}
        self.models: dict[str, Profile] = {}
        self.speed: Callable[[Job, list[Job]], float] | None = None
        """Samples/s of a job beside these. None: no rates are measured."""
        self.rates: dict[str, dict[Configuration, Rate]] = {}
        self.costs: dict[str, Costs] = {}
        """What operations take, by model."""
        self.configured: dict[JobId, tuple[Placement, float]] = {}
        """Since when each job is where it is."""
        self.migration_seconds = 0.0
        """So long jobs are off GPUs when they migrate."""
        self.back: dict[JobId, float] = {}
        """When those that migrate can start again."""
        self.solver, self.solutions = ImmediateSolver(answers), dict[str, Solution]()
        self.solved: set[str] = set()
        self.notes: dict[JobId, Note] = {}
        self.common: dict[str, Any] = {}
        self.reasons: dict[JobId, str] = {}
        self.own_words = False
        """A site's own part has a say: its sentences are plain text."""
        self.stores: set[JobId] = set()
        """Jobs that can start from a checkpoint."""
        self.now, self.first = 0.0, True
        self.timeline = Timeline()
        self.ends: dict[JobId, float] = {}
        self.on_plan: Callable[[Snapshot, Plan], None] = lambda _snapshot, _plan: None

    def run(self, until: float = math.inf) -> Timeline:
        """From event to event, to the end of all jobs or until then."""
        while True:
            self.events()
            if not self.arrivals and not self.jobs:
                return self.timeline
            wake = self.settle()
            moments = [j.submit_time for j in self.arrivals[:1]] + [
                *self.ends.values(),
                *self.back.values(),
                wake,
            ]
            following = max(self.now, min(moments))
            if following >= until or following == math.inf:
                self.now = min(until, following)
                return self.timeline
            self.now = following

    def step(self) -> Plan:
        """What happens by now, and the first plan for it; all that follow are carried out too."""
        self.events()
        plan = self.plan()
        self.settle()
        return plan

    def slices(self, count: int, seconds: float = 60.0) -> list[set[int]]:
        """Which jobs run in each of so many slices."""
        history = []
        for _ in range(count):
            self.step()
            history.append(self.running())
            self.now += seconds
        return history

    def running(self) -> set[int]:
        """Jobs on GPUs."""
        return {int(job.id) for job in self.jobs.values() if job.placement.gpus}

    # -- what happens -----------------------------------------------------------------------------------

    def add(self, *jobs: Job) -> None:
        """They come now."""
        for job in jobs:
            if not self.bound:
                job = replace(job, starts_anywhere=True)
            if job.starts_anywhere:
                self.stores.add(job.id)
            self.jobs[job.id] = job
            self.changed.add(job.id)
            if job.placement.gpus:
                self.usage[job.id] = Usage().started(
                    self.now, job.gpus, gpu_type(job.placement.gpus, self.nodes)
                )

    def remove(self, *numbers: int) -> None:
        """They end now."""
        for job_id in map(JobId, numbers):
            if self.jobs[job_id].placement.gpus:
                self.put(job_id, NOWHERE)
            self.timeline.ends[int(job_id)] = self.now
            self.ends.pop(job_id, None)
            del self.jobs[job_id]
            self.changed |= {job_id, *self.part(job_id)}

    def change(self, number: int, **changes: Any) -> None:
        """A job is observed to be otherwise."""
        self.jobs[JobId(number)] = replace(self.jobs[JobId(number)], **changes)
        self.changed.add(JobId(number))

    def change_node(self, node: Node) -> None:
        """A node is observed to be otherwise."""
        self.nodes[node.name] = node
        self.changed_nodes.add(node.name)

    def restart(self) -> None:
        """Another controller takes over."""
        self.policy, self.first = self.make(), True

    def events(self) -> None:
        """Ends and arrivals up to now."""
        self.remove(*[int(i) for i, end in self.ends.items() if end <= self.now + 1e-9])
        for job_id in [i for i, at in self.back.items() if at <= self.now + 1e-9]:
            del self.back[job_id]
            self.change(job_id, may_start=True)
        while self.arrivals and self.arrivals[0].submit_time <= self.now:
            self.add(self.arrivals.pop(0))

    def part(self, gone: JobId) -> list[JobId]:
        """Jobs that shared GPUs with this one; they have them without it."""
        others = [job for job in self.jobs.values() if gone in job.placement.shares_with]
        for job in others:
            placement = replace(job.placement, shares_with=job.placement.shares_with - {gone})
            self.jobs[job.id] = replace(job, placement=placement)
        return [job.id for job in others]

    def snapshot(self, changed: Iterable[JobId]) -> Snapshot:
        return Snapshot(
            time=self.now,
            nodes=dict(self.nodes),
            jobs=dict(self.jobs),
            usage=dict(self.usage),
            profiles=dict(self.profiles),
            models=dict(self.models),
            job_rates=self.job_rates(),
            rates={model: dict(table) for model, table in self.rates.items()},
            costs=dict(self.costs),
            solutions=dict(self.solutions),
            changed=ALL_CHANGED
            if self.first
            else Changes(frozenset(changed), frozenset(self.changed_nodes), frozenset(self.solved)),
        )

    def job_rates(self) -> dict[JobId, Rate]:
        """As they are measured now; the table of rates follows them."""
        found: dict[JobId, Rate] = {}
        for job_id, job in self.jobs.items():
            known = self.configured.get(job_id)
            if known is None or known[0] != job.placement:
                known = self.configured[job_id] = (job.placement, self.now)
            gpus, seconds = job.placement.gpus, self.now - known[1]
            if self.speed is None or not gpus or seconds < MEASURED_SECONDS - 1e-6:
                continue
            beside = [self.jobs[other] for other in sorted(job.placement.shares_with)]
            rate = Rate(self.speed(job, beside), seconds, self.now, mini_batches=int(seconds))
            found[job_id] = rate
            models = tuple(sorted(rate_key(other) for other in beside))
            where = Configuration(
                gpu_type(gpus, self.nodes), len(gpus), len({gpu.node for gpu in gpus}), models
            )
            self.rates.setdefault(rate_key(job), {})[where] = rate
        return found

    def memory(self) -> Memory:
        return Memory(dict(self.common), dict(self.notes))

    # -- decisions --------------------------------------------------------------------------------------

    def settle(self) -> float:
        """Plan and carry out until nothing changes any more; returns when to plan again."""
        for _ in range(100):
            plan = self.plan()
            if not plan.targets and not self.solved and plan.wake_at > self.now:
                break
        else:
            raise AssertionError("the plans do not come to rest")
        self.timeline.running.append((self.now, frozenset(self.running())))
        return plan.wake_at

    def plan(self) -> Plan:
        """One plan, checked and carried out."""
        snapshot = self.snapshot(self.changed)
        plan = self.policy.plan(snapshot, self.memory())
        self.first = False
        if self.check:
            self.compare(snapshot, plan)
        self.on_plan(snapshot, plan)
        self.timeline.plans += 1
        self.remember(plan)
        self.changed, self.changed_nodes, self.solved = set(plan.targets), set(), set()
        for name, problem in plan.problems.items():
            self.solver.submit(name, problem, lambda: None)
        solved = self.solver.take()
        self.solutions.update(solved)
        self.solved = set(solved)
        self.carry_out(plan)
        self.exclusive()
        return plan

    def remember(self, plan: Plan) -> None:
        for job_id, note in plan.memory.jobs.items():
            if note is None:
                self.notes.pop(job_id, None)
            else:
                self.notes[job_id] = tuple(json.loads(json.dumps(note)))
        self.common.update(json.loads(json.dumps(dict(plan.memory.common))))
        self.reasons.update(plan.reasons)
        if not self.own_words:
            plain = [words for words in plan.reasons.values() if reason_of(words) is Reason.OTHER]
            assert plain == [], "only a site's own parts may say what has no kind"

    def carry_out(self, plan: Plan) -> None:
        """Those that stop first."""
        for job_id, target in sorted(plan.targets.items(), key=lambda item: bool(item[1].placement.gpus)):
            if self.jobs[job_id].placement.gpus and not target.placement.gpus:
                self.timeline.preemptions += 1
            if target.keep is StateAt.STORE and target.placement.gpus:
                job, size = self.jobs[job_id], len(target.placement.gpus)
                assert job.may_migrate if size == job.gpus else job.may_resize
                self.migrate(job_id, target.placement)
            else:
                job, size = self.jobs[job_id], len(target.placement.gpus)
                in_place = job.placement.gpus and size and size != job.gpus
                assert not in_place or job.may_resize_here
                self.put(job_id, target.placement, to_store=target.keep is StateAt.STORE)

    def put(self, job_id: JobId, placement: Placement, *, to_store: bool = False) -> None:
        job, usage = self.jobs[job_id], self.usage.setdefault(job_id, Usage())
        runs = bool(placement.gpus)
        if usage.since is not None and not runs:
            self.timeline.runs.setdefault(int(job_id), []).append((usage.since, self.now))
        if runs:
            if usage.since is not None and usage.gpus != len(placement.gpus):
                usage = usage.stopped(self.now)
            if usage.since is None:
                usage = usage.started(self.now, len(placement.gpus), gpu_type(placement.gpus, self.nodes))
            start = self.now if job.start_time is None else job.start_time
            if not job.placement.gpus and self.keep_seconds:
                job = replace(job, keeps_until=self.now + self.keep_seconds)
            job = replace(job, start_time=start, placement=placement, last=placement.gpus)
            job = replace(job, promised=frozenset(), promised_size=0)
            job = replace(job, phase=Phase.RUNNING, may_start=False, may_stop=True)
        elif usage.since is None:
            job = replace(job, promised=placement.allocation, promised_size=0)
        else:
            usage = usage.stopped(self.now)
            assert not to_store or job_id in self.stores
            stays = self.bound and not to_store
            allocation = job.placement.allocation if stays else frozenset()
            job = replace(job, placement=Placement(frozenset(), allocation), may_start=True, may_stop=False)
            job = replace(job, phase=Phase.SUSPENDED if stays else Phase.QUEUED)
            if not stays:
                job = replace(job, last=frozenset())
        job = replace(job, starts_anywhere=job_id in self.stores and job.phase is not Phase.SUSPENDED)
        self.jobs[job_id], self.usage[job_id] = job, usage
        self.ends.pop(job_id, None)
        duration = job.request.duration_seconds
        if runs and duration is not None:
            self.ends[job_id] = self.now + duration - usage.ran(self.now)

    def migrate(self, job_id: JobId, placement: Placement) -> None:
        """It stops, and can start where it goes to."""
        self.put(job_id, NOWHERE)
        job = replace(self.jobs[job_id], phase=Phase.QUEUED, placement=NOWHERE, last=frozenset())
        size = len(placement.gpus) if len(placement.gpus) != job.request.size.wanted else 0
        job = replace(job, promised=placement.allocation, promised_size=size)
        self.jobs[job_id] = replace(job, may_start=not self.migration_seconds)
        if self.migration_seconds:
            self.back[job_id] = self.now + self.migration_seconds

    def exclusive(self) -> None:
        taken: dict[GpuId, JobId] = {}
        for job in self.jobs.values():
            placement = job.placement
            if placement.gpus:
                size = job.request.size
                assert size.wanted <= len(placement.gpus) <= max(size.wanted, size.most)
                assert placement.gpus <= placement.allocation
                on = {gpu.node for gpu in placement.allocation}
                assert len({self.nodes[name].gpus[0].model for name in on}) == 1, (job.id, placement)
            for gpu in placement.gpus:
                assert gpu not in taken or taken[gpu] in placement.shares_with, (gpu, taken[gpu], job.id)
                taken[gpu] = job.id

    def compare(self, snapshot: Snapshot, plan: Plan) -> None:
        """From nothing, the plan is the same."""
        notes = {**self.notes}
        snapshot = replace(snapshot, changed=ALL_CHANGED)
        fresh = self.make().plan(snapshot, Memory(dict(self.common), notes))
        assert dict(fresh.targets) == dict(plan.targets), (self.now, fresh.targets, plan.targets)
        assert fresh.wake_at == plan.wake_at or abs(fresh.wake_at - plan.wake_at) < 1e-5, (
            self.now,
            fresh.wake_at,
            plan.wake_at,
        )
        commons = [json.loads(json.dumps({**self.common, **made.memory.common})) for made in (plan, fresh)]
        moves = [common.get("moves") for common in commons]
        assert moves[0] == moves[1] or not any(moves)
        mine = {i: tuple(n) for i, n in {**notes, **plan.memory.jobs}.items() if n and i in self.jobs}
        other = {i: tuple(n) for i, n in {**notes, **fresh.memory.jobs}.items() if n and i in self.jobs}
        assert mine == other, (
            self.now,
            {i: (mine.get(i), other.get(i)) for i in mine if mine[i] != other.get(i)},
        )
