# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva config`: show, check and make settings."""

import argparse
import json
import sys
from pathlib import Path

from controller.cli.common import Subparsers, add_config, add_options, new_parser

_EXAMPLES = """\
  gandiva config sample > gandiva.toml   every key, to be edited
  gandiva config check gandiva.toml      is it valid?
  gandiva config show                    what is in force
  gandiva config slurm --cluster cluster.toml
                                         gres.conf and slurm.conf parts"""


def add_parser(subparsers: Subparsers, *, with_slurm: bool) -> None:
    """`with_slurm`: load the parser of `config slurm` too (it is slow)."""
    text = "Settings of the controller, and the configuration of Slurm that goes with it."
    parser = new_parser(subparsers, "config", "show, check and make settings", text, _EXAMPLES)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    text = "Print the settings in force, as TOML."
    show = new_parser(commands, "show", "print the settings in force", text, run=run_show)
    add_config(show)
    add_options(show, "--json  as JSON")

    text = "Check a settings file. Exit status 0: it is valid; 1: it is not, and a message says why."
    check = new_parser(commands, "check", "check a settings file", text, run=run_check)
    check.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the file (default: as --config)")
    add_config(check)

    text = "Print a settings file with every key, its meaning, limits and default."
    new_parser(commands, "sample", "print a settings file with every key", text, run=run_sample)

    if with_slurm:
        from controller.cli.config_slurm import add_parser as add_slurm

        add_slurm(commands)
    else:
        commands.add_parser("slurm", help="make gres.conf and the slurm.conf, plugstack and cgroup fragments")


def run_show(args: argparse.Namespace) -> int:
    from controller.settings.generate import show
    from controller.settings.loading import client_settings, settings_path

    path = settings_path(args.config)
    settings = client_settings(args.config)
    if args.json:
        print(json.dumps(settings.model_dump(mode="json"), indent=2))
    else:
        source = str(path) if path.exists() else f"the defaults (there is no settings file {path})"
        sys.stdout.write(show(settings, source))
    return 0


def run_check(args: argparse.Namespace) -> int:
    from controller.policies.assemble import make_policy
    from controller.policies.site import find_part
    from controller.settings.loading import load_settings, settings_path

    path = settings_path(args.file or args.config)
    settings = load_settings(path)
    make_policy(settings.policy)
    for name in filter(None, (*settings.policy.parts.values(), settings.simulation.progress)):
        find_part(name)
    print(f"{path}: valid")
    for each in settings.policy.deprecated:
        print(f"note: {each}")
    for key, needed in (
        ("nodes.ssh_key", settings.nodes.ssh_key),
        ("nodes.known_hosts", settings.nodes.known_hosts),
        ("journal.path", settings.journal.path.parent),
    ):
        try:
            missing = not needed.exists()
        except OSError as error:
            print(f"note: {key}: cannot examine {needed}: {error.strerror}")
            continue
        if missing:
            print(f"note: {key}: there is no {needed} on this host (the daemon needs it)")
    return 0


def run_sample(_args: argparse.Namespace) -> int:
    from controller.settings.generate import sample

    sys.stdout.write(sample())
    return 0
