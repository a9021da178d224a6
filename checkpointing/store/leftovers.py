# SPDX-License-Identifier: MIT
"""What is removed, and when: old generations, and what killed writers left behind.

An attempt is removed only when no rank of it lives: each holds a lock on its `owner.json`. Between the folder
and that lock, a writer shares the lock of the store, and who looks for dead attempts has it alone.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gandiva._environment import start_time_ticks

from .errors import InvalidGeneration, StoreError
from .files import Files, closing, lock, names, open_folder, read_small, remove_tree
from .layout import LOCK, REMOVING, WRITING, generation_name, generations, leftovers, removing_name
from .manifest import OWNER
from .reading import opened, opened_rank

_log = logging.getLogger("gandiva.checkpoint")
_MOST_OWNER_BYTES = 4096
_LOCK_SECONDS = 5.0
_LOCK_PAUSE_SECONDS = 0.02


def owner_record() -> bytes:
    """Who writes: for people, and for file systems without locks."""
    pid = os.getpid()
    record = {"host": socket.gethostname(), "pid": pid, "start_ticks": start_time_ticks(pid)}
    return json.dumps({**record, "job": os.environ.get("SLURM_JOB_ID", "")}).encode() + b"\n"


@contextmanager
def beginning(root: int) -> Iterator[None]:
    """While a writer makes an attempt's folder and locks its owner's record: no attempt is taken for a dead
    one. Raises StoreError where that is not possible within some seconds."""
    with closing(_lock_file(root)) as fd:
        try:
            if not _wait_for_lock(fd, shared=True):
                raise StoreError(f"another process keeps the file {LOCK!r} of the store locked")
        except OSError as error:
            _log.info("this file system has no locks: %s", error)
        yield


def remove_leftovers(files: Files, root: int, own: str = "") -> list[str]:
    """Remove attempts without a living writer, but not `own`, and removals that were cut short.

    Returns what is left because a writer lives or may live, or because it cannot be removed.
    """
    left = _set_aside(files, root, own)
    for name in leftovers(root):
        if name.startswith(REMOVING):
            try:
                remove_tree(files, name, root)
            except OSError as error:
                _log.warning("cannot remove %r: %s", name, error)
                left.append(name)
    return left


def _set_aside(files: Files, root: int, own: str) -> list[str]:
    """Give dead attempts the name of a removal, while no writer begins one. Returns the others."""
    attempts = [name for name in leftovers(root) if name.startswith(WRITING) and name != own]
    if not attempts:
        return []
    left = []
    with closing(_lock_file(root)) as fd:
        try:
            if not _wait_for_lock(fd, shared=False):
                return attempts  # Writers keep beginning. The next save looks again.
            locks = True
        except OSError:
            locks = False
        for name in attempts:
            try:
                if _lives(name, root, locks):
                    left.append(name)
                else:
                    files.rename(name, removing_name(name[len(WRITING) :]), root)
            except FileNotFoundError:
                continue  # It has become a generation.
            except OSError as error:
                _log.warning("cannot remove %r: %s", name, error)
                left.append(name)
    return left


def _lives(name: str, root: int, locks: bool) -> bool:
    """Whether a writer of this attempt lives. `locks`: the file system has them, and no writer begins now."""
    try:
        attempt = open_folder(name, root)
    except OSError:
        return False  # No folder of a writer's, or gone.
    dead = locks
    with closing(attempt):
        for child in names(attempt):
            with suppress(OSError), closing(open_folder(child, attempt)) as rank:
                if _held(rank):
                    return True
                dead = True
    return not dead


def _held(rank: int) -> bool:
    """Whether the process that wrote this owner's record may live. Raises OSError where there is none."""
    # For writing: network file systems give an exclusive lock for nothing less.
    with closing(
        os.open(OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=rank)
    ) as owner:
        try:
            return not lock(owner)
        except OSError:
            return _may_live(read_small(OWNER, rank, _MOST_OWNER_BYTES))


def _wait_for_lock(fd: int, shared: bool) -> bool:
    """Others have it for a moment; one that is suspended meanwhile, for as long as it is.

    Raises OSError where the file system has no locks.
    """
    until = time.monotonic() + _LOCK_SECONDS
    while not lock(fd, shared):
        if time.monotonic() > until:
            return False
        time.sleep(_LOCK_PAUSE_SECONDS)
    return True


def _lock_file(root: int) -> int:
    """Its descriptor; the lock goes with it. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(LOCK, flags, 0o666, dir_fd=root)


def _may_live(record: bytes) -> bool:
    """Where there are no locks: only a process of this host can be said to be gone."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        found = json.loads(record)
        if found["host"] == socket.gethostname():
            return bool(start_time_ticks(int(found["pid"])) == found["start_ticks"])
    return True


def complete(root: int, number: int) -> None:
    """Look without reading the files: manifests agree, sizes are right. Raises InvalidGeneration."""
    with opened(root, number) as (folder, manifest):
        for rank in range(manifest.world_size):
            with opened_rank(folder, manifest, rank) as (rank_folder, found):
                for record in found.files:
                    size = os.stat(record.name, dir_fd=rank_folder, follow_symlinks=False).st_size
                    if size != record.size_bytes:
                        raise ValueError(f"{record.name} has {size} bytes, not {record.size_bytes}")


def prune(files: Files, root: int, keep: int) -> list[int]:
    """Remove all generations that are older than the `keep` newest complete ones. Returns their numbers."""
    kept = 0
    removed = []
    for number in generations(root):
        if kept >= keep:
            remove_generation(files, root, number)
            removed.append(number)
            continue
        try:
            complete(root, number)
            kept += 1
        except InvalidGeneration as error:
            _log.warning("generation %d is not complete: %s", number, error)
    return removed


def remove_generation(files: Files, root: int, number: int) -> None:
    """First it gets another name, so that no half of it is taken for a generation. Raises OSError."""
    name = removing_name(f"{number:08d}")
    with suppress(FileNotFoundError):
        files.rename(generation_name(number), name, root)
        remove_tree(files, name, root)
