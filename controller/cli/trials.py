# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva trials`: the jobs of searches for hyper-parameters."""

from __future__ import annotations

import argparse
import time as clock

from controller.cli import common
from controller.cli.study import study_of, takes_effect
from controller.cli.study_journal import journal_of_study
from controller.errors import GandivaError

_ABOUT = """\
The trials of your searches: jobs submitted with --gandiva-search=NAME. The
jobs of a search share the turns that they have together: you say which of them
come first. No other user's jobs get fewer turns by that.

With --study: the trials of gandiva run, by number or name, and SEARCH is left
out. It works while they do not run, too, and for the next gandiva run."""

_LIST = """\
Trials with their GPU time, mini-batches, rate (mini-batches per second on their
GPUs), priority, and whether they are exclusive. Without options: yours."""

_PRIORITY = """\
Give a job N turns of its search for each one that a job with priority 1 has,
from 0.01 to 100, from the next slice on."""

_EXCLUSIVE = """\
Let jobs of a search run without being sliced, as far as the turns of the search
go; the others share what is left. These are then the only exclusive ones: give
none to end it. A job becomes exclusive at the end of a slice."""

_STOP = """\
Cancel trials. Other jobs are left alone."""

_EXAMPLES = """\
  gandiva trials list lr
  gandiva trials priority 1234 4
  gandiva trials exclusive lr --top 2        those with the highest priorities
  gandiva trials exclusive lr 1234 1240      these two
  gandiva trials exclusive lr                none
  gandiva trials stop 1236 1238
  gandiva trials priority --study lr 3 4     trial 3 of gandiva run lr.toml
  gandiva trials exclusive --study lr 3 lr=0.1,seed=2"""


def add_parser(subparsers: common.Subparsers) -> None:
    parser = common.new_parser(
        subparsers, "trials", "the jobs of a hyper-parameter search", _ABOUT, _EXAMPLES
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    shown = common.new_parser(actions, "list", "show trials", _LIST, run=run_list)
    shown.add_argument("searches", nargs="*", metavar="SEARCH", help="of these alone (default: of all)")
    common.add_options(
        shown,
        """
-u --user NAME    searches of this user
-a --allusers     searches of all users
-n --noheader     without the header
-P --parsable2    with | between columns of any width
--limit N         among the newest N jobs (default: 10000)
--json            as JSON, one object per line""",
        limit={"default": 10_000},
    )
    text = "how many turns a job has in its search"
    set_ = common.new_parser(actions, "priority", text, _PRIORITY, run=run_priority)
    set_.add_argument("job", metavar="JOBID", help="job, or task of an array (12_3)")
    set_.add_argument("priority", metavar="N", type=_priority, help="from 0.01 to 100; at first 1")
    first = common.new_parser(
        actions, "exclusive", "which jobs are not sliced", _EXCLUSIVE, run=run_exclusive
    )
    first.add_argument("search", nargs="?", metavar="SEARCH", help="the search; none with --study")
    first.add_argument("jobs", nargs="*", metavar="JOBID", help="these jobs of it")
    common.add_options(
        first, "--top N  instead of jobs: the N with the highest priorities, of equal ones the older"
    )
    stop = common.new_parser(actions, "stop", "cancel trials", _STOP, run=run_stop)
    stop.add_argument("jobs", nargs="+", metavar="JOBID", help="jobs, or tasks of arrays (12_3)")
    common.add_study(stop)
    for action in (shown, set_, first):
        common.add_client(action)


def _priority(text: str) -> float:
    from gandiva.trials import MAX_PRIORITY, MIN_PRIORITY

    return common.number_in(text, MIN_PRIORITY, MAX_PRIORITY, f"from {MIN_PRIORITY:g} to {MAX_PRIORITY:g}")


def run_list(args: argparse.Namespace) -> int:
    from controller.cli.report import accounting_of
    from controller.journal import JobFilter
    from controller.reports.report import join
    from controller.reports.row import UNSEEN
    from controller.reports.trials import COLUMNS, STUDY_COLUMNS, trial_rows

    everybody = args.allusers or (args.study is not None and args.user is None)
    users = () if everybody else (args.user or common.own_name(),)
    source = journal_of_study(args, clock.time()) or common.client(args)
    jobs = source.jobs(JobFilter(users=users, limit=args.limit))
    unseen = [job for job in jobs.jobs if job.state == UNSEEN]
    vanished = accounting_of(unseen, study_of(args))
    jobs = jobs.model_copy(update={"jobs": [row.settled for row in join(jobs, vanished)]})
    rows = trial_rows(jobs, source.gpus(), args.searches)
    if args.study is not None:
        from controller.cli.study_trials import as_asked

        rows = as_asked(args, rows)
    common.print_rows(rows, COLUMNS if args.study is None else STUDY_COLUMNS, args)
    if jobs.truncated:
        common.say("there are more jobs; these are among the newest (--limit)")
    return 0


def run_priority(args: argparse.Namespace) -> int:
    if args.study is not None:
        from controller.cli.study_trials import set_priority

        set_priority(args)
        return _say_whether_it_counts(args)
    from gandiva import trials

    with common.errors_of(trials.TrialsError, ValueError):
        trial = trials.find(args.job)
        trials.say(trial, args.priority, exclusive=trial.exclusive)
        print(f"job {trial.job} of search {trial.search}: priority {args.priority:g}")
    return _say_whether_it_counts(args)


def run_exclusive(args: argparse.Namespace) -> int:
    jobs = args.jobs
    if args.study is not None:  # all of its trials are one search
        jobs = [word for word in (args.search, *args.jobs) if word is not None]
    elif args.search is None:
        raise GandivaError("trials exclusive: name the search")
    if args.top is not None and jobs:
        raise GandivaError("trials exclusive: give jobs or --top, not both")
    if args.study is not None:
        from controller.cli.study_trials import set_exclusive

        set_exclusive(args, jobs)
        return _say_whether_it_counts(args)
    from gandiva.trials import Search, TrialsError

    with common.errors_of(TrialsError, ValueError):
        search = Search(args.search)
        jobs = [trial.job for trial in search.top(args.top)] if args.top else jobs
        search.set_exclusive(jobs)
        print(f"search {args.search}: exclusive: {', '.join(jobs) or 'none'}")
    return _say_whether_it_counts(args)


def run_stop(args: argparse.Namespace) -> int:
    if args.study is not None:
        from controller.cli.study_trials import stop

        stop(args)
        if when := takes_effect(args):
            common.say(when)
        return 0
    from gandiva.trials import Search, TrialsError, find

    with common.errors_of(TrialsError, ValueError):
        for job in args.jobs:
            trial = find(job)
            Search(trial.search).stop(job)
            print(f"job {trial.job} of search {trial.search}: cancelled")
    return 0


def _say_whether_it_counts(args: argparse.Namespace) -> int:
    try:
        if args.study is not None and (when := takes_effect(args)):
            common.say(when)
            return 0
        policy = common.client(args).status().policy
    except GandivaError as error:
        common.say(f"written; whether its policy reads it cannot be told: {error}")
        return 0
    if policy != "gandiva":
        where = f"the policy {policy} of this {'cluster' if args.study is None else 'study'}"
        common.say(f"written, but {where} does not slice: it does not count there")
    return 0
