# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva journal`: look after the controller's journal."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from controller.cli.common import Subparsers, add_config, add_options, journal_path, new_parser

_ABOUT = """\
Look after the controller's journal, as root or as the user of the controller.
Old rows are deleted and a damaged file is replaced without this command."""

_VERIFY = """\
Check a journal: the file itself, its schema, and what must hold between its
rows (no job in two slices at once, totals equal to the sums of slices).
Changes nothing and may be used while the controller runs. Exit status 0: all
is well; 1: there are problems, or it cannot be read."""

_VACUUM = """\
Delete what is older than journal.retention_days and journal.detail_days, and
give the space back to the file system. Needs about as much free space as the
file is large. Refused while a controller leads: stop it first."""

_EXAMPLES = """\
  gandiva journal verify
  gandiva journal verify /var/lib/gandiva/journal.sqlite.damaged-20260101T120000
  systemctl stop gandiva; gandiva journal vacuum; systemctl start gandiva"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "journal", "look after the controller's journal", _ABOUT, _EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    verify = new_parser(actions, "verify", "check its consistency", _VERIFY, run=run_verify)
    vacuum = new_parser(actions, "vacuum", "free space", _VACUUM, run=run_vacuum)
    for action in (verify, vacuum):
        text = "the journal (default: journal.path in the settings)"
        action.add_argument("file", nargs="?", type=Path, metavar="FILE", help=text)
        if action is verify:
            add_options(action, "--json  as JSON")
        add_config(action)


def run_verify(args: argparse.Namespace) -> int:
    from controller.journal.verify import verify

    found = verify(_path(args))
    if args.json:
        print(json.dumps({**asdict(found), "path": str(found.path), "rows": dict(found.rows)}))
    else:
        rows = ", ".join(f"{count} {table}" for table, count in found.rows) or "nothing that can be read"
        print(f"{found.path}: schema {found.schema}, {found.size_bytes / 2**20:.1f} MiB, {rows}")
        for problem in found.problems:
            print(f"  problem  {problem}")
        print("The journal is damaged." if found.problems else "The journal is consistent.")
    return 1 if found.problems else 0


def run_vacuum(args: argparse.Namespace) -> int:
    from controller.journal.vacuum import vacuum
    from controller.settings.loading import load_settings, settings_path

    settings = load_settings(settings_path(args.config)).journal
    done = vacuum(_path(args), retention_days=settings.retention_days, detail_days=settings.detail_days)
    print(
        f"{done.rows_deleted} rows deleted; "
        f"{done.bytes_before / 2**20:.1f} MiB before, {done.bytes_after / 2**20:.1f} MiB now"
    )
    return 0


def _path(args: argparse.Namespace) -> Path:
    return journal_path(args) if args.file is None else Path(args.file)
