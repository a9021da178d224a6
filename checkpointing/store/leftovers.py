# SPDX-License-Identifier: MIT
"""What is removed, and when: old generations, and what killed writers left behind.

An attempt is removed only when no rank of it lives: each holds a lock on its `owner.json`.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import uuid
from contextlib import ExitStack, suppress

from gandiva._environment import start_time_ticks

from .errors import InvalidGeneration
from .files import Files, closing, lock, names, open_folder, read_small, remove_tree
from .layout import REMOVING, WRITING, generation_name, generations, leftovers
from .manifest import OWNER
from .reading import opened, opened_rank

_log = logging.getLogger("gandiva.checkpoint")
_MOST_OWNER_BYTES = 4096


def owner_record() -> bytes:
    """Who writes: for people, and for file systems without locks."""
    pid = os.getpid()
    record = {"host": socket.gethostname(), "pid": pid, "start_ticks": start_time_ticks(pid)}
    return json.dumps({**record, "job": os.environ.get("SLURM_JOB_ID", "")}).encode() + b"\n"


def remove_leftovers(files: Files, root: int, own: str = "") -> list[str]:
    """Remove attempts without a living writer, but not `own`, and removals that were cut short.

    Returns what is left because a writer lives or may live, or because it cannot be removed.
    """
    left = []
    for name in leftovers(root):
        if name == own:
            continue
        try:
            with ExitStack() as locks:
                if name.startswith(WRITING) and _lives(name, root, locks):
                    left.append(name)
                    continue
                remove_tree(files, name, root)
        except OSError as error:
            _log.warning("cannot remove %r: %s", name, error)
            left.append(name)
    return left


def _lives(name: str, root: int, locks: ExitStack) -> bool:
    """Whether a writer of this attempt lives. Where not, `locks` holds the locks of all that there are."""
    try:
        attempt = locks.enter_context(closing(open_folder(name, root)))
    except OSError:
        return False  # No folder of a writer's, or gone.
    for child in names(attempt):
        try:
            with closing(open_folder(child, attempt)) as rank:
                # For writing: network file systems give an exclusive lock for nothing less.
                owner = os.open(OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=rank)
                locks.callback(os.close, owner)
                try:
                    if not lock(owner):
                        return True
                except OSError:
                    if _may_live(read_small(OWNER, rank, _MOST_OWNER_BYTES)):
                        return True
        except OSError:
            continue  # No folder of a rank's, or one that its writer has not come to yet: it tries again.
    return False


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
    name = f"{REMOVING}{number:08d}-{uuid.uuid4().hex[:8]}"
    with suppress(FileNotFoundError):
        files.rename(generation_name(number), name, root)
        remove_tree(files, name, root)
