# SPDX-License-Identifier: GPL-2.0-or-later
"""The end of a supervisor before that of its trials: each is saved where it can be, and waits for another."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from controller.act.actions import Requeue, Resume
from controller.act.diff import to_the_queue
from controller.errors import ClusterUnavailable
from controller.loop.loop import Controller
from controller.model import IN_HOST_MEMORY, Job, JobId, Memory, Phase, Plan, Reason, Snapshot, Why
from controller.reports.text import some

DRAIN_SHARE = 0.3
"""Part of the time in which operations under way may end."""
_CYCLE_SECONDS = 0.2
_MOST_TRIES = 4
_AT_LEAST_SECONDS = 30.0
_SAFETY = 1.5
_BYTES_PER_SECOND = 200e6
"""Of the file system, where no save was measured."""
_WHY = Why(Reason.ITS_TURN, "gandiva run ends, and goes on with it at its next start")


class Rest:
    """A policy that starts nothing."""

    def __init__(self) -> None:
        self.seen: Snapshot | None = None
        """What it planned for last."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        self.seen = snapshot
        return Plan({}, {})


def margin_seconds(snapshot: Snapshot) -> float:
    """What `put_by` takes, by what saves have taken so far: all write at the same time."""
    needed = 0.0
    for job in snapshot.jobs.values():
        if job.phase is not Phase.QUEUED and job.has_store:
            took = snapshot.costs_of(job).save_seconds
            written = snapshot.profile_of(job.id).state_bytes / _BYTES_PER_SECOND
            seconds = written if took is None else took
            needed += 2 * seconds if job.saving else seconds  # it is saved once more
    return _AT_LEAST_SECONDS + _SAFETY * needed


def what_becomes_of(jobs: Sequence[Job]) -> Iterator[str]:
    """How trials that are put by go on later."""
    stored = [job for job in jobs if job.has_store]
    if stored:
        yield f"{len(stored)} into their stores, from which they go on"
    if others := [job.name for job in jobs if not job.has_store]:
        yield f"without a store, and begin from a checkpoint of their own or anew: {some(others)}"


def _saves_on_gpus_alone(job: Job) -> bool:
    """Off them it cannot: the driver has its memory, or its CUDA context."""
    return job.phase in IN_HOST_MEMORY and job.has_store and not job.may_migrate


async def put_by(controller: Controller, deadline_seconds: float, say: Callable[[str], None]) -> None:
    """Call when the loop has ended. All trials are off the node, or the deadline has passed. `say`: what
    becomes of them.

    One whose sessions have a checkpoint store writes its state there. Any other is stopped as it is, and
    starts again from a checkpoint of its own, where it has one.
    """
    until = time.monotonic() + deadline_seconds
    await controller.executor.drain(deadline_seconds * DRAIN_SHARE)
    rest = Rest()
    controller.observer.save_every_seconds = 0.0
    controller.use("rest", rest)
    asked: Counter[JobId] = Counter()
    resumed: Counter[JobId] = Counter()
    said = False
    while True:
        await controller.cycle()
        if rest.seen is None:
            raise ClusterUnavailable("the trials cannot be observed")
        on_node = [job for job in rest.seen.jobs.values() if job.phase is not Phase.QUEUED]
        for line in () if said else what_becomes_of(on_node):
            say(line)
        said = True
        if not on_node or time.monotonic() > until:
            return
        busy = controller.executor.in_flight().keys()
        taken = {gpu for job in on_node for gpu in job.placement.gpus}
        for job in on_node:
            if job.id in busy or job.switching:
                continue
            if _saves_on_gpus_alone(job) and resumed[job.id] < _MOST_TRIES:
                # Its turn comes when the others have left them.
                if taken.isdisjoint(job.last):
                    taken |= job.last
                    resumed[job.id] += 1
                    controller.executor.apply([Resume(job.id, _WHY, job.last)], rest.seen)
                continue
            # What could not be saved is stopped all the same.
            action = Requeue(job.id, _WHY) if asked[job.id] else to_the_queue(job, _WHY)
            asked[job.id] += 1
            if asked[job.id] > _MOST_TRIES:
                raise ClusterUnavailable(f"job {job.id} cannot be stopped in order: see the log")
            controller.executor.apply([action], rest.seen)
        await controller.executor.drain(_CYCLE_SECONDS)
