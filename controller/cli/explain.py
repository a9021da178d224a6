# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva explain`: why a job is where it is."""

import argparse
import time as clock
from typing import TYPE_CHECKING

from controller.cli import common
from controller.cli.study import study_of, words_of
from controller.cli.study_journal import journal_of_study
from controller.errors import GandivaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controller.api.client import ApiClient
    from controller.reports.report import JournalSource
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


def add_parser(subparsers: common.Subparsers) -> None:
    text = "why a job waits, runs or moved"
    parser = common.new_parser(subparsers, "explain", text, _ABOUT, _EXAMPLES, run)
    text = "job, array, or its tasks: 12_3, 12_[0-3]; with --study a trial's number or name"
    parser.add_argument("jobs", nargs="+", metavar="JOBID", help=text)
    common.add_options(parser, _OPTIONS, lines={"default": 8})
    common.add_client(parser)


def run(args: argparse.Namespace) -> int:
    chosen, source = _chosen(args), journal_of_study(args, clock.time()) or common.client(args)
    for index, (job_id, slurm) in enumerate(chosen):
        if index and not args.json:
            print()
        _print(source, job_id, slurm, args)
    return 0


def _chosen(args: argparse.Namespace) -> "Iterator[tuple[int, SlurmJob | None]]":
    """The jobs, each as Slurm has it where that is known. Raises GandivaError."""
    if args.study is not None:
        from controller.cli.study_trials import numbers as numbers_of_trials

        yield from ((number, None) for text in args.jobs for number in numbers_of_trials(args, text))
        return
    from controller.reports.job_ids import named, numbers
    from controller.reports.slurm_job import Scontrol

    scontrol = Scontrol()
    for word in [word for text in args.jobs for word in common.job_words(text)]:
        known = named(word, scontrol)
        found = list(known) or numbers([word], scontrol)[0]
        yield from ((job_id, known.get(job_id)) for job_id in found[:MAX_TASKS])
        if len(found) > MAX_TASKS:
            common.say(f"{word} is an array; these are {MAX_TASKS} of {len(found)} tasks")


def _print(
    source: "ApiClient | JournalSource", job_id: int, slurm: "SlurmJob | None", args: argparse.Namespace
) -> None:
    from controller.api.client import ApiRefused
    from controller.cli.report import accounting_of
    from controller.reports.explain import explain, ordinary
    from controller.reports.row import Row

    columns = common.terminal_columns()
    try:
        answer = source.explain(job_id)
    except ApiRefused as error:
        if error.status != 404 or (args.json and slurm is not None):
            raise
        answer = None
    if answer is None:
        if args.study is not None:
            raise GandivaError(f"study {args.study} has no trial {job_id}")
        if slurm is None:
            why = f"neither the controller nor Slurm knows it (sacct -j {job_id} knows old ones)"
            raise GandivaError(f"there is no job {job_id}: {why}")
        print("\n".join(ordinary(slurm, columns)))
        return
    accounting = None
    if answer.live is None and answer.job is not None:
        accounting = accounting_of([answer.job], study_of(args)).get(job_id)
        settled = Row(answer.job, answer.time, accounting).settled
        answer = answer.model_copy(update={"job": settled})
    words = words_of(args)
    shown = explain(answer, rows=args.lines, columns=columns, slurm=slurm, accounting=accounting, words=words)
    print(answer.model_dump_json() if args.json else "\n".join(shown))
