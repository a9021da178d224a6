# SPDX-License-Identifier: GPL-2.0-or-later
"""The command `gandiva`."""

import argparse
import atexit
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence

from controller import __version__
from controller.cli.common import say
from controller.cli.entry import OF_COMMANDS, missing
from controller.errors import GandivaError

COMMANDS = tuple(OF_COMMANDS)
"""Each a module here, in the order of the help."""

_ABOUT = """\
Deep-learning jobs share the GPUs of a Slurm cluster in turn.

Users submit with `sbatch --gandiva …` (see sbatch --help); the commands here
show what becomes of the jobs. Administrators run the controller with `gandiva
daemon` (a systemd unit does) and set it up with `gandiva config`."""

_EPILOG = """\
examples:
  gandiva top                    the GPUs and the jobs on them, live
  gandiva report -S now-1hours   jobs of the last hour with their GPU time
  gandiva explain 1234           why job 1234 waits, runs or moved

Each command has a --help and a manual page of its own; gandiva(1) names them.
Settings are in gandiva.toml(5)."""


def build_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser. By `arguments` it loads the parts that are needed."""
    parser = argparse.ArgumentParser(
        prog="gandiva",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"gandiva {__version__}")
    # With `prog` argparse does not load shutil for the width of the terminal.
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, prog="gandiva"
    )
    # A command that comes first needs none of the others.
    for name in arguments[:1] if set(arguments[:1]) & set(COMMANDS) else COMMANDS:
        options = {"with_slurm": "slurm" in arguments} if name == "config" else {}
        importlib.import_module(f"controller.cli.{name}").add_parser(subparsers, **options)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit status: 0 done, 1 failed (one message on standard error), 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Without it pydantic searches all installed packages for plugins, and loads them.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Without it the interpreter collects garbage just before it exits.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names may have characters that the terminal's encoding lacks.
            stream.reconfigure(errors="replace")
    try:
        parser = build_parser(arguments)
        args = parser.parse_args(arguments)
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except argparse.ArgumentTypeError as error:  # of words whose form follows from another option
        parser.error(str(error))
    except GandivaError as error:
        say(str(error))
        return 1
    except ModuleNotFoundError as error:
        command = next(word for word in arguments if word in OF_COMMANDS)
        print(missing(error, f"gandiva {command}", OF_COMMANDS[command]), file=sys.stderr)
        return 1
    except PermissionError as error:
        say(f"{error.filename or 'a file'}: {error.strerror}")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, such as less or head, has ended: nothing can be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
