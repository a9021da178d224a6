# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva status`: the state of the controller as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.api.messages import StatusMessage
from controller.reports import units
from controller.reports.text import clean

EVENTS = 5


def status_lines(status: StatusMessage, url: str) -> Iterator[str]:
    """Lines for a terminal."""
    health = "works" if status.healthy else "has problems"
    yield f"The controller at {url} {health}."
    yield f"  version     {status.version}, policy {status.policy}"
    yield f"  up for      {units.duration(status.time - status.started)}, {status.ticks} turns of the loop"
    yield f"  last turn   {status.age_seconds:.1f} s ago, took {status.tick_seconds * 1000:.0f} ms"
    yield f"  nodes       {status.nodes_available} of {status.nodes} available"
    yield f"  GPUs        {status.gpus}: {_counts(status.gpus_by_use)}"
    yield f"  jobs        {sum(status.jobs_by_phase.values())}: {_counts(status.jobs_by_phase)}"
    for problem in status.problems:
        yield f"  problem     {clean(problem)}"
    if status.events:
        yield "Last events"
        for event in status.events[-EVENTS:]:
            job = f"job {event.job_id}: " if event.job_id is not None else ""
            where = f"{event.node}: " if event.node else ""
            yield f"  {units.moment(event.time)}  {clean(f'{event.kind}: {where}{job}{event.message}')}"


def _counts(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda i: -i[1])) or "none"
    )
