# SPDX-License-Identifier: GPL-2.0-or-later
"""The shell completion that packages install offers every command and option, and works in the shell."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.cli.main import build_parser

GENERATOR = Path(__file__).resolve().parents[3] / "scripts" / "completion.py"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The completion of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    made = {}
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [sys.executable, str(GENERATOR), shell], capture_output=True, text=True, timeout=60, check=True
        )
        made[shell] = folder / shell
        made[shell].write_text(done.stdout)
    return made


def commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[str], list[str]]]:
    """Each command: the words that lead to it, the commands below it, its options."""
    below: dict[str, argparse.ArgumentParser] = {}
    options: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below |= action.choices
        elif action.help != argparse.SUPPRESS:
            options += action.option_strings
    yield path, list(below), options
    for name, child in below.items():
        yield from commands(child, (*path, name))


ALL = list(commands(build_parser(["slurm"])))


def complete_in_bash(script: Path, *words: str) -> set[str]:
    """What bash would offer for the last of these words."""
    program = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        specification=$(complete -p gandiva)
        function=${specification#*-F }; function=${function%% *}
        "$function" gandiva "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", str(script), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return {line.strip() for line in done.stdout.splitlines()}


@pytest.mark.parametrize(("path", "below", "options"), ALL, ids=[" ".join(p) or "gandiva" for p, _, _ in ALL])
def test_bash_offers_every_command_and_option(
    scripts: dict[str, Path], path: tuple[str, ...], below: list[str], options: list[str]
) -> None:
    if below:
        assert set(below) <= complete_in_bash(scripts["bash"], "gandiva", *path, "")
    assert set(options) <= complete_in_bash(scripts["bash"], "gandiva", *path, "-")


def test_bash_offers_choices_and_files(scripts: dict[str, Path], tmp_path: Path) -> None:
    units = complete_in_bash(scripts["bash"], "gandiva", "report", "--units", "")
    assert {"K", "M", "G"} <= units
    (tmp_path / "settings.toml").touch()
    files = complete_in_bash(scripts["bash"], "gandiva", "config", "check", f"{tmp_path}/se")
    assert files == {f"{tmp_path}/settings.toml"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_command_and_option(scripts: dict[str, Path], shell: str) -> None:
    text = scripts[shell].read_text()
    for path, below, options in ALL:
        for name in below:
            assert re.search(rf"^ +{name}:'|-a {name} ", text, re.MULTILINE), (path, name)
        for option in options:
            name = option.lstrip("-")
            forms = (f'"{option}', f"{{{option},", f",{option}}}", f"-l {name} ", f"-s {name} ")
            assert any(form in text for form in forms), (path, option)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_read_it(scripts: dict[str, Path], shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n", str(scripts[shell])], timeout=60, check=True)


def test_an_unknown_shell_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(GENERATOR), "csh"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and "bash, zsh or fish" in done.stderr
