# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva report`: jobs and their use of GPUs, in the manner of sacct."""

from __future__ import annotations

import argparse
import os
import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.cli import common
from controller.cli.outputs import check_outputs, writing
from controller.cli.study import study_of, words_of
from controller.cli.study_journal import journal_of_study
from controller.errors import GandivaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controller.api.client import ApiClient
    from controller.api.messages import JobMessage, JobsMessage
    from controller.journal import JobFilter
    from controller.reports.report import JournalSource
    from controller.reports.row import Row
    from controller.reports.sacct import Accounting
    from controller.reports.table import Layout
    from controller.run.folder import StudyFolder

_FORMAT = "GANDIVA_REPORT_FORMAT"
_ABOUT = """\
Jobs under Gandiva and the GPU time they got, with the options of sacct.
Without options: your own jobs since midnight, and for root those of all users.
With -j: these jobs, of any user and at any time. With --study: all its trials.

The numbers come from the controller; final states, exit codes and array
indices from sacct where it answers."""

_EXAMPLES = """\
  gandiva report                            your jobs of today
  gandiva report -a -S now-2hours -s CD,F   all users' jobs, completed or failed
  gandiva report -j 1234,1240 -l            two jobs (or arrays), all columns
  gandiva report -j 1240_7,1240_[0-3]       tasks of an array
  gandiva report -u alice -o JobID,GPUTime,Share,Reason%-60
  gandiva report -a -S 2024-05-01 -E 2024-06-01 -P > may.txt
  gandiva report -a -S now-1days --html day.html
  gandiva report --json | jq '.jobs[] | {job_id, share_fraction}'"""

_WHICH = """
-j --jobs LIST        these jobs (job ids with commas: 12, all of an array too, 12_3, 12_[0-3,7]);
                      with --study trials, by number or name
-u --user LIST        jobs of these users
-a --allusers         jobs of all users
-A --accounts LIST    jobs of these accounts
-r --partition LIST   jobs of these partitions
-s --state LIST       jobs in these states: names, or codes such as CD,F,R,S
-S --starttime TIME   jobs that had not ended before TIME (default: midnight; with -j no limit). As in
                      sacct: YYYY-MM-DD[THH:MM[:SS]], MMDD[YY], HH:MM, midnight, noon, now-2hours, …
-E --endtime TIME     jobs submitted by TIME (default: now)
--limit N             the newest N jobs (default: 10000)"""

_HOW = """
-o --format LIST      columns: NAME, NAME%%WIDTH, NAME%%-WIDTH to the left (default:
                      $GANDIVA_REPORT_FORMAT, else a table of 80 columns)
-b --brief            job, state, GPU time and share
-l --long             all columns of interest
-e --helpformat       list the columns and end
-n --noheader         no header
-p --parsable         values between |, one | at the end of a line
-P --parsable2        values between |
--delimiter TEXT      between the values of -p and -P, instead of |
--units UNIT          sizes in K, M, G, T or P (bytes)
--json                as JSON: all values, in seconds and bytes
--html FILE           write a page for browsers instead: who was on which GPU when and why, waiting times
-X --allocations      accepted for habit: there are no steps here"""

_WHERE = """
--no-sacct            do not ask sacct
--journal FILE        read this journal instead of asking the controller"""


def add_parser(subparsers: common.Subparsers) -> None:
    parser = common.new_parser(
        subparsers, "report", "jobs and their GPU time, like sacct", _ABOUT, _EXAMPLES, run
    )
    more: dict[str, dict[str, Any]] = {
        **{key: {"type": common.words} for key in ("user", "accounts", "partition", "state")},
        "limit": {"default": 10_000},
        "units": {"choices": tuple("KMGTP"), "default": ""},
    }
    for title, lines in (("which jobs", _WHICH), ("how to print them", _HOW), ("where from", _WHERE)):
        common.add_options(parser.add_argument_group(title), lines, **more)
    common.add_client(parser)


def run(args: argparse.Namespace) -> int:
    from controller.reports.report import JournalSource, as_json, join, unsuspendable
    from controller.reports.table import help_format, render, with_names

    if args.helpformat:
        sys.stdout.write(help_format())
        return 0
    now = clock.time()
    journal = journal_of_study(args, now)
    if args.journal is not None and args.study is None:
        journal = JournalSource(args.journal, now)
    if args.html is not None:
        check_outputs({"--html": args.html}, _inputs(args, journal.path if journal else None))
    layout, which = _layout(args), _filter(args, now)
    source = journal or common.client(args)
    jobs = source.jobs(which)
    rows = join(jobs, {} if args.no_sacct else accounting_of(jobs.jobs, study_of(args)))
    if args.html is not None:
        return _write_page(args.html, source, which, rows, jobs)
    if args.study is not None and args.format is None and not os.environ.get(_FORMAT):
        layout = with_names(layout, rows)
    lines = as_json(rows, truncated=jobs.truncated) if args.json else render(rows, layout)
    for line in lines:
        print(line)
    for warning in unsuspendable(rows, words_of(args)):
        common.say(warning)
    if jobs.truncated:
        common.say(f"there are more; these are the newest {len(rows)} (--limit)")
    return 0


def _inputs(args: argparse.Namespace, journal: Path | None) -> dict[str, Path | None]:
    """All files that are read, by what names them."""
    from controller.settings.loading import settings_path

    name = "--journal" if args.study is None else "--study"
    inputs: dict[str, Path | None] = {"--config": settings_path(args.config), name: journal}
    if journal is not None:
        # SQLite keeps the latest changes in files of their own.
        inputs |= {f"{name}{end}": Path(f"{journal}{end}") for end in ("-wal", "-shm")}
    return inputs


def _write_page(
    path: Path, source: ApiClient | JournalSource, which: JobFilter, rows: list[Row], jobs: JobsMessage
) -> int:
    from controller.journal.reader import MAX_SLICES
    from controller.reports.html.page import Contents, render

    now = jobs.time
    end = now if which.end is None else min(now, which.end)
    start = which.start
    if start is None:  # with -j: the page begins with the first submission
        start = min([row.job.submit_time for row in rows], default=end - 1)
    if start >= end:
        raise GandivaError("--starttime is not before now: there is nothing to draw yet")
    timeline = source.timeline(start, end, MAX_SLICES)
    notices = []
    if jobs.truncated:
        notices.append(f"There were more jobs: these are the newest {len(rows)} (--limit).")
    if timeline.truncated:
        notices.append(
            f"There were more times on GPUs: these are the newest {len(timeline.slices)}, and what was "
            "before them looks idle here. Ask for a shorter time (-S, -E)."
        )
    page = render(Contents(rows, timeline.slices, source.gpus(), start, end, now, notices))
    with writing(path) as file:
        file.write(page)
    for notice in notices:
        common.say(notice)
    print(f"{path}: {len(rows)} jobs, {len(timeline.slices)} times on GPUs, {len(page) / 1e6:.1f} MB")
    return 0


def accounting_of(jobs: Sequence[JobMessage], study: StudyFolder | None) -> Mapping[int, Accounting]:
    """What sacct says of these jobs; of trials, how the steps of failed ones ended. Nothing where it is not
    there; a failure is told."""
    from controller.reports.report import account
    from controller.reports.sacct import CommandFailed, NoCommand, ask_sacct_of_steps

    try:
        if study is None:
            return account(jobs)
        failed = {job.job_id: study.step(job.job_id) for job in jobs if job.state == "FAILED"}
        return ask_sacct_of_steps({number: step for number, step in failed.items() if step is not None})
    except CommandFailed as error:
        # A host without sacct has no accounting to miss.
        if not isinstance(error, NoCommand):
            common.say(f"{error}; reporting without it")
        return {}


def _filter(args: argparse.Namespace, now: float) -> JobFilter:
    from controller.journal import JobFilter
    from controller.reports.job_ids import parse_state
    from controller.reports.when import parse_time

    ids = _numbers(args) if args.jobs is not None else ()
    users = args.user or ()
    chosen = args.jobs or args.study
    if not users and not args.allusers and not chosen and os.geteuid() != 0:
        users = (common.own_name(),)
    # As in sacct.
    begin = "midnight" if args.starttime is None and not chosen else args.starttime
    start, end = (None if text is None else parse_time(text, now) for text in (begin, args.endtime))
    if start is not None and end is not None and end < start:
        raise GandivaError("--endtime is before --starttime (which is midnight unless given)")
    return JobFilter(
        job_ids=ids,
        users=() if args.allusers else users,
        accounts=args.accounts or (),
        partitions=args.partition or (),
        states=tuple(parse_state(word) for word in args.state or ()),
        start=start,
        end=end,
        limit=min(args.limit, 10_000),
    )


def _numbers(args: argparse.Namespace) -> tuple[int, ...]:
    """Of the jobs that -j names. Raises GandivaError."""
    if args.study is not None:
        from controller.cli.study_trials import numbers as numbers_of_trials

        return tuple(numbers_of_trials(args, args.jobs))
    from controller.reports.job_ids import numbers
    from controller.reports.slurm_job import Scontrol

    ids, problems = numbers(common.job_words(args.jobs), Scontrol(), accounting=not args.no_sacct)
    for problem in problems:
        common.say(problem)
    return ids


def _layout(args: argparse.Namespace) -> Layout[Row]:
    from controller.reports.table import BRIEF_FORMAT, DEFAULT_FORMAT, LONG_FORMAT, Layout, parse_format

    usual = os.environ.get(_FORMAT) or DEFAULT_FORMAT
    preset = LONG_FORMAT if args.long else BRIEF_FORMAT if args.brief else usual
    parsable = args.parsable or args.parsable2
    return Layout(
        columns=parse_format(preset if args.format is None else args.format),
        header=not args.noheader,
        delimiter=(args.delimiter or "|") if parsable else None,
        trailing=args.parsable and not args.parsable2,
        size_unit=args.units,
    )
