# SPDX-License-Identifier: GPL-2.0-or-later
"""The store's calls on files, each announced before it is made; and contents that say their step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from checkpointing.store import Restored, Store
from checkpointing.store.files import Files
from checkpointing.store.layout import LOCK

CALLS = (*("make_folder", "create", "reserve", "write", "sync", "rename", "remove_file", "remove_folder"),)


class Call(NamedTuple):
    """`number`: from 0. `arguments`: as the methods of Files have them."""

    number: int
    name: str
    arguments: tuple[Any, ...]


class Watched(Files):
    """`before`: gets each call; what it raises is raised instead."""

    def __init__(self, before: Callable[[Call], object]) -> None:
        self.calls = 0
        self.before = before


def _announced(name: str) -> Any:
    original = getattr(Files, name)

    def call(self: Watched, *arguments: Any) -> Any:
        number, self.calls = self.calls, self.calls + 1
        self.before(Call(number, name, arguments))
        return original(self, *arguments)

    return call


for _name in CALLS:
    setattr(Watched, _name, _announced(_name))


def contents(step: int, rank: int = 0) -> dict[str, bytes]:
    """Two files that no other step or rank has."""
    seed = hashlib.sha256(f"{step} {rank}".encode()).digest()
    return {"model": seed * 700, "optimizer": seed[::-1] * (20 + step % 5)}


def check(found: Restored | None, least_step: int = 0) -> int:
    """That it is a whole state, not older than this step. Returns its step."""
    assert found is not None
    assert found.step >= least_step
    for rank, files in found.files.items():
        assert {name: bytes(data) for name, data in files.items()} == contents(found.step, rank)
    return found.step


def restored(folder: Path, rank: int = 0, world_size: int = 1) -> Restored | None:
    return Store(folder, rank=rank, world_size=world_size, run="reader").restore()


def below(folder: Path, pattern: str = "*") -> list[str]:
    """Without the store's own lock."""
    return sorted(path.name for path in folder.glob(pattern) if path != folder / LOCK)
