# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva explain`: why a job is where it is."""

from __future__ import annotations

import argparse

from controller.cli.common import (
    Subparsers,
    add_client,
    client,
    count,
    job_number,
    new_parser,
    terminal_columns,
)

_DESCRIPTION = """\
Why a job waits, runs, was suspended or moved: the controller's reason now,
who is on the GPUs it waits for, and its last decisions, times on GPUs and
events."""

_EXAMPLES = """\
  gandiva explain 1234
  gandiva explain -n 50 1234 | less
  gandiva explain --json 1234 | jq .live.reason"""


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add it to the commands."""
    parser = new_parser(subparsers, "explain", "why a job waits, runs or moved", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("jobs", metavar="JOBID", nargs="+", type=job_number, help="Slurm's number of the job")
    parser.add_argument(
        "-n",
        "--lines",
        metavar="N",
        type=count,
        default=8,
        help="last N decisions, slices, events (default: 8)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, one object a line")
    add_client(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanations."""
    from controller.reports.explain import explain

    api = client(args)
    columns = terminal_columns()
    for index, job_id in enumerate(args.jobs):
        answer = api.explain(job_id)
        if args.json:
            print(answer.model_dump_json())
            continue
        if index:
            print()
        for line in explain(answer, rows=args.lines, columns=columns):
            print(line)
    return 0
