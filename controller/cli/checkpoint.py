# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva checkpoint`: what is in a checkpoint store."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from checkpointing.store import StoreError
from checkpointing.store.overview import Overview, overview, tidy
from controller.cli.common import Subparsers, add_options, errors_of, new_parser

_DESCRIPTION = """\
Look at the generations in a checkpoint store, check them, and remove old ones.
A job may write there meanwhile. Nothing that a user has put there is followed."""

_LIST = """\
Show the generations, the newest first, with their step, ranks, size and time.
Files are not read: a generation is complete when manifests agree and every
file has its size. Exit status 0: all are; 1: one is not, or nothing can be read."""

_VERIFY = """\
Read every file and compare its checksum with the manifest's. Exit status 0: all
generations are valid; 1: one is not, there is none, or nothing can be read."""

_PRUNE = """\
Remove the generations that are older than the newest complete ones, and what
killed writers left behind. What a living writer writes is left alone."""

_EXAMPLES = """\
  gandiva checkpoint list run7
  gandiva checkpoint verify run7 && echo all valid
  gandiva checkpoint prune --keep 1 run7"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "checkpoint", "what is in a checkpoint store", _DESCRIPTION, _EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    shown = new_parser(actions, "list", "show its generations", _LIST, run=run_list)
    verify = new_parser(actions, "verify", "compare all checksums", _VERIFY, run=run_verify)
    prune = new_parser(actions, "prune", "remove old generations", _PRUNE, run=run_prune)
    for action in (shown, verify, prune):
        action.add_argument("dir", type=Path, metavar="DIR", help="the store's folder")
    for action in (shown, verify):
        add_options(action, "--json  as JSON")
    add_options(verify, "--generation N  only this one")
    add_options(prune, "--keep N  complete generations that stay (default: 2)", keep={"default": 2})


def run_list(args: argparse.Namespace) -> int:
    with errors_of(StoreError):
        found = overview(args.dir)
    _print(found, args.json, "complete")
    return int(any(row.problem for row in found.rows))


def run_verify(args: argparse.Namespace) -> int:
    with errors_of(StoreError):
        found = overview(args.dir, True, args.generation)
    _print(found, args.json, "valid")
    return int(not found.rows or any(row.problem for row in found.rows))


def run_prune(args: argparse.Namespace) -> int:
    with errors_of(StoreError):
        removed, left = tidy(args.dir, args.keep)
    numbers = ", ".join(str(number) for number in removed)
    print(f"removed: {numbers}" if removed else "no generation was removed")
    for name in left:
        print(f"left alone, its writer may live: {name!a}")
    return 0


def _print(found: Overview, as_json: bool, good: str) -> None:
    if as_json:
        print(json.dumps(asdict(found)))
        return
    print(f"{'GENERATION':>10} {'STEP':>12} {'RANKS':>6} {'MIB':>12} {'WRITTEN':20} STATE")
    for row in found.rows:
        state = f"not {good}: {row.problem}" if row.problem else good
        print(
            f"{row.number:10} {row.step:12} {row.world_size:6} {row.data_bytes / 2**20:12.1f} "
            f"{row.written_at:20} {state}"
        )
    for name in found.leftovers:
        print(f"being written or removed, or left by a killed writer: {name!a}")
