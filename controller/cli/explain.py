# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva explain`: why a job is where it is."""

import argparse
import re
import sys
from typing import TYPE_CHECKING

from controller.cli.common import Subparsers, add_client, add_options, client, new_parser, terminal_columns
from controller.errors import GandivaError

if TYPE_CHECKING:
    from controller.api.client import ApiClient
    from controller.reports.slurm_job import SlurmJob

MAX_TASKS = 20
"""Tasks of an array that are explained at once."""

_ABOUT = """\
Why a job waits, runs, was suspended or moved: the controller's reason now,
what to do about it, which jobs share its GPUs or are on those it waits for,
and its last decisions, times on GPUs and events."""

_EXAMPLES = """\
  gandiva explain 1234
  gandiva explain 1240_7          task 7 of an array
  gandiva explain -n 50 1234 | less
  gandiva explain --json 1234 | jq .live.reason"""

_OPTIONS = """
-n --lines N   last N decisions, slices, events (default: 8)
--json         as JSON, one object a line"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "explain", "why a job waits, runs or moved", _ABOUT, _EXAMPLES, run)
    parser.add_argument(
        "jobs", metavar="JOBID", nargs="+", type=_job, help="job, task of an array (12_3), or array"
    )
    add_options(parser, _OPTIONS, lines={"default": 8})
    add_client(parser)


def _job(text: str) -> str:
    """`12`, or `12_3` for a task of an array."""
    if not re.fullmatch(r"[0-9]{1,10}(_[0-9]{1,10})?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a job id: 12, or 12_3 for a task of an array")
    return text


def run(args: argparse.Namespace) -> int:
    from controller.reports.slurm_job import ask_slurm

    api = client(args)
    first = True
    for word in args.jobs:
        known = ask_slurm(word)
        chosen = {one.job_id: one for one in known[:MAX_TASKS]}
        if "_" in word and not chosen:
            raise GandivaError(
                f"Slurm knows no job {word} any more (or scontrol does not answer here): "
                f"sacct -X -o JobIDRaw -j {word} prints its number"
            )
        for job_id in chosen or [int(word)]:
            if not first and not args.json:
                print()
            first = False
            _print(api, job_id, chosen.get(job_id), args)
        if len(known) > MAX_TASKS:
            text = f"gandiva: {word} is an array; these are {MAX_TASKS} of {len(known)} tasks"
            print(text, file=sys.stderr)
    return 0


def _print(api: "ApiClient", job_id: int, slurm: "SlurmJob | None", args: argparse.Namespace) -> None:
    from controller.api.client import ApiRefused
    from controller.cli.report import accounting_of
    from controller.reports.explain import explain, ordinary
    from controller.reports.row import Row

    columns = terminal_columns()
    try:
        answer = api.explain(job_id)
    except ApiRefused as error:
        if error.status != 404:
            raise
        if slurm is None:
            raise GandivaError(
                f"there is no job {job_id}: neither the controller nor Slurm knows it (sacct -j {job_id} "
                "knows old ones)"
            ) from None
        if args.json:
            raise
        print("\n".join(ordinary(slurm, columns)))
        return
    accounting = None
    if answer.live is None and answer.job is not None:
        accounting = accounting_of([answer.job]).get(job_id)
        settled = Row(answer.job, answer.time, accounting).settled
        answer = answer.model_copy(update={"job": settled})
    shown = explain(answer, rows=args.lines, columns=columns, slurm=slurm, accounting=accounting)
    print(answer.model_dump_json() if args.json else "\n".join(shown))
