# SPDX-License-Identifier: GPL-2.0-or-later
"""What the mock GPUs saw: who held memory on which GPU, and when. Independent of our own measuring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    by_gpu: dict[tuple[str, int], list[Hold]] = {}
    for hold in found:
        by_gpu.setdefault((hold.node, hold.gpu), []).append(hold)
    for group in by_gpu.values():
        group.sort(key=lambda h: h.start)
        last = group[0]
        for hold in group[1:]:
            if hold.job_id != last.job_id and hold.start < last.end:
                pairs.append((last, hold))
            if hold.end > last.end:
                last = hold
    return pairs
