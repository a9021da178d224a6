# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva config slurm`: print or write Slurm's configuration for a described cluster."""

import argparse
import re
import sys
from dataclasses import asdict

from controller.cli.common import Subparsers, add_options, say
from controller.cli.outputs import refuse_inputs
from controller.cluster.gres import taken_for_one
from controller.slurm_config.description import SlurmConfigError, load
from controller.slurm_config.fragments import PARTS, Options, render, write

_OPTIONS = f"""
--cluster FILE         its description, TOML
--output-dir DIR       write the files below DIR
--part {{{",".join(PARTS)}}}
                       only this part
--force                overwrite files that have other content
--sysconfdir DIR       Slurm's configuration folder (default: %(default)s)
--jobside DIR          folder of the Python package that jobs import (default: %(default)s)
--run-dir DIR          root of the control blocks; %%n is the Slurm node name (default: %(default)s)
--spank-plugin PATH    the SPANK plugin, a path or a name in PluginDir (default: %(default)s)"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "slurm",
        help="make gres.conf and the slurm.conf, plugstack, cgroup and job_submit fragments",
        description="Make Slurm's configuration for a cluster from one description of it (TOML). "
        "Without --output-dir the files are printed, each under a line with its name.",
    )
    defaults = {name: {"default": value, "type": str} for name, value in asdict(Options()).items()}
    add_options(parser, _OPTIONS, cluster={"required": True}, **defaults)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    options = Options(args.sysconfdir, args.jobside, args.run_dir, args.spank_plugin)
    if problem := _wrong_path(options):
        raise SlurmConfigError(problem)
    description = load(args.cluster)
    if same := taken_for_one(description.shared_types):
        say(f"{same} (docs/plugin.md)")
    files = render(description, options, [args.part] if args.part else None)
    if args.output_dir is None:
        sys.stdout.write("\n".join(f"### {name}\n{text}" for name, text in files.items()))
        return 0
    for name in files:
        refuse_inputs("--output-dir", args.output_dir / name, {"--cluster": args.cluster})
    try:
        written = write(files, args.output_dir, force=args.force)
    except OSError as error:
        where = error.filename or args.output_dir
        raise SlurmConfigError(f"cannot write {where}: {error.strerror}") from error
    for path in written:
        print(f"wrote {path}")
    if not written:
        print(f"nothing to do: all {len(files)} files in {args.output_dir} are up to date")
    return 0


def _wrong_path(options: Options) -> str | None:
    """What is wrong with a path: they go into lines that Slurm splits at blanks, and into scripts."""
    paths = {"--sysconfdir": options.sysconfdir, "--jobside": options.jobside, "--run-dir": options.run_dir}
    for flag, path in paths.items():
        if re.fullmatch(r"/[\w/.%+-]*", path, re.ASCII) is None:
            return f"{flag} {path!r}: expected an absolute path of letters, digits and /._-+%"
    if re.fullmatch(r"[\w/.+-]*", options.spank_plugin, re.ASCII) is None:
        return f"--spank-plugin {options.spank_plugin!r}: expected a path of letters, digits and /._-+"
    return None
