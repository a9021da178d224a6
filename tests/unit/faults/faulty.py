# SPDX-License-Identifier: GPL-2.0-or-later
"""Ports that fail on demand: they stand between the controller and the simulated cluster.

A call that was sent is carried out even when the controller is killed meanwhile, as with a real slurmctld and
a real agent. What an armed `Trouble` makes of a call is written beside it.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.cluster.port import ClusterJob, ClusterView
from controller.errors import ClusterUnavailable, GandivaError, NodeError, NodeUnreachable
from controller.model import GpuSet, JobId, Share
from controller.nodes.port import NodeSample
from controller.nodes.protocol import Living, Offload, Pause, Saved
from tests.contract.passing_on import PassingOn
from tests.contract.troubled import TroubledCluster, TroubledNodes

RPC_DEADLINE_SECONDS = 15.0
SLOW_SECONDS = 30.0
GRACE_SECONDS = 5.0


class Trouble(str, enum.Enum):
    """What happens to one call."""

    LOST = "done, but its answer is lost"
    NEVER = "never done, an error comes at once"
    DEAF = "never done, nothing comes until the deadline"
    SLOW = "done at once, answered after 12 s"
    TIMEOUT = "done at once, its answer comes after the deadline"
    AFTERWARDS = "done 30 s later, long after the deadline"
    TWICE = "done twice"
    OLDER = "not done, but the answer of an earlier call is taken for its own"


@dataclass
class Faults:
    """What is armed."""

    armed: dict[str, list[Trouble]] = field(default_factory=dict)
    """By method name: troubles for the next calls."""
    injected: int = 0
    stale_view_seconds: float = 0.0
    """The next view of Slurm is so old."""
    stale_sample_seconds: float = 0.0
    random: random.Random | None = None
    """Besides what is armed: trouble at random, with this probability."""
    probability: float = 0.0
    silence_seconds: dict[JobId, float] = field(default_factory=dict)
    """How long calls about a job were without an answer: nobody can know when in it a job left its GPUs."""

    def arm(self, method: str, *troubles: Trouble) -> None:
        self.armed.setdefault(method, []).extend(troubles)

    def silent(self, job_id: JobId, trouble: Trouble | None, deadline_seconds: float) -> None:
        """Count what this trouble does to a call about a job."""
        if trouble in (Trouble.DEAF, Trouble.SLOW, Trouble.TIMEOUT, Trouble.AFTERWARDS):
            self.silence_seconds[job_id] = self.silence_seconds.get(job_id, 0.0) + deadline_seconds

    def take(self, method: str) -> Trouble | None:
        waiting = self.armed.get(method)
        if waiting:
            self.injected += 1
            return waiting.pop(0)
        if self.random is not None and self.random.random() < self.probability:
            self.injected += 1
            return self.random.choice(list(Trouble))
        return None


async def _sent(work: Coroutine[Any, Any, Any]) -> Any:
    """Carry it out whatever becomes of who asked."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def _later(seconds: float, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    await asyncio.sleep(seconds)
    await make()


async def _troubled(
    trouble: Trouble | None,
    make: Callable[[], Coroutine[Any, Any, Any]],
    deadline_seconds: float,
    error: Callable[[str], GandivaError],
    older: Any,
) -> Any:
    match trouble:
        case None:
            return await _sent(make())
        case Trouble.LOST:
            await _sent(make())
            raise error("the connection broke before the answer came")
        case Trouble.NEVER:
            raise error("connection refused")
        case Trouble.DEAF:
            await asyncio.sleep(deadline_seconds)
            raise error(f"no answer after {deadline_seconds:g} s")
        case Trouble.SLOW:
            answer = await _sent(make())
            await asyncio.sleep(min(12.0, 0.8 * deadline_seconds))
            return answer
        case Trouble.TIMEOUT:
            await _sent(make())
            await asyncio.sleep(deadline_seconds)
            raise error(f"no answer after {deadline_seconds:g} s")
        case Trouble.AFTERWARDS:
            task = asyncio.ensure_future(_later(SLOW_SECONDS, make))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.sleep(deadline_seconds)
            raise error(f"no answer after {deadline_seconds:g} s")
        case Trouble.TWICE:
            answer = await _sent(make())
            await _sent(make())
            return answer
        case Trouble.OLDER:
            return older


class FaultyCluster(PassingOn):
    """Implements `ClusterPort`."""

    def __init__(self, cluster: TroubledCluster, faults: Faults) -> None:
        self._cluster = cluster
        self._faults = faults
        self._views: deque[ClusterView] = deque(maxlen=600)
        self.wall: Callable[[float], float] = lambda time: time
        """The wall clock of slurmctld's host at an instant of the simulation."""

    async def observe(self) -> ClusterView:
        def unavailable(words: str) -> GandivaError:
            return ClusterUnavailable(f"observing the cluster: {words}")

        trouble = self._faults.take("observe-slurm")
        older = self._views[-1] if self._views else None
        if trouble is Trouble.OLDER and older is None:
            trouble = None
        view: ClusterView = await _troubled(
            trouble, self._cluster.observe, RPC_DEADLINE_SECONDS, unavailable, older
        )
        if trouble is not Trouble.OLDER:
            view = replace(view, jobs=tuple(self._dated(job) for job in view.jobs))
            self._views.append(view)
        age, self._faults.stale_view_seconds = self._faults.stale_view_seconds, 0.0
        if age:
            old = [seen for seen in self._views if seen.time <= view.time - age]
            return old[-1] if old else self._views[0]
        return view

    async def shares(self) -> tuple[Share, ...]:
        return await self._cluster.shares()

    async def reservations(self) -> Mapping[JobId, GpuSet]:
        return await self._cluster.reservations()

    async def job(self, job_id: JobId) -> ClusterJob:
        return self._dated(await super().job(job_id))

    def _dated(self, job: ClusterJob) -> ClusterJob:
        return replace(
            job,
            submit_time=self.wall(job.submit_time),
            start_time=None if job.start_time is None else self.wall(job.start_time),
            end_time=None if job.end_time is None else self.wall(job.end_time),
        )

    async def _call(self, method: str, job_id: JobId, *arguments: Any) -> Any:
        def unavailable(words: str) -> GandivaError:
            return ClusterUnavailable(f"job {job_id}: {method}: {words}")

        trouble = self._faults.take(method)
        if trouble is Trouble.OLDER and method == "job":
            trouble = Trouble.LOST
        self._faults.silent(job_id, trouble, RPC_DEADLINE_SECONDS)
        call = getattr(self._cluster, method)
        return await _troubled(
            trouble, lambda: call(job_id, *arguments), RPC_DEADLINE_SECONDS, unavailable, None
        )

    async def close(self) -> None:
        """Nothing to close."""


_OLDER_ANSWERS: Mapping[str, Any] = {
    "pause": Pause(7, True),
    "offload": Offload(0, 0.05),
    "checkpoint": Offload(0, 0.05),
    "living": Living(1, 0.0),
    "mapped": (),
}


class FaultyNodes:
    """Implements `NodePort`. Calls for one job on one node come one after the other, as in the agent."""

    def __init__(self, nodes: TroubledNodes, faults: Faults) -> None:
        self._nodes = nodes
        self._faults = faults
        self._samples: deque[tuple[float, Mapping[str, NodeSample | NodeError]]] = deque(maxlen=600)
        self._lanes: dict[tuple[str, JobId], asyncio.Lock] = {}

    async def set_nodes(self, addresses: Mapping[str, str]) -> None:
        await self._nodes.set_nodes(addresses)

    async def observe(self, deadline_seconds: float) -> Mapping[str, NodeSample | NodeError]:
        samples = await self._nodes.observe(deadline_seconds)
        now = asyncio.get_running_loop().time()
        self._samples.append((now, samples))
        trouble = self._faults.take("observe-nodes")
        if trouble in (Trouble.DEAF, Trouble.TIMEOUT, Trouble.AFTERWARDS, Trouble.SLOW):
            await asyncio.sleep(deadline_seconds)
        if trouble not in (None, Trouble.TWICE, Trouble.OLDER):
            return {
                name: NodeUnreachable(name, f"no answer after {deadline_seconds:g} s") for name in samples
            }
        age, self._faults.stale_sample_seconds = self._faults.stale_sample_seconds, 0.0
        if trouble is Trouble.OLDER:
            age = 1.0
        if age:
            old = [seen for time, seen in self._samples if time <= now - age]
            return old[-1] if old else self._samples[0][1]
        return samples

    async def _call(
        self, method: str, node: str, job_id: JobId, deadline_seconds: float, options: Mapping[str, Any]
    ) -> Any:
        def unreachable(words: str) -> GandivaError:
            return NodeUnreachable(node, f"{method}: {words}")

        async def one_at_a_time() -> Any:
            async with self._lanes.setdefault((node, job_id), asyncio.Lock()):
                return await getattr(self._nodes, method)(node, job_id, **options)

        trouble = self._faults.take(method)
        if trouble is Trouble.OLDER and method in ("prepare", "open"):
            # Its answer says nothing but that it was done, so an earlier one could not be told from it, and
            # the job would start without its control block. Answers carry the number of their request.
            trouble = Trouble.LOST
        self._faults.silent(job_id, trouble, deadline_seconds + GRACE_SECONDS)
        older = _OLDER_ANSWERS.get(method)
        return await _troubled(trouble, one_at_a_time, deadline_seconds + GRACE_SECONDS, unreachable, older)

    async def prepare(self, node: str, job_id: JobId, **options: Any) -> None:
        await self._call("prepare", node, job_id, options["deadline_seconds"], options)

    async def pause(self, node: str, job_id: JobId, **options: Any) -> Pause:
        answer: Pause = await self._call("pause", node, job_id, options["wait_seconds"], options)
        return answer

    async def offload(self, node: str, job_id: JobId, **options: Any) -> Offload:
        answer: Offload = await self._call("offload", node, job_id, options["deadline_seconds"], options)
        return answer

    async def checkpoint(self, node: str, job_id: JobId, **options: Any) -> Offload:
        answer: Offload = await self._call("checkpoint", node, job_id, options["deadline_seconds"], options)
        return answer

    async def save(self, node: str, job_id: JobId, **options: Any) -> Saved:
        answer: Saved = await self._call("save", node, job_id, options["deadline_seconds"], options)
        return answer

    async def stop(self, node: str, job_id: JobId, **options: Any) -> None:
        await self._call("stop", node, job_id, options["deadline_seconds"], options)

    async def open(self, node: str, job_id: JobId, **options: Any) -> None:
        await self._call("open", node, job_id, options["deadline_seconds"], options)

    async def resume(self, node: str, job_id: JobId, **options: Any) -> None:
        await self._call("resume", node, job_id, options["deadline_seconds"], options)

    async def forget(self, node: str, job_id: JobId) -> None:
        await self._call("forget", node, job_id, 10.0, {})

    async def living(self, node: str, job_id: JobId, **options: Any) -> Living:
        answer: Living = await self._call("living", node, job_id, options["deadline_seconds"], options)
        return answer

    async def mapped(self, node: str, job_id: JobId, **options: Any) -> Sequence[str]:
        answer: Sequence[str] = await self._call("mapped", node, job_id, options["deadline_seconds"], options)
        return answer

    async def warm(self, node: str, **options: Any) -> None:
        await self._nodes.warm(node, **options)

    async def close(self) -> None:
        """Nothing to close."""
