# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva run`: the trials of a study on one's own GPUs, without an administrator."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli import common
from controller.errors import GandivaError

if TYPE_CHECKING:
    from controller.run.study import Study

_ABOUT = """\
Runs many trainings on the GPUs of this machine, or of the Slurm allocation
around it: they take turns, are packed, grow and shrink as on a cluster with
Gandiva. FILE (TOML) says which; without FILE each line of standard input is a
command.

The study is in a folder of its own. The same command again goes on with what is
left. Ctrl-C saves the trials that can be saved, and stops all.

Exit status: 0 all trials are completed, 1 some failed, 2 the file is wrong,
3 another process runs this study, 75 ended by a signal: start it again,
130 ended by Ctrl-C."""

_EXAMPLES = """\
  gandiva run trials.toml                   until all trials are over
  gandiva run trials.toml --dry-run         what would run, and on which GPUs
  gandiva run trials.toml --retry failed    those that failed once more
  gandiva run --gpus 0,1 --study lr < commands.txt
  gandiva top --study lr                    in another terminal"""

_OPTIONS = """
--study DIR         folder of the study (default: named as the study, beside FILE; needed without FILE)
-g --gpus LIST      use these GPUs, by index or UUID (default: those of CUDA_VISIBLE_DEVICES, else all)
-p --policy NAME    instead of the file's: gandiva, tiresias-las, …
--retry {failed,cancelled}
                    run trials that ended so once more
--open              further trials may be submitted (gandiva.Pool) until standard input ends, which then has
                    no commands
--dry-run           print the trials and the GPUs, start nothing"""


def add_parser(subparsers: common.Subparsers) -> None:
    parser = common.new_parser(subparsers, "run", "many trainings on one's own GPUs", _ABOUT, _EXAMPLES, run)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the study")
    common.add_options(parser, _OPTIONS, gpus={"type": common.words, "default": ()})


def run(args: argparse.Namespace) -> int:
    from controller.run.progress import plan
    from controller.run.study import StudyError
    from controller.run.supervisor import OTHER_SUPERVISOR, OtherSupervisor, Wishes, dry_run, supervise

    try:
        _require_no_gandiva_job()
        study, folder = _study(args)
        wishes = Wishes(
            gpus=tuple(args.gpus), retry=(args.retry.upper(),) if args.retry else (), open=args.open
        )
        if args.dry_run:
            found = dry_run(study, folder, wishes, os.environ)
            gpus = [f"{node.name}:{gpu.index} {gpu.model}" for node in found.nodes for gpu in node.gpus]
            print("\n".join(plan(study.trials, gpus)))
            return 0
        return supervise(study, folder, wishes, os.environ)
    except StudyError as error:
        common.say(str(error))
        return 2
    except OtherSupervisor as error:
        common.say(str(error))
        return OTHER_SUPERVISOR


def _study(args: argparse.Namespace) -> tuple[Study, Path]:
    from controller.run.study import StudyError, read_commands, read_study

    if args.file is not None:
        return read_study(args.file, args.study, args.policy, is_open=args.open)
    if sys.stdin.isatty() and not args.open:
        raise StudyError("name a study file, or give commands on standard input (gandiva run --help)")
    if args.study is None:
        raise StudyError("without FILE it needs --study DIR, the folder of the study")
    folder = args.study.absolute()
    lines = () if args.open else sys.stdin
    return read_commands(lines, folder, args.policy, is_open=args.open), folder


def _require_no_gandiva_job() -> None:
    if os.environ.get("GANDIVA_JOB") and not os.environ.get("GANDIVA_TRIAL"):
        raise GandivaError(
            "this is a job under Gandiva, whose GPUs are not its own all the time: submit an ordinary job "
            "(--no-gandiva) for a study"
        )
    if os.environ.get("GANDIVA_TRIAL"):
        raise GandivaError("this is a trial of a study, which shares its GPUs: it cannot run another study")
