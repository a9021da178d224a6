# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva status`: the state of the controller."""

from __future__ import annotations

import argparse

from controller.cli.common import Subparsers, add_client, add_options, client, new_parser

_DESCRIPTION = """\
The state of the controller: its last turn, nodes, GPUs and jobs by state,
problems, and the last events. Exit status 0: it works; 1: it does not answer,
or it has problems."""

_EXAMPLES = """\
  gandiva status
  gandiva status --json | jq .gpus_by_use"""


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    parser = new_parser(subparsers, "status", "the state of the controller", _DESCRIPTION, _EXAMPLES, run)
    add_options(parser, "--json  as JSON")
    add_client(parser)


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from controller.reports.status import status_lines

    api = client(args)
    status = api.status()
    if args.json:
        print(status.model_dump_json())
    else:
        for line in status_lines(status, api.url):
            print(line)
    return 0 if status.healthy else 1
