# SPDX-License-Identifier: GPL-2.0-or-later
"""A migration, cut at each step: that of leaving, with the reservation and the save, from GPU or host memory,
and that of starting on the GPUs that are kept for the job. Hit are the parts of the node that it leaves, or
of the one that it goes to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from controller.act.recorder import Step
from tests.faults.enumerated import ATTEMPTS, MOVED_SECONDS, MOVING_GPU_SECONDS, Point, Side, make, moments
from tests.faults.fault import Evidence, Fault
from tests.faults.parts import AGENT, CONTROLLER, NODE, RESERVATION, SLURMCTLD, SLURMD, Part
from tests.faults.stage import FaultFailed, NotReached, Order, Stage
from tests.faults.workload import MIGRATING, REQUEUED_ELSEWHERE, SUSPENDED

_STARTING = (Step.CLAIM, Step.PREPARE, Step.BIND, Step.RELEASE, Step.AWAIT_START)
LEAVING = (
    *(Point("migrate", step, MIGRATING) for step in (Step.RESERVE, Step.PAUSE, Step.SAVE, Step.REQUEUE)),
    Point("migrate", Step.UNDO, MIGRATING, refuse="save"),
    *(Point("requeue", step, REQUEUED_ELSEWHERE) for step in (Step.RESERVE, Step.REQUEUE)),
    *(
        Point("migrate", step, SUSPENDED)
        for step in (Step.RESERVE, Step.SLURM_RESUME, Step.SAVE, Step.REQUEUE)
    ),
    Point("migrate", Step.UNDO, SUSPENDED, refuse="save"),
)
"""Hit is the node that the job leaves."""
STARTING = tuple(Point("place", step, MIGRATING, side="target") for step in _STARTING)
"""Hit is the node that it goes to."""
POINTS = LEAVING + STARTING


def _chosen(operation: str, side: Side, *steps: Step) -> list[Point]:
    return [Point(operation, step, MIGRATING, side=side) for step in steps]


FAULTS: tuple[tuple[Part, tuple[Point, ...]], ...] = (
    (CONTROLLER, POINTS),
    (AGENT, (*POINTS, *_chosen("migrate", "target", Step.RESERVE, Step.REQUEUE))),
    (SLURMCTLD, POINTS),
    (SLURMD, (*POINTS, *_chosen("migrate", "target", Step.RESERVE, Step.REQUEUE))),
    (
        NODE,
        (
            *_chosen("migrate", "source", Step.SAVE, Step.REQUEUE),
            *_chosen("migrate", "target", Step.SAVE, Step.REQUEUE),
            *_chosen("place", "target", Step.RELEASE, Step.AWAIT_START),
        ),
    ),
    (
        RESERVATION,
        (
            *_chosen("migrate", "target", Step.SAVE, Step.REQUEUE),
            *_chosen("place", "target", Step.BIND, Step.RELEASE, Step.AWAIT_START),
        ),
    ),
)


def migrating() -> Iterator[Fault]:
    for part, points in FAULTS:
        for point in points:
            for moment in moments(part, point):
                yield make(part, point, moment)
    for call in ("reserve", "unreserve"):
        yield Fault(
            group="migration, a lost answer",
            what="a call to Slurm takes effect, its answer is lost, once or several times in a row",
            where=f"{call}, {MIGRATING.name}",
            detail="1 in a row",
            run=partial(_lose, call=call),
        )


def _lose(stage: Stage, call: str) -> Evidence:
    for _ in range(ATTEMPTS):
        job = stage.submit(MIGRATING, MOVING_GPU_SECONDS)
        try:
            way = stage.way(job)
            stage.order(Order(step=call, deed="lose", jobs=(job.id,)))
            stage.migrate(way)
            stage.await_met(MOVED_SECONDS)
            break
        except NotReached:
            stage.withdraw_order()
    else:
        raise FaultFailed(f"no {call} was seen")
    now = time.time()
    seconds = stage.await_converged(now)
    stage.count_trouble(now)
    return Evidence(f"job {job.id}, right again {seconds:.1f} s after the lost answer", seconds)
