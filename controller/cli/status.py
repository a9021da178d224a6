# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva status`: the state of the controller."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from controller.cli.common import Subparsers, add_client, add_options, client, new_parser

if TYPE_CHECKING:
    from controller.api.messages import StatusMessage

_ABOUT = """\
The state of the controller: its last cycle, nodes, GPUs and jobs by state,
problems, and the last events. Exit status 0: it works; 1: it does not answer,
or it has problems."""

_EXAMPLES = """\
  gandiva status
  gandiva status --json | jq .gpus_by_use"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "status", "the state of the controller", _ABOUT, _EXAMPLES, run)
    add_options(parser, "--json  as JSON")
    add_client(parser)


def run(args: argparse.Namespace) -> int:
    api = client(args)
    status = api.status()
    print(status.model_dump_json() if args.json else "\n".join(status_lines(status, api.url)))
    return 0 if status.healthy else 1


def status_lines(status: "StatusMessage", url: str) -> Iterator[str]:
    from controller.reports import units
    from controller.reports.text import clean

    health = "works" if status.healthy else "has problems"
    yield f"The controller at {url} {health}."
    yield f"  version     {status.version}, policy {status.policy}"
    yield f"  up for      {units.duration(status.time - status.started)}, {status.ticks} cycles of the loop"
    yield f"  last cycle  {status.age_seconds:.1f} s ago, took {status.tick_seconds * 1000:.0f} ms"
    yield f"  nodes       {status.nodes_available} of {status.nodes} available"
    yield f"  GPUs        {status.gpus}: {_counts(status.gpus_by_use)}"
    yield f"  jobs        {sum(status.jobs_by_phase.values())}: {_counts(status.jobs_by_phase)}"
    for problem in status.problems:
        yield f"  problem     {clean(problem)}"
    if status.events:
        yield "Last events"
        for event in status.events[-5:]:
            job = f"job {event.job_id}: " if event.job_id is not None else ""
            where = f"{event.node}: " if event.node else ""
            yield f"  {units.moment(event.time)}  {clean(f'{event.kind}: {where}{job}{event.message}')}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(counts).most_common()) or "none"
