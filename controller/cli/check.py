# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva check`: examines an installation."""

import argparse

from controller.cli.common import Subparsers, add_config, add_options, new_parser, terminal_columns

_ABOUT = """\
Examine an installation from the controller's host: Slurm's options and files,
the GPUs as Slurm and as the nodes have them, the agents, clocks, permissions,
the journal, the API. Says what is wrong and which line to change. Changes
nothing, and works when the controller does not run. Run it as root or as the
daemon's user: others may not read the key to the nodes. Any user may run it on
a login node, where it leaves out the controller's own files and the agents.

Exit status 0: all is well; 1: warnings; 2: errors."""

_EXAMPLES = """\
  gandiva check                   everything
  gandiva check -q                only what is not as it should be
  gandiva check --nodes n1,n2     these nodes only
  gandiva check --json | jq '.findings[] | select(.level == "error")'"""

_OPTIONS = """
-q --quiet           only warnings and errors
--json               as JSON
--nodes LIST         only these nodes, such as n[1-4],n7 (default: all)
--user NAME          user that the daemon runs as (default: gandiva)
--cluster FILE       also compare Slurm's files with what gandiva config slurm makes of this description
--deadline SECONDS   longest wait for each part (default: 20)"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "check", "examine an installation", _ABOUT, _EXAMPLES, run)
    add_options(
        parser,
        _OPTIONS,
        nodes={"type": _nodes, "default": ()},
        user={"default": "gandiva"},
        deadline={"default": 20.0},
    )
    add_config(parser)


def _nodes(text: str) -> tuple[str, ...]:
    from controller.cluster.hostlist import expand

    try:
        return expand(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    import asyncio
    import logging

    from controller.checks.finding import Level, as_json, exit_status, table
    from controller.checks.gather import Request, examine
    from controller.settings.loading import settings_path

    # Messages of the SSH library about broken connections are in the findings.
    for name in ("paramiko", "controller", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    request = Request(settings_path(args.config), args.user, args.deadline, args.nodes, args.cluster)
    findings = asyncio.run(examine(request))
    shown = [f for f in findings if f.level is not Level.OK] if args.quiet else findings
    print(as_json(shown) if args.json else "\n".join(table(shown, terminal_columns())))
    return exit_status(findings)
