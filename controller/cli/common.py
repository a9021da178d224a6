# SPDX-License-Identifier: GPL-2.0-or-later
"""Options that several subcommands have. Imports nothing slow, for the sake of `gandiva --help`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.api.client import ApiClient

Subparsers = argparse._SubParsersAction


def new_parser(
    subparsers: Subparsers[argparse.ArgumentParser], name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """A subcommand with a description and examples that keep their line breaks."""
    return subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """The option --config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="settings file (default: $GANDIVA_CONFIG, else /etc/gandiva/gandiva.toml)",
    )


def add_client(parser: argparse.ArgumentParser) -> None:
    """The options of every client of the controller's API."""
    add_config(parser)
    parser.add_argument("--url", metavar="URL", help="the controller's API, instead of what the settings say")
    parser.add_argument(
        "--deadline",
        metavar="SECONDS",
        type=positive_seconds,
        default=10.0,
        help="longest wait for its answer (default: 10)",
    )


def positive_seconds(text: str) -> float:
    """A time on the command line."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.05 to 3600")
    return value


def count(text: str, most: int = 100_000) -> int:
    """A count on the command line."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
    return int(text)


def job_number(text: str) -> int:
    """Slurm's number of a job."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a job id: expected Slurm's number of the job (for an array task its JobIDRaw)"
        )
    return int(text)


def client(args: argparse.Namespace) -> ApiClient:
    """The client for the controller that options and settings name. Raises SettingsError."""
    from controller.api.access import client_token
    from controller.api.client import ApiClient

    url, token_file, check = args.url, None, ""
    if url is None:
        from controller.settings.loading import client_settings, settings_path

        settings, path = client_settings(args.config), settings_path(args.config)
        url, token_file = settings.api_url, settings.api.token_file
        if not path.exists():
            check = (
                f"? There is no settings file {path} that says where it is: name the site's with --config "
                "or GANDIVA_CONFIG, or the controller with --url"
            )
    else:
        from controller.errors import SettingsError
        from controller.settings.base import check_url

        try:
            url = check_url(url)
        except ValueError as error:
            raise SettingsError(f"--url {url}: {error}") from None
    return ApiClient(url, deadline_seconds=args.deadline, token=client_token(token_file), check=check)


def terminal_columns() -> int:
    """Width of the terminal; 80 where there is none."""
    import shutil

    return max(40, shutil.get_terminal_size((80, 24)).columns)
