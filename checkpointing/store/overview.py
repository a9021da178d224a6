# SPDX-License-Identifier: MIT
"""What a command shows of a store, and does with it. It may run beside a job that writes there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import InvalidGeneration, StoreError
from .files import Files, closing
from .layout import generations, leftovers, open_root
from .leftovers import complete, prune, remove_leftovers
from .reading import Reader, opened, opened_rank, read_threads


@dataclass(frozen=True)
class Row:
    """One generation. Where its manifest cannot be read, only the number and the problem are said."""

    number: int
    step: int = 0
    world_size: int = 0
    data_bytes: int = 0
    written_at: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Overview:
    """`rows`: the newest first. `leftovers`: attempts and removals, under way or cut short."""

    rows: tuple[Row, ...]
    leftovers: tuple[str, ...]


def overview(folder: Path, every_file: bool = False, number: int | None = None) -> Overview:
    """All generations, or one. `every_file`: read them and compare the checksums, instead of sizes only.

    Raises StoreError where there is no such folder or generation.
    """
    with _opened(folder) as root, ThreadPoolExecutor(read_threads()) as pool:
        found = [each for each in generations(root) if number is None or each == number]
        if number is not None and not found:
            raise StoreError(f"{folder}: no generation {number}")
        check = Reader(pool) if every_file else None
        return Overview(tuple(_row(root, each, check) for each in found), tuple(leftovers(root)))


def tidy(folder: Path, keep: int) -> tuple[list[int], list[str]]:
    """Remove generations older than the `keep` newest complete ones, and what killed writers left.

    Returns the numbers of what was removed, and the leftovers that stay because a writer lives or may live.
    Raises StoreError; ValueError for `keep` below 1.
    """
    if keep < 1:
        raise ValueError(f"keep {keep}: at least 1 generation is kept")
    try:
        with _opened(folder) as root:
            return prune(Files(), root, keep), remove_leftovers(Files(), root)
    except OSError as error:
        raise StoreError(f"{folder}: {error}") from error


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        root = open_root(folder)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error
    with closing(root):
        yield root


def _row(root: int, number: int, check: Reader | None) -> Row:
    row = Row(number)
    try:
        with opened(root, number) as (folder, manifest):
            row = Row(number, manifest.step, manifest.world_size, manifest.data_bytes, manifest.written_at)
            if check is None:
                complete(root, number)
                return row
            for rank in range(manifest.world_size):
                with opened_rank(folder, manifest, rank) as (rank_folder, found):
                    for record in found.files:
                        check.check(rank_folder, record)
    except InvalidGeneration as error:
        return replace(row, problem=str(error))
    return row
