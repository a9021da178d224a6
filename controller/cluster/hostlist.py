# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's bracket notation for lists of names: `n[1-3,07],login`."""

import re
from collections import Counter

MAX_NAMES = 65_536
"""As many nodes as Slurm itself takes (its default MAX_SLURM_NODES)."""

BETWEEN_NAMES = re.compile(r",(?![^\[\]]*\])")
"""Commas that stand outside brackets."""
_PIECE = re.compile(r"[A-Za-z0-9._-]+|\[[0-9,-]+\]")


def expand(expression: str) -> tuple[str, ...]:
    """The names in a host list, in order: comma-separated names with any number of `[1-3,07]` groups each.
    Leading zeros of a range's start set the width, as Slurm does.

    Raises ValueError: the expression is malformed, too long or names one host twice.
    """
    names: list[str] = []
    if not all(items := BETWEEN_NAMES.split(expression)):
        raise ValueError(f"{expression!r} has an empty name")
    for item in items:
        names.extend(_expand_one(item, expression))
        if len(names) > MAX_NAMES:
            raise ValueError(f"{expression!r} has more than {MAX_NAMES} names")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{expression!r} names {twice[0]} twice")
    return tuple(names)


def checked(expression: str) -> str:
    """The same, where it is a host list. Raises ValueError."""
    expand(expression)
    return expression


def _expand_one(item: str, expression: str) -> list[str]:
    pieces = _PIECE.findall(item)
    if "".join(pieces) != item:
        raise ValueError(f"{expression!r} is no host list: expected names such as n[1-4],login")
    names = [""]
    for piece in pieces:
        endings = _numbers(piece, expression) if piece.startswith("[") else [piece]
        if len(names) * len(endings) > MAX_NAMES:
            raise ValueError(f"{expression!r} has more than {MAX_NAMES} names")
        names = [name + ending for name in names for ending in endings]
    return names


def _numbers(group: str, expression: str) -> list[str]:
    numbers: list[str] = []
    for part in group[1:-1].split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None:
            raise ValueError(f"{expression!r} has {part!r} between brackets: expected N or N-M")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"{expression!r} has the range {part}: its end is below its start")
        if int(last) - int(first) >= MAX_NAMES:
            raise ValueError(f"{expression!r} has more than {MAX_NAMES} names")
        numbers.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return numbers
