# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva top`: the GPUs and the jobs on them, live."""

import argparse
import sys

from controller.cli.common import Subparsers, add_client, add_options, client, count, new_parser, own_name
from controller.cli.study import study_folder, words_of
from controller.reports.top import KEYS

_ABOUT = f"""\
The GPUs and the jobs on them, live: which job holds each GPU, how busy it is,
which jobs wait for their turn, and what part of its time each job has had on
GPUs.

keys:
{KEYS}"""

_EXAMPLES = """\
  gandiva top                 every 2 seconds, q quits
  gandiva top -d 0.5 -u alice
  gandiva top -1 > now.txt    one picture, for pipes and files"""

_OPTIONS = """
-d --interval SECONDS   time between two pictures (default: 2)
-1 --once               print one picture and end
-u --user NAME          only the jobs of this user in the list of jobs
-w --width COLUMNS      width of the picture (default: the terminal's)
--color {auto,always,never}
                        colours (default: auto, where the output is a terminal and NO_COLOR is not set)"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "top", "the GPUs and the jobs on them, live", _ABOUT, _EXAMPLES, run)
    add_options(parser, _OPTIONS, interval={"default": 2.0}, width={"type": count}, color={"default": "auto"})
    add_client(parser)


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from controller.reports.top.frame import Frame
    from controller.reports.top.screen import Screen, print_picture
    from controller.reports.top.view import ASCII, UNICODE, View

    console = Console(
        width=args.width,
        force_terminal=True if args.color == "always" else None,
        no_color=True if args.color == "never" else None,
        color_system="truecolor" if args.color == "always" else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
    glyphs = UNICODE if "utf" in console.encoding.lower() else ASCII
    view = View(user=args.user, glyphs=glyphs, interval_seconds=args.interval, words=words_of(args))
    api = client(args)
    if args.once or not sys.stdout.isatty():
        print_picture(console, Frame(api.gpus(), view))
        return 0
    trials = study_folder(args).trials if args.study is not None else None
    return Screen(api, console, view, args.user or own_name(), trials).run()
