# SPDX-License-Identifier: GPL-2.0-or-later
"""What the mock GPUs saw: who held memory on which GPU, and when. Independent of our own measuring."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, TypeAdapter


class Event(BaseModel):
    """One line of `mockgpu history --json` (events that change memory)."""

    time_ns: int
    event: str
    gpu: int
    job_id: int
    process: int
    """A number that is unique to a process, unlike its pid."""
    held_bytes: int
    """By this process on this GPU, after the event."""


EVENTS = TypeAdapter(list[Event])


@dataclass(frozen=True, slots=True)
class Hold:
    """A time during which a job had memory on a GPU."""

    node: str
    gpu: int
    job_id: int
    """Of a process of no job: its number, negative."""
    start: float
    end: float
    """Seconds since the epoch; the end of the history for one that goes on."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


def holds(node: str, events: Sequence[Event], now: float, kept_bytes: int = 0) -> list[Hold]:
    """All holds on one node, in the order of their ends. A process holds what goes beyond `kept_bytes`: its
    contexts and communicators, where those may stay while its job is off the GPU."""
    held: dict[tuple[int, int], dict[int, int]] = {}
    since: dict[tuple[int, int], float] = {}
    found: list[Hold] = []
    for event in events:
        if event.event == "busy":
            continue
        key = (event.gpu, event.job_id or -event.process)
        processes = held.setdefault(key, {})
        before = sum(processes.values())
        processes[event.process] = max(0, event.held_bytes - kept_bytes)
        after = sum(processes.values())
        time = event.time_ns / 1e9
        if before == 0 and after > 0:
            since[key] = time
        elif before > 0 and after == 0:
            found.append(Hold(node, *key, since.pop(key), time))
    found += [Hold(node, *key, start, now) for key, start in since.items()]
    return found


def held_seconds(found: Iterable[Hold], job_id: int, start: float, end: float) -> float:
    """GPU-seconds a job held between two times (a gang counts once per GPU)."""
    return sum(max(0.0, min(h.end, end) - max(h.start, start)) for h in found if h.job_id == job_id)


def overlaps(found: Sequence[Hold]) -> list[tuple[Hold, Hold]]:
    """Pairs of holds of two jobs on one GPU at the same instant."""
    pairs = []
    going_on: dict[tuple[str, int], list[Hold]] = {}
    for hold in sorted(found, key=lambda h: h.start):
        there = [h for h in going_on.get((hold.node, hold.gpu), ()) if h.end > hold.start]
        pairs += [(other, hold) for other in there if other.job_id != hold.job_id]
        going_on[hold.node, hold.gpu] = [*there, hold]
    return pairs


class Operation(BaseModel):
    """A row of the journal: what the controller decided for one job."""

    job_id: int
    kind: str
    begin: float
    outcome: str | None
    """None: under way."""
    gpus: tuple[str, ...]
    """As NODE:INDEX."""
    seconds: float = 0.0
    """How long it took; none yet where it is under way."""


OPERATIONS = TypeAdapter(list[Operation])


def planned(operations: Sequence[Operation]) -> list[Hold]:
    """When the controller had each job on which GPUs by its own decisions, in the order of their ends."""
    found: list[Hold] = []
    since: dict[int, Operation] = {}
    for operation in sorted(operations, key=lambda o: o.begin):
        if operation.outcome == "failed":
            continue
        if (last := since.pop(operation.job_id, None)) is not None:
            found += _on_gpus(last, operation.begin)
        if operation.kind in ("place", "resume", "resize"):
            since[operation.job_id] = operation
    return found + [hold for last in since.values() for hold in _on_gpus(last, math.inf)]


def _on_gpus(operation: Operation, end: float) -> list[Hold]:
    places = (gpu.rpartition(":") for gpu in operation.gpus)
    return [Hold(node, int(index), operation.job_id, operation.begin, end) for node, _, index in places]


def until_told(found: Iterable[Hold], operations: Sequence[Operation]) -> list[Hold]:
    """The same holds, each up to when the controller begins to take the job off its GPUs: how long that takes
    is the machine's affair."""
    told: dict[int, list[float]] = {}
    for operation in operations:
        if operation.outcome != "failed" and operation.kind not in ("place", "resume"):
            told.setdefault(operation.job_id, []).append(operation.begin)
    return [
        replace(
            hold,
            end=min((t for t in told.get(hold.job_id, ()) if hold.start < t < hold.end), default=hold.end),
        )
        for hold in found
    ]


def unplanned(found: Sequence[Hold], operations: Sequence[Operation]) -> list[tuple[Hold, Hold]]:
    """Pairs of holds of two jobs on one GPU at the same instant that did not begin while the controller had
    decided that these two share that GPU."""
    shared = overlaps(planned(operations))

    def is_planned(one: Hold, other: Hold) -> bool:
        begin = max(one.start, other.start)
        return any(
            (one.node, one.gpu) == (a.node, a.gpu)
            and {one.job_id, other.job_id} == {a.job_id, b.job_id}
            and max(a.start, b.start) <= begin <= min(a.end, b.end)
            for a, b in shared
        )

    return [pair for pair in overlaps(found) if not is_planned(*pair)]
