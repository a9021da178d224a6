# SPDX-License-Identifier: GPL-2.0-or-later
"""Options that several subcommands have. Imports nothing slow, for the sake of `gandiva --help`."""

import argparse
import json
import math
import os
import pwd
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from controller.errors import GandivaError, SettingsError

if TYPE_CHECKING:
    from controller.api.client import ApiClient
    from controller.reports.table import Column

_SPAN = "[0-9]{1,10}(?:-[0-9]{1,10}(?::[1-9][0-9]{0,9})?)?"
_TASKS = rf"\[{_SPAN}(?:,{_SPAN})*(?:%[0-9]{{1,10}})?\]"
_JOB = re.compile(rf"[0-9]{{1,10}}(?:[_+][0-9]{{1,10}}|_{_TASKS})?", re.ASCII)

_CONFIG = "--config FILE  settings file (default: $GANDIVA_CONFIG, else /etc/gandiva/gandiva.toml)"
_CLIENT = """
--url URL            the controller's API, instead of what the settings say
--deadline SECONDS   longest wait for its answer (default: 10)"""
_STUDY = "--study DIR  the study of gandiva run in this folder, instead of a cluster"

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def new_parser(
    subparsers: Subparsers,
    name: str,
    summary: str,
    description: str,
    examples: str = "",
    run: Callable[[argparse.Namespace], int] | None = None,
) -> argparse.ArgumentParser:
    """A subcommand with a description and examples that keep their line breaks. `run` carries it out; None:
    it has subcommands of its own."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def add_options(parser: argparse._ActionsContainer, lines: str, /, **more: dict[str, Any]) -> None:
    """Add options that are written down as --help shows them: names, name of the value, two blanks, help.

    Help goes on in indented lines. An option without a name of a value is a flag. `more`: other arguments of
    `add_argument`, by the option's long name; the name of the value says the type where they do not.
    """
    types = {"FILE": Path, "DIR": Path, "N": count, "SECONDS": positive_seconds}
    for entry in re.split(r"\n(?=-)", lines.strip()):
        names, text = re.split(r" {2,}|\n +", entry, maxsplit=1)
        how: dict[str, Any] = {"help": re.sub(r"\n *", " ", text)}
        *flags, value = names.split()
        if value.startswith("-"):
            flags.append(value)
            how["action"] = "store_true"
        elif value.startswith("{"):
            how["choices"] = value[1:-1].split(",")
        else:
            how |= {"metavar": value, "type": types.get(value, str)}
        parser.add_argument(*flags, **how | more.get(flags[-1][2:].replace("-", "_"), {}))


def add_config(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _CONFIG)


def add_client(parser: argparse.ArgumentParser) -> None:
    """It asks a controller, or about a study."""
    add_config(parser)
    add_options(parser, _CLIENT, deadline={"default": 10.0})
    add_study(parser)


def add_study(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _STUDY)


def number_in(text: str, least: float, most: float, words: str) -> float:
    """`words`: which numbers are allowed, for the message about any other."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {words}")
    return value


def positive_seconds(text: str) -> float:
    return number_in(text, 0.05, 3600, "of seconds from 0.05 to 3600")


def count(text: str, most: int = 100_000) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
    return int(text)


def job_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a job id: expected Slurm's number of the job (for an array task its JobIDRaw)"
        )
    return int(text)


def words(text: str, between: str = ",") -> tuple[str, ...]:
    """The parts of a list. `between`: what is between them, as a regular expression."""
    found = tuple(word for word in re.split(between, text) if word)
    if not found:
        raise argparse.ArgumentTypeError("the list is empty")
    if len(found) > 1000:
        raise argparse.ArgumentTypeError("at most 1000 names")
    return found


def job_words(text: str) -> tuple[str, ...]:
    """Jobs as sacct takes them, or writes them: `12,13_2,14_[0-3,7],15+1`."""
    found = words(text, r",(?![^\[]*\])")
    if wrong := next((word for word in found if not _JOB.fullmatch(word)), None):
        raise argparse.ArgumentTypeError(
            f"{wrong[:40]!r} is not a job id: 12, or 12_3 or 12_[0-3,7] for tasks of an array, 12+1 for a "
            "component of a heterogeneous job"
        )
    return found


def client(args: argparse.Namespace) -> "ApiClient":
    """The client for the controller that options and settings name. Raises GandivaError."""
    if args.study is not None:
        from controller.cli.study import client_of_study

        return client_of_study(args)
    from controller.api.access import client_token
    from controller.api.client import DOES_IT_RUN, ApiClient

    if args.url is not None:
        from controller.settings.base import check_url

        try:
            url = check_url(args.url)
        except ValueError as error:
            raise SettingsError(f"--url {args.url}: {error}") from None
        return ApiClient(url, deadline_seconds=args.deadline, token=client_token(None))
    from controller.settings.loading import client_settings, settings_path

    settings, path, check = client_settings(args.config), settings_path(args.config), ""
    if not path.exists():
        check = (
            f"{DOES_IT_RUN}? There is no settings file {path} that says where it is: name the site's with "
            "--config or GANDIVA_CONFIG, or the controller with --url"
        )
    token = client_token(settings.api.token_file)
    return ApiClient(settings.api_url, deadline_seconds=args.deadline, token=token, check=check)


def journal_path(args: argparse.Namespace) -> Path:
    """The controller's journal. Raises SettingsError."""
    from controller.settings.loading import load_settings, settings_path

    return load_settings(settings_path(args.config)).journal.path


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: "tuple[Column[Any], ...]", args: argparse.Namespace
) -> None:
    """A table by --noheader and --parsable2; with --json an object a line."""
    from controller.reports.table import Layout, render

    table = render(rows, Layout(columns, not args.noheader, "|" if args.parsable2 else None))
    for line in map(json.dumps, rows) if args.json else table:
        print(line)


def say(text: str) -> None:
    """Tell the user, beside what the command prints."""
    print(f"gandiva: {text}", file=sys.stderr)


@contextmanager
def errors_of(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds, whose text is for users, become GandivaError."""
    try:
        yield
    except kinds as error:
        raise GandivaError(str(error)) from error


def terminal_columns() -> int:
    """Width of the terminal; 80 where there is none."""
    import shutil

    return max(40, shutil.get_terminal_size((80, 24)).columns)


def own_name() -> str:
    """The name of the user who runs the command; the number where there is none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
