# SPDX-License-Identifier: GPL-2.0-or-later
"""Making bad input out of good: all from one random generator, so that hypothesis can repeat a case."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

WORDS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "\r\n",
        "\t",
        "'",
        '"',
        '"""',
        "\\",
        "[",
        "]",
        "[[",
        "{",
        "}",
        "=",
        ",",
        ":",
        ";",
        "#",
    ),
    *(
        "-1",
        "0",
        "1",
        "2",
        "1e400",
        "-0.0",
        "nan",
        "inf",
        "NaN",
        "Infinity",
        "9" * 40,
        "0x10",
        "true",
        "null",
    ),
    *("2147483648", "4294967295", "18446744073709551616", "1.5", "01", "+3", "1-4", "4-1", "１２"),
    *(
        "../..",
        "/dev/zero",
        "~root",
        "$(id)",
        "`id`",
        "%s%n",
        "%n%n%n",
        "a" * 300,
        "n[1-999999999]",
        "n[1-",
        "\\u0000",
    ),
    *(
        "é☃",
        "\u202e",
        "\ud800",
        "\udcff",
        "\ufeff",
        "gandiva:",
        "[" * 3000,
        '{"a":' * 3000,
        "yes",
        "no",
        "requeue",
        "a100,,h100",
    ),
)
"""What tends to break things."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, 2**64, 10**40, -(10**40), 0.5, 1e308, -1e308),
    *(float("nan"), float("inf"), [], {}, [[]], [None], {"": None}, "1", [1, 1], {"set": True}),
    *({"set": True, "infinite": True, "number": 2**64}, {"number": "x", "set": 1}, [["a"]] * 3),
)


def word(dice: random.Random) -> str:
    """A nasty word."""
    return dice.choice(WORDS)


def value(dice: random.Random) -> Any:
    """A nasty value."""
    kind = dice.random()
    if kind < 0.3:
        return word(dice)
    if kind < 0.33:
        return nested(dice.choice((10, 100, 2000)))
    return copy.deepcopy(dice.choice(VALUES))


def nested(depth: int) -> Any:
    """A list in a list in a list …"""
    inner: Any = 0
    for _ in range(depth):
        inner = [inner]
    return inner


def text(dice: random.Random, sample: str, changes: int = 4) -> str:
    """A sample with some of its parts moved, lost, doubled or replaced."""
    for _ in range(dice.randint(1, changes)):
        a, b = sorted(dice.randrange(len(sample) + 1) for _ in range(2))
        b = min(b, a + dice.choice((1, 3, 20, 200)))
        match dice.randrange(6):
            case 0:
                sample = sample[:a] + sample[b:]
            case 1:
                sample = sample[:a] + word(dice) + sample[b:]
            case 2:
                sample = sample[:b] + sample[a:b] * dice.choice((1, 2, 30)) + sample[b:]
            case 3:
                sample = sample[:a] + word(dice) + sample[a:]
            case 4:
                sample = sample[:a]
            case _:
                sample = (
                    sample[:a] + chr(dice.choice((0, 10, 34, 127, 255, 0x2028, 0x1F600))) + sample[a + 1 :]
                )
    return sample


def toml(dice: random.Random, sample: str) -> str:
    """A changed TOML text; at times with a value that goes too far."""
    changed = text(dice, sample)
    if dice.random() < 0.05:
        far = dice.choice(("[" * 5000, "{a=" * 5000, "9" * 5000, "1e" + "9" * 400, '"' + "x" * 100_000 + '"'))
        lines = [line for line in sample.splitlines() if "=" in line] or ["a = 1"]
        changed = f"{dice.choice(lines).partition('=')[0].lstrip('# ')} = {far}\n"
    return changed


def raw(dice: random.Random, sample: bytes, changes: int = 6) -> bytes:
    """The same for bytes."""
    data = bytearray(sample)
    for _ in range(dice.randint(1, changes)):
        a = dice.randrange(len(data) + 1)
        b = min(len(data), a + dice.choice((1, 2, 8, 100)))
        match dice.randrange(5):
            case 0:
                del data[a:b]
            case 1:
                data[a:b] = bytes(dice.randrange(256) for _ in range(b - a))
            case 2:
                data[a:a] = word(dice).encode("utf-8", "surrogatepass")
            case 3:
                del data[a:]
            case _:
                data[a:b] = b"\xff" * (b - a)
    return bytes(data)


def document(dice: random.Random, sample: Any, changes: int = 3) -> Any:
    """A JSON document with values replaced, removed, added, doubled, at any depth."""
    made = copy.deepcopy(sample)
    for _ in range(dice.randint(1, changes)):
        made = _change(dice, made)
    return made


def _change(dice: random.Random, whole: Any) -> Any:
    place: Any = None
    at: Any = None
    here = whole
    while isinstance(here, dict | list) and here and (place is None or dice.random() < 0.85):
        place = here
        at = dice.choice(list(here)) if isinstance(here, dict) else dice.randrange(len(here))
        here = here[at]
    if place is None:
        return value(dice)
    match dice.randrange(5):
        case 0:
            del place[at]
        case 1 if isinstance(place, list):
            place.append(copy.deepcopy(here))
        case 1:
            place[word(dice)] = value(dice)
        case 2 if isinstance(here, str):
            place[at] = text(dice, here)
        case 2 if isinstance(here, int | float):
            place[at] = here * dice.choice((-1, 0, 2, 10**9, 10**30))
        case _:
            place[at] = value(dice)
    return whole


def dumped(dice: random.Random, sample: Any, changes: int = 3) -> str:
    """A changed document as JSON text, sometimes with the text damaged too."""
    try:
        shown = json.dumps(document(dice, sample, changes), ensure_ascii=dice.random() < 0.5)
    except (RecursionError, ValueError):
        shown = json.dumps(sample)
    return text(dice, shown) if dice.random() < 0.2 else shown


def pick(dice: random.Random, good: Sequence[str]) -> str:
    """A good word, a damaged one, or a nasty one."""
    kind = dice.random()
    if kind < 0.5:
        return dice.choice(good)
    return text(dice, dice.choice(good), 2) if kind < 0.8 else word(dice)
