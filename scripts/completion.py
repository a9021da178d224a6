#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes the shell completion of `gandiva` from its own parser: `completion.py bash|zsh|fish > FILE`.

Made when a package is built, not kept: so it cannot fall behind the command. bash and zsh are shtab's work;
fish, which shtab does not know, is a list of `complete` commands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from controller.cli.main import build_parser

FILES = frozenset({"FILE", "SNAPSHOT", "TRACE", "PATH"})
FOLDERS = frozenset({"DIR", "FOLDER"})


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands right below a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def walk(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """The parser and all below it, each with the words that lead there."""
    yield path, parser
    for name, below in subcommands(parser).items():
        yield from walk(below, (*path, name))


def takes_file(action: argparse.Action) -> str | None:
    """`file` or `folder` where a path is expected."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if metavar in FOLDERS:
        return "folder"
    return "file" if metavar in FILES or action.type is Path else None


def by_shtab(shell: str) -> str:
    """bash and zsh."""
    import shtab

    parser = build_parser(["slurm"])
    for _path, below in walk(parser):
        for action in below._actions:
            kind = takes_file(action)
            if kind is not None and not action.choices:
                action.complete = shtab.DIR if kind == "folder" else shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell))


def fish() -> str:
    """fish: an option is offered behind the words of its command, a command until one is there."""
    lines = ["# Completion of gandiva for fish, made from its parser.", "complete -c gandiva -f"]
    for path, parser in walk(build_parser(["slurm"])):
        below = subcommands(parser)
        seen = [f"__fish_seen_subcommand_from {word}" for word in path]
        here = "; and ".join(seen) or "true"
        none = f"{here}; and not __fish_seen_subcommand_from {' '.join(below)}"
        for name in below:
            words = f"-a {name} -d {_quoted(_help_of(parser, name))}"
            lines.append(f"complete -c gandiva -n {_quoted(none)} {words}")
        for action in parser._actions:
            if action.option_strings and action.help != argparse.SUPPRESS:
                lines.append(_fish_option(action, none if below else here))
    return "\n".join(lines) + "\n"


def _fish_option(action: argparse.Action, condition: str) -> str:
    words = ["complete -c gandiva", f"-n {_quoted(condition)}"]
    for option in action.option_strings:
        name = option.lstrip("-")
        kind = "-l" if option.startswith("--") else "-s" if len(name) == 1 else "-o"
        words.append(f"{kind} {name}")
    if action.nargs != 0:
        words.append("-r" if takes_file(action) is None else "-r -F")
    if action.choices:
        words.append(f"-a {_quoted(' '.join(map(str, action.choices)))}")
    return " ".join([*words, f"-d {_quoted(_expanded(action))}"])


def _help_of(parser: argparse.ArgumentParser, name: str) -> str:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                if choice.dest == name:
                    return choice.help or ""
    return ""


def _expanded(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "gandiva"} if action.help else ""


def _quoted(text: str) -> str:
    """In fish's single quotes only \\ and ' are special."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def main(arguments: list[str]) -> int:
    """Print the completion of one shell."""
    if len(arguments) != 1 or arguments[0] not in {"bash", "zsh", "fish"}:
        print("completion.py: expected one word: bash, zsh or fish", file=sys.stderr)
        return 2
    print(fish() if arguments[0] == "fish" else by_shtab(arguments[0]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
