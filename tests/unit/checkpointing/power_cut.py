# SPDX-License-Identifier: GPL-2.0-or-later
"""What a disk may have after a power cut: names and contents that were synced, and any part of the others.

A model of a file system that is told the store's calls. It knows of each folder which names are durable, of
each file which content is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.unit.checkpointing.watched import Call


@dataclass
class File:
    now: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    written: int = 0


@dataclass
class Folder:
    now: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


Operation = tuple[str, tuple[Any, ...]]
Choose = Callable[[str, int], int]
"""From what is asked and the number of answers, which one."""


def recorder(root: Path, log: list[Operation]) -> Callable[[Call], None]:
    """Writes the calls down, with paths below the store's folder instead of numbers of open files."""

    def path(fd: int) -> tuple[str, ...]:
        return Path(f"/proc/self/fd/{fd}").readlink().relative_to(root.resolve()).parts

    def before(call: Call) -> None:
        match call.name, call.arguments:
            case "reserve", (fd, size):
                log.append((call.name, (path(fd), size)))
            case "write", (fd, data):
                log.append((call.name, (path(fd), bytes(data))))
            case "sync", (fd,):
                log.append((call.name, (path(fd),)))
            case "rename", (old, new, at):
                log.append((call.name, (path(at), old, new)))
            case _, (name, at):
                log.append((call.name, (path(at), name)))

    return before


def read(path: Path) -> Folder:
    """A folder of which everything is durable."""
    entries: dict[str, File | Folder] = {}
    for child in path.iterdir():
        data = b"" if child.is_dir() else child.read_bytes()
        entries[child.name] = read(child) if child.is_dir() else File(bytearray(data), data)
    return Folder(entries, dict(entries))


def find(root: Folder, parts: tuple[str, ...]) -> File | Folder:
    found: File | Folder = root
    for part in parts:
        assert isinstance(found, Folder)
        found = found.now[part]
    return found


def replay(root: Folder, log: list[Operation]) -> None:
    for name, (parts, *rest) in log:
        found = find(root, parts)
        if isinstance(found, File):
            _on_file(found, name, rest)
        elif name == "sync":
            found.durable = dict(found.now)
        elif name == "rename":
            found.now[rest[1]] = found.now.pop(rest[0])
        elif name in ("remove_file", "remove_folder"):
            del found.now[rest[0]]
        else:
            found.now[rest[0]] = File() if name == "create" else Folder()


def _on_file(found: File, name: str, rest: list[Any]) -> None:
    if name == "sync":
        found.durable = bytes(found.now)
    elif name == "reserve":
        found.now.extend(bytes(max(0, rest[0] - len(found.now))))
    else:
        assert name == "write"
        found.now[found.written : found.written + len(rest[0])] = rest[0]
        found.written += len(rest[0])


def leave(folder: Folder, path: Path, choose: Choose) -> None:
    """Write what the disk has. `choose`: for each folder and file, what of it."""
    path.mkdir()
    for name, child in (folder.durable, folder.now)[choose("names", 2)].items():
        if isinstance(child, Folder):
            leave(child, path / name, choose)
        else:
            now = bytes(child.now)
            kept = choose("content", 3) if now != child.durable else 0
            (path / name).write_bytes((child.durable, now, now[: len(now) // 2])[kept])
