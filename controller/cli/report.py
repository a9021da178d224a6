# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva report`: jobs and their use of GPUs, in the manner of sacct."""

from __future__ import annotations

import argparse
import os
import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.common import Subparsers, add_client, client, count, job_number, new_parser
from controller.cli.outputs import check_outputs

if TYPE_CHECKING:
    from controller.journal import JobFilter
    from controller.reports.report import Source
    from controller.reports.row import Row
    from controller.reports.sacct import Accounting
    from controller.reports.table import Layout

_DESCRIPTION = """\
Jobs under Gandiva and the GPU time they got, with the options of sacct.
Without options: your own jobs since midnight, and for root those of all users.
With -j: these jobs, of any user and at any time.

The numbers come from the controller; final states, exit codes and array
indices from sacct where it answers."""

_EXAMPLES = """\
  gandiva report                            your jobs of today
  gandiva report -a -S now-2hours -s CD,F   all users' jobs, completed or failed
  gandiva report -j 1234,1240 -l            two jobs, all columns
  gandiva report -u alice -o JobID,GPUTime,Share,Reason%-60
  gandiva report -a -S 2024-05-01 -E 2024-06-01 -P > may.txt
  gandiva report -a -S now-1days --html day.html
  gandiva report --json | jq '.jobs[] | {job_id, share_fraction}'"""


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add it to the commands."""
    parser = new_parser(subparsers, "report", "jobs and their GPU time, like sacct", _DESCRIPTION, _EXAMPLES)

    which = parser.add_argument_group("which jobs")
    which.add_argument("-j", "--jobs", metavar="LIST", type=_numbers, help="these jobs (job ids with commas)")
    which.add_argument("-u", "--user", metavar="LIST", type=_words, help="jobs of these users")
    which.add_argument("-a", "--allusers", action="store_true", help="jobs of all users")
    which.add_argument("-A", "--accounts", metavar="LIST", type=_words, help="jobs of these accounts")
    which.add_argument("-r", "--partition", metavar="LIST", type=_words, help="jobs of these partitions")
    which.add_argument(
        "-s",
        "--state",
        metavar="LIST",
        type=_words,
        help="jobs in these states: names, or codes such as CD,F,R,S",
    )
    which.add_argument(
        "-S",
        "--starttime",
        metavar="TIME",
        help="jobs that had not ended before TIME (default: midnight; with -j no limit). As in sacct: "
        "YYYY-MM-DD[THH:MM[:SS]], MMDD[YY], HH:MM, midnight, noon, now-2hours, …",
    )
    which.add_argument("-E", "--endtime", metavar="TIME", help="jobs submitted by TIME (default: now)")
    which.add_argument(
        "--limit", metavar="N", type=count, default=10_000, help="the newest N jobs (default: 10000)"
    )

    how = parser.add_argument_group("how to print them")
    how.add_argument(
        "-o",
        "--format",
        metavar="LIST",
        help="columns: NAME, NAME%%WIDTH, NAME%%-WIDTH to the left (default: $GANDIVA_REPORT_FORMAT, else a "
        "table of 80 columns)",
    )
    how.add_argument("-b", "--brief", action="store_true", help="job, state, GPU time and share")
    how.add_argument("-l", "--long", action="store_true", help="all columns of interest")
    how.add_argument("-e", "--helpformat", action="store_true", help="list the columns and end")
    how.add_argument("-n", "--noheader", action="store_true", help="no header")
    how.add_argument(
        "-p", "--parsable", action="store_true", help="values between |, one | at the end of a line"
    )
    how.add_argument("-P", "--parsable2", action="store_true", help="values between |")
    how.add_argument("--delimiter", metavar="TEXT", help="between the values of -p and -P, instead of |")
    how.add_argument(
        "--units", metavar="UNIT", choices=tuple("KMGTP"), default="", help="sizes in K, M, G, T or P (bytes)"
    )
    how.add_argument("--json", action="store_true", help="as JSON: all values, in seconds and bytes")
    how.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write a page for browsers instead: who was on which GPU when and why, waiting times",
    )
    how.add_argument(
        "-X", "--allocations", action="store_true", help="accepted for habit: there are no steps here"
    )

    source = parser.add_argument_group("where from")
    source.add_argument("--no-sacct", action="store_true", help="do not ask sacct")
    source.add_argument(
        "--journal", metavar="FILE", type=Path, help="read this journal instead of asking the controller"
    )
    add_client(parser)
    parser.set_defaults(run=run)


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word for word in text.split(",") if word)
    if not words:
        raise argparse.ArgumentTypeError("the list is empty")
    if len(words) > 1000:
        raise argparse.ArgumentTypeError("at most 1000 names")
    return words


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(job_number(word) for word in _words(text))


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    from controller.reports.report import JournalSource, as_json, join, unsuspendable
    from controller.reports.table import help_format, render

    if args.helpformat:
        sys.stdout.write(help_format())
        return 0
    if args.html is not None:
        check_outputs({"--html": args.html}, _inputs(args))
    now = clock.time()
    layout, which = _layout(args), _filter(args, now)
    source: Source = JournalSource(args.journal, now) if args.journal else client(args)
    jobs = source.jobs(which)
    rows = join(jobs, {} if args.no_sacct else _accounting([job.job_id for job in jobs.jobs]))
    if args.html is not None:
        return _write_page(args.html, source, which, rows, now, truncated=jobs.truncated)
    lines = as_json(rows, truncated=jobs.truncated) if args.json else render(rows, layout)
    for line in lines:
        print(line)
    for warning in unsuspendable(rows):
        print(f"gandiva: {warning}", file=sys.stderr)
    if jobs.truncated:
        print(f"gandiva: there are more; these are the newest {len(rows)} (--limit)", file=sys.stderr)
    return 0


def _inputs(args: argparse.Namespace) -> dict[str, Path | None]:
    """All files that are read, by what names them."""
    from controller.settings.loading import settings_path

    inputs: dict[str, Path | None] = {"--config": settings_path(args.config), "--journal": args.journal}
    if args.journal is not None:
        # SQLite keeps the latest changes in files of their own.
        inputs |= {f"--journal{end}": Path(f"{args.journal}{end}") for end in ("-wal", "-shm")}
    return inputs


def _write_page(
    path: Path, source: Source, which: JobFilter, rows: list[Row], now: float, *, truncated: bool
) -> int:
    from controller.journal.reader import MAX_SLICES
    from controller.reports.html.data import Contents
    from controller.reports.html.page import write
    from controller.reports.when import InvalidTime

    end = now if which.end is None else min(now, which.end)
    # With -j there is no start: the page begins with the first submission.
    start = (
        which.start if which.start is not None else min([r.job.submit_time for r in rows], default=end - 1)
    )
    if start >= end:
        raise InvalidTime("--starttime is not before now: there is nothing to draw yet")
    timeline = source.timeline(start, end, MAX_SLICES)
    notices = []
    if truncated:
        notices.append(f"There were more jobs: these are the newest {len(rows)} (--limit).")
    if timeline.truncated:
        notices.append(
            f"There were more times on GPUs: these are the newest {len(timeline.slices)}, and what was "
            "before them looks idle here. Ask for a shorter time (-S, -E)."
        )
    size = write(Contents(rows, timeline.slices, source.gpus(), start, end, now, notices), path)
    for notice in notices:
        print(f"gandiva: {notice}", file=sys.stderr)
    print(f"{path}: {len(rows)} jobs, {len(timeline.slices)} times on GPUs, {size / 1e6:.1f} MB")
    return 0


def _accounting(job_ids: list[int]) -> dict[int, Accounting]:
    from controller.reports.sacct import SacctFailed, ask_sacct

    if not job_ids:
        return {}
    try:
        return dict(ask_sacct(job_ids))
    except SacctFailed as error:
        # A host without sacct has no accounting to miss.
        if "there is no" not in str(error):
            print(f"gandiva: {error}; reporting without it", file=sys.stderr)
        return {}


def _filter(args: argparse.Namespace, now: float) -> JobFilter:
    from controller.journal import JobFilter
    from controller.reports.states import parse_state
    from controller.reports.when import InvalidTime, parse_time

    users = args.user or ()
    if not users and not args.allusers and not args.jobs and os.geteuid() != 0:
        users = (_own_name(),)
    # As in sacct.
    start = None if args.jobs else parse_time("midnight", now)
    if args.starttime is not None:
        start = parse_time(args.starttime, now)
    end = parse_time(args.endtime, now) if args.endtime is not None else None
    if start is not None and end is not None and end < start:
        raise InvalidTime("--endtime is before --starttime (which is midnight unless given)")
    return JobFilter(
        job_ids=args.jobs or (),
        users=() if args.allusers else users,
        accounts=args.accounts or (),
        partitions=args.partition or (),
        states=tuple(parse_state(word) for word in args.state or ()),
        start=start,
        end=end,
        limit=min(args.limit, 10_000),
    )


def _own_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _layout(args: argparse.Namespace) -> Layout:
    from controller.reports.columns import BRIEF_FORMAT, DEFAULT_FORMAT, LONG_FORMAT
    from controller.reports.table import Layout, parse_format

    text = args.format
    if text is None and args.long:
        text = LONG_FORMAT
    if text is None and args.brief:
        text = BRIEF_FORMAT
    if text is None:
        text = os.environ.get("GANDIVA_REPORT_FORMAT") or DEFAULT_FORMAT
    parsable = args.parsable or args.parsable2
    return Layout(
        columns=parse_format(text),
        header=not args.noheader,
        delimiter=(args.delimiter or "|") if parsable else None,
        trailing=args.parsable and not args.parsable2,
        size_unit=args.units,
    )
