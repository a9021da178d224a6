# SPDX-License-Identifier: GPL-2.0-or-later
"""The command of a trial: a string is for the shell, a list is executed as it is."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any

SHELL = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
"""Bash first: in others `train.py &> log` means a command in the background."""
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_SETS_GPUS = re.compile(r"\s*(?:(?:export|env|exec)\s+)?(?:\w+=\S*\s+)*CUDA_VISIBLE_DEVICES=")


def require_command(given: Any) -> Any:
    """Raises ValueError."""
    if not isinstance(given, str) and not (
        isinstance(given, list) and all(isinstance(w, str) for w in given)
    ):
        raise ValueError("must be a string for the shell, or a list of strings: the command's words")
    return require_text(given)


def require_text(given: Any) -> Any:
    """What a process can be given. Raises ValueError."""
    for text in map(str, given if isinstance(given, list) else [given]):
        if "\0" in text or text.encode("utf-8", "replace").decode() != text:
            raise ValueError("must be UTF-8 text without a character of number 0")
    return given


def words(command: str | list[str], values: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What is executed. `values`: to be put in for their names in braces. Raises ValueError."""
    if isinstance(command, list):
        found = tuple(w if values is None else _filled(w, values, shell=False) for w in command)
    else:
        text = command if values is None else _filled(command, values, shell=True)
        if _SETS_GPUS.match(text):
            raise ValueError("leave CUDA_VISIBLE_DEVICES out: each trial gets GPUs that are free")
        # A quote that has no end is an error here.
        found = (SHELL, "-c", text.strip()) if shlex.split(text, comments=True) else ()
    if not any(found[:1]):
        raise ValueError("is missing, in [trial] or here")
    return found


def shown(command: tuple[str, ...]) -> str:
    """As its user would type it."""
    return command[2] if command[:2] == (SHELL, "-c") and len(command) == 3 else shlex.join(command)


def _filled(text: str, values: Mapping[str, Any], *, shell: bool) -> str:
    """`text` with values in place of `{name}`. `shell`: each stays one word there, also between quotes."""
    filled = ""
    try:
        for literal, name, spec, conversion in Formatter().parse(text):
            filled += literal
            if name is None:
                continue
            if name not in values or conversion:
                raise ValueError(f"{{{name}}} is no value of the trial (there are {', '.join(values)})")
            given = format(values[name], spec or "")
            around = _open_quote(filled) if shell else ""
            filled += f"{around}{shlex.quote(given)}{around}" if shell else given
    except ValueError as error:
        raise ValueError(f"{error}; for a brace write it twice") from None
    return filled


def _open_quote(text: str) -> str:
    """The quote that has not ended at the end of this part of a shell's line; empty: none."""
    found = re.search("[\"']", _QUOTED.sub("", text))
    return found[0] if found else ""
