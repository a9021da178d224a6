# SPDX-License-Identifier: GPL-2.0-or-later
"""Every part killed at every step of every operation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from controller.act.recorder import Step
from tests.faults.fault import Evidence, Fault
from tests.faults.parts import AGENT, CONTROLLER, DISK, PARTS, Part, Target
from tests.faults.stage import FaultFailed, Moment, NotReached, Order, Stage, Way
from tests.faults.workload import COOPERATIVE, EMPTY, GANG, REQUEUED, TRANSPARENT, Workload

Side = Literal["source", "target"]

ATTEMPTS = 6
"""A job may end, or a call be over, before it is hit."""
REACHED_SECONDS = 20.0
MOVED_SECONDS = 45.0
"""The same of a job that has to leave its node first."""
MOVING_GPU_SECONDS = 6.0
LONG_GPU_SECONDS = 12.0
NOT_WRITTEN = "cannot write the journal"
DELAYS_SECONDS = (0.006, 0.002, *[0.0] * (ATTEMPTS - 2))
"""From the time when the agent is at work on the job to the blow, at each attempt: a call may be shorter."""
STANDSTILL_SECONDS = 1.0
"""Sooner no stopped agent goes on."""


@dataclass(frozen=True, slots=True)
class Point:
    """A step of an operation, as a kind of job goes through it."""

    operation: str
    step: Step
    workload: Workload
    refuse: str = ""
    """A node call that is refused first, so that the step is reached."""
    requeue_first: bool = False
    """An operator requeues a running job first, so that the step is reached."""
    side: Side = "source"
    """Of a job that migrates: which of its two nodes is hit."""

    @property
    def operation_in_words(self) -> str:
        if self.workload.moves:
            return f"{self.operation}, {self.workload.name}, its {self.side}"
        plain = self.operation in ("place", "requeue", "withdraw")
        return self.operation if plain else f"{self.operation}, {self.workload.name}"


POINTS = (
    *(
        Point("place", step, REQUEUED)
        for step in (Step.CLAIM, Step.PREPARE, Step.BIND, Step.RELEASE, Step.AWAIT_START)
    ),
    Point("place", Step.UNDO, REQUEUED, refuse="prepare"),
    Point("requeue", Step.REQUEUE, REQUEUED),
    Point("withdraw", Step.UNDO, REQUEUED, requeue_first=True),
    *(Point("suspend", step, COOPERATIVE) for step in (Step.PAUSE, Step.OFFLOAD, Step.SLURM_SUSPEND)),
    Point("suspend", Step.UNDO, COOPERATIVE, refuse="pause"),
    *(Point("resume", step, COOPERATIVE) for step in (Step.CLAIM, Step.SLURM_RESUME, Step.NODE_RESUME)),
    Point("resume", Step.UNDO, COOPERATIVE, refuse="resume"),
    Point("suspend", Step.CHECKPOINT, TRANSPARENT),
    *(Point("resume", step, TRANSPARENT) for step in (Step.SLURM_RESUME, Step.NODE_RESUME)),
    *(Point("suspend", step, EMPTY) for step in (Step.CHECKPOINT, Step.SLURM_SUSPEND, Step.STOP)),
    *(Point("suspend", step, GANG) for step in (Step.PAUSE, Step.OFFLOAD)),
    Point("resume", Step.NODE_RESUME, GANG),
)
NODE_STEPS = frozenset(
    {
        Step.PREPARE,
        Step.PAUSE,
        Step.OFFLOAD,
        Step.CHECKPOINT,
        Step.SAVE,
        Step.STOP,
        Step.NODE_RESUME,
    }
)


def moments(part: Part, point: Point) -> tuple[Moment, ...]:
    """When this part breaks: the controller on both sides of each step; an agent also while it is at it."""
    if part is CONTROLLER:
        return ("before", "after")
    if part is AGENT and point.step in NODE_STEPS:
        return ("before", "during")
    return ("before",)


def enumerated(parts: tuple[Part, ...] = PARTS, points: tuple[Point, ...] = POINTS) -> Iterator[Fault]:
    for part in parts:
        for point in points:
            for moment in moments(part, point):
                yield make(part, point, moment)


def make(part: Part, point: Point, moment: Moment) -> Fault:
    return Fault(
        group=f"migration, {part.name}" if point.workload.moves else part.name,
        what=f"{part.name}: {part.how}",
        where=point.operation_in_words,
        detail=f"{moment} {point.step.value}",
        run=lambda stage: strike(stage, part, point, moment),
    )


def strike(stage: Stage, part: Part, point: Point, moment: Moment) -> Evidence:
    """Bring a job to that step, break the part there, repair it, and wait until all is right again."""
    reasons = []
    for attempt in range(ATTEMPTS):
        try:
            return _strike(stage, part, point, moment, attempt)
        except NotReached as reason:
            reasons.append(str(reason) or f"no job came to {point.step.value}")
            stage.withdraw_order()
    raise FaultFailed(
        f"{moment} {point.step.value} of {point.operation} ({point.workload.name}) nothing was hit: "
        + "; ".join(reasons)
    )


def _strike(stage: Stage, part: Part, point: Point, moment: Moment, attempt: int) -> Evidence:
    met = _reach(stage, part, point, moment, attempt)
    not_written = stage.log_since().count(NOT_WRITTEN) if part is DISK else 0
    struck = time.time()
    target = Target(point.workload, int(met["job"]), point.step.value, at=met["node"])
    if moment != "during":
        part.strike(stage, target)
        if part is not CONTROLLER:
            stage.go()
    part.repair(stage, target)
    repaired = time.time()
    if part.kills_job:
        next(j for j in stage.round.jobs if j.id == target.job_id).may_fail = True
    reminded = ""
    if part.remind is not None:
        try:
            stage.await_converged(repaired, part.converged_seconds / 2)
        except FaultFailed:
            part.remind(stage, target)
            reminded = ", after the nodes had registered"
    seconds = stage.await_converged(repaired, part.converged_seconds)
    call = stage.await_call_ended(target.job_id) if moment == "during" else None
    if part.tidy is not None:
        part.tidy(stage, target)
    stage.count_trouble(struck)
    hit = during(met, call, part) if call is not None else ""
    if part is DISK and stage.log_since().count(NOT_WRITTEN) == not_written:
        raise FaultFailed("the journal could be written all the time: the disk was not full")
    words = f"job {target.job_id}{hit}, right again {seconds:.1f} s after the repair{reminded}"
    return Evidence(words, seconds)


def during(met: Mapping[str, Any], call: Mapping[str, Any], part: Part) -> str:
    """That the call was pending when its agent was hit, in words. Raises NotReached when it was not: the
    fault came to another call, and says nothing of this one.

    A killed agent cannot have answered: its call failed. One that was stopped answered after that, or never.
    """
    hit, began, ended = float(met["at"]), float(met["began"]), float(call["ended"])
    answered = not call["error"] and (part.agent_signal == "KILL" or ended < hit + STANDSTILL_SECONDS)
    if not met["pending"] or ended <= hit or answered:
        how = call["error"] or "an answer"
        raise NotReached(
            f"not during: the call ended with {how} {ended - hit:.3f} s after agent {met['agent']} was hit"
        )
    return (
        f", agent {met['agent']} hit {(hit - began) * 1000:.0f} ms after its call began,"
        f" the call ended {ended - hit:.2f} s later"
    )


def _reach(stage: Stage, part: Part, point: Point, moment: Moment, attempt: int) -> dict[str, Any]:
    """Until the daemon is there. Raises NotReached."""
    way: Way | None = None
    if part.needs_saved_jobs:
        # What it has not written down it forgets: submissions, and ends (it then takes the job for running
        # until the node registers anew, which is minutes). So none of either in the seconds before.
        stage.await_ended()
        jobs = [
            stage.submit(point.workload, LONG_GPU_SECONDS) for _ in range(1 if point.workload.moves else 2)
        ]
        way = stage.way(jobs[0]) if point.workload.moves else None
        if way is not None:
            stage.share(way, LONG_GPU_SECONDS)
        stage.await_saved(time.time() if way else None)
    elif point.workload.moves:
        jobs = [stage.submit(point.workload, MOVING_GPU_SECONDS)]
        way = stage.way(jobs[0])
        stage.share(way, LONG_GPU_SECONDS)
    else:
        jobs = stage.populate(point.workload, fresh=1 + min(attempt, 1))
    node = way.node(point.side) if way else point.workload.nodes[0]
    if moment == "during":
        stage.arm(node, part.agent_signal, DELAYS_SECONDS[attempt])
    order = Order(
        kind=point.operation,
        step=point.step.value,
        moment=moment,
        deed="kill" if part is CONTROLLER else "meet",
        jobs=tuple(j.id for j in jobs),
        refuse=point.refuse,
        node=node,
    )
    stage.order(order)
    if way is not None:
        stage.migrate(way)
    if point.requeue_first:
        stage.requeue_running(jobs)
    try:
        met = stage.await_met(MOVED_SECONDS if way else REACHED_SECONDS)
    except NotReached:
        if moment == "during":
            stage.disarm(node)
        raise
    if moment == "during" and not met["struck"]:
        raise NotReached(f"{point.step.value} of job {met['job']}: {met['why']}")
    return met
