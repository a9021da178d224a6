# SPDX-License-Identifier: GPL-2.0-or-later
"""Text in columns of a terminal. Text from users may have wide characters and control characters."""

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size

from controller.model import GpuId

width = cell_len
"""Columns that a text takes in a terminal."""


def clean(text: str) -> str:
    """Without what would move the cursor, colour the screen or break a line."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)


def fit(text: str, columns: int, *, left: bool = False) -> str:
    """Exactly `columns` wide: padded, or cut with a `+` at its end as sacct does."""
    if cell_len(text) > columns:
        cut = set_cell_size(text, columns - 1)
        # A wide character that does not fit becomes a blank.
        text = (cut if text.startswith(cut) else cut[:-1]) + "+" if columns > 0 else ""
    padding = " " * (columns - cell_len(text))
    return text + padding if left else padding + text


def some(names: Sequence[object], most: int = 3) -> str:
    """The first ones, and how many more."""
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def ranges(numbers: Iterable[int]) -> str:
    """`0-2,5`."""
    # Of numbers in a row each is as far from its place as the others.
    in_order = enumerate(sorted(set(numbers)))
    rows = [[number for _, number in row] for _, row in groupby(in_order, key=lambda each: each[1] - each[0])]
    return ",".join(str(row[0]) if len(row) == 1 else f"{row[0]}-{row[-1]}" for row in rows)


def gpu_list(names: Iterable[str]) -> str:
    """GPUs (`node:ordinal`) in short: `n1:0-3 n2:0-3`; empty for none."""
    per_node: dict[str, list[int]] = {}
    for name in names:
        gpu = split_gpu(name)
        per_node.setdefault(gpu.node, []).append(gpu.ordinal)
    return " ".join(f"{node}:{ranges(ordinals)}" for node, ordinals in per_node.items())


def split_gpu(name: str) -> GpuId:
    """`n1:0` -> GpuId. What is not of that form counts as GPU 0 of a node of that name."""
    node, _, ordinal = name.rpartition(":")
    return GpuId(node, int(ordinal)) if node and ordinal.isdigit() else GpuId(name, 0)
