# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva daemon`: the controller itself."""

import argparse

from controller.cli.common import Subparsers, add_config, add_options, new_parser

_ABOUT = """\
Run the Gandiva controller: it observes Slurm and the GPU nodes, decides which
jobs are on which GPUs, and carries that out. One leads, others are on standby.
SIGHUP reads the settings again; SIGTERM ends it, and jobs go on as they are
(or as daemon.at_stop says)."""

_EXAMPLES = """\
  systemctl start gandiva                     as a service
  gandiva daemon -D --config ./gandiva.toml   in the foreground"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "daemon", "run the controller", _ABOUT, _EXAMPLES, run)
    add_options(parser, "-D --foreground  stay in the foreground (for systemd and for tests)")
    add_config(parser)


def run(args: argparse.Namespace) -> int:
    """Returns when the daemon has ended or, without -D, is in the background."""
    from controller.cli.outputs import refuse_inputs
    from controller.daemon.daemon import run as run_daemon
    from controller.settings.loading import load_settings, settings_path

    path = settings_path(args.config)
    settings = load_settings(path)
    if settings.log.file is not None:
        read = {"--config": path, "journal.path": settings.journal.path}
        read |= {"nodes.ssh_key": settings.nodes.ssh_key, "nodes.known_hosts": settings.nodes.known_hosts}
        refuse_inputs("log.file", settings.log.file, read)
    return run_daemon(path, foreground=args.foreground)
