# SPDX-License-Identifier: MIT
"""One attempt to write a generation, as one rank sees it.

Each rank writes its files and, last, its manifest; all of it is on the disk before the manifest has its
name. Rank 0 waits for all manifests, writes the generation's, and publishes by renaming the folder.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Union

from .errors import InvalidGeneration, NotPublished, SpaceError, StoreError
from .files import (
    BLOCK_BYTES,
    LARGE_BYTES,
    Files,
    chunk_bytes,
    closing,
    exists,
    lock,
    names,
    open_folder,
    read_small,
    remove_tree,
    set_direct,
    write_all,
    write_small,
)
from .layout import (
    FAILED,
    MOST_GENERATIONS,
    WRITING,
    generation_name,
    generations,
    rank_name,
    removing_name,
)
from .leftovers import beginning, owner_record
from .manifest import (
    MANIFEST,
    MOST_MANIFEST_BYTES,
    OWNER,
    PIECE_BYTES,
    FileRecord,
    Manifest,
    RankManifest,
    parse_rank,
    to_json,
)
from .reading import opened, record_of

Buffer = Union[bytes, bytearray, memoryview]
Content = Union[Buffer, Sequence[Buffer]]
"""Of one file: bytes, or parts of it one after the other."""

_log = logging.getLogger("gandiva.checkpoint")
_PART = "manifest.part"
_SPARE_BYTES = 1 << 20
SEEN_SECONDS = 5.0
"""How long a renamed folder may take to be seen on another node."""


def parts_of(content: Content) -> list[memoryview]:
    """Views of bytes. Raises TypeError for what has none."""
    parts = [content] if isinstance(content, (bytes, bytearray, memoryview)) else list(content)
    return [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]


class Deadline:
    """How long a rank waits for the others. Another thread may end that at once."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def give_up(self) -> None:
        """The waiting ends now."""
        self.until = 0.0


class Attempt:
    """`step` and `world_size` as all ranks say them; `name` is the same in all and never used twice."""

    def __init__(
        self,
        files: Files,
        root: int,
        pool: ThreadPoolExecutor,
        *,
        name: str,
        step: int,
        rank: int,
        world_size: int,
    ) -> None:
        self._files = files
        self._root = root
        self._pool = pool
        self.name = name
        self.folder = WRITING + name
        self._step = step
        self._rank = rank
        self._world_size = world_size
        self._claimed = False

    def run(self, contents: Mapping[str, Sequence[memoryview]], deadline: Deadline) -> int:
        """Write this rank's part and return the number of the generation, once it is published.

        Raises:
            SpaceError: no room; nothing is left.
            NotPublished: another rank failed or was too late.
            StoreError: this rank failed.
        """
        with ExitStack() as open_files:
            try:
                attempt, rank_folder = self._claim(open_files)
                self._write_rank(rank_folder, contents)
                return self._publish(attempt, deadline) if self._rank == 0 else self._wait(deadline)
            except BaseException as error:
                self._give_up()
                if isinstance(error, OSError):
                    raise self._explained(error, contents) from error
                raise

    def _claim(self, open_files: ExitStack) -> tuple[int, int]:
        """Make this rank's folder and lock its owner's record. Returns the attempt's folder and this one."""
        own = rank_name(self._rank)
        with beginning(self._root):
            with suppress(FileExistsError):
                self._files.make_folder(self.folder, self._root)
            attempt = open_files.enter_context(closing(open_folder(self.folder, self._root)))
            try:
                self._files.make_folder(own, attempt)
            except FileExistsError:
                raise StoreError(
                    f"{self.folder} has a part of rank {self._rank} already: two processes have this "
                    "rank, or two starts of the job have one `run`; give each start a `run` of its own"
                ) from None
            self._claimed = True
            rank_folder = open_files.enter_context(closing(open_folder(own, attempt)))
            owner = open_files.enter_context(closing(self._files.create(OWNER, rank_folder)))
            with suppress(OSError):  # A file system without locks.
                lock(owner)
            write_all(self._files, owner, memoryview(owner_record()))
        return attempt, rank_folder

    def _write_rank(self, folder: int, contents: Mapping[str, Sequence[memoryview]]) -> None:
        sizes = {name: sum(part.nbytes for part in parts) for name, parts in contents.items()}
        free = os.fstatvfs(folder)
        if free.f_bavail * free.f_frsize < sum(sizes.values()) + _SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with ExitStack() as opened_files:
            # Space for all of them before a byte is written: a full disk is told now.
            fds = {
                name: opened_files.enter_context(closing(self._files.create(name, folder))) for name in sizes
            }
            for name, fd in fds.items():
                self._files.reserve(fd, sizes[name])
            # Threads compute the checksums beside the writing.
            checksums = {
                name: [self._pool.submit(_sha256, piece) for piece in _pieces(parts)]
                for name, parts in contents.items()
            }
            for name, fd in fds.items():
                self._write_file(fd, contents[name])
            for fd in fds.values():
                self._files.sync(fd)
            records = tuple(
                FileRecord(name, sizes[name], tuple(each.result() for each in checksums[name]))
                for name in sizes
            )
        manifest = RankManifest(self.name, self._step, self._rank, self._world_size, records)
        write_small(self._files, _PART, folder, to_json(manifest))
        self._files.rename(_PART, MANIFEST, folder)
        self._files.sync(folder)

    def _write_file(self, fd: int, parts: Sequence[memoryview]) -> None:
        """The disk is at work from the first chunk on."""
        chunk, done = chunk_bytes(fd), 0
        for part in parts:
            if part.nbytes >= LARGE_BYTES:
                set_direct(fd, True)
            for piece in _chunks(part, chunk):
                write_all(self._files, fd, piece)
                self._files.begin_sync(fd, done, piece.nbytes)
                done += piece.nbytes

    def _publish(self, attempt: int, deadline: Deadline) -> int:
        records = []
        for rank in range(self._world_size):
            data = self._wait_for_rank(attempt, rank, deadline)
            try:
                found = parse_rank(data)
            except ValueError as error:
                raise NotPublished(f"the manifest of rank {rank}: {error}") from None
            said = (found.attempt, found.step, found.rank, found.world_size)
            if said != (self.name, self._step, rank, self._world_size):
                raise NotPublished(
                    f"rank {rank} writes step {found.step} as one of {found.world_size} ranks, "
                    f"rank 0 step {self._step} as one of {self._world_size}"
                )
            records.append(record_of(data, found.data_bytes))
        written_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        manifest = Manifest(self.name, self._step, self._world_size, written_at, tuple(records))
        write_small(self._files, MANIFEST, attempt, to_json(manifest))
        self._files.sync(attempt)
        number = next(iter(generations(self._root)), 0)
        while number < MOST_GENERATIONS:
            number += 1
            try:
                self._files.rename(self.folder, generation_name(number), self._root)
            except OSError as error:
                # Another job publishes into the same store and took the number.
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            else:
                self._files.sync(self._root)
                return number
        raise StoreError(f"there is no number left after {MOST_GENERATIONS}")

    def _wait_for_rank(self, attempt: int, rank: int, deadline: Deadline) -> bytes:
        pause = 0.005
        while True:
            with suppress(FileNotFoundError), closing(open_folder(rank_name(rank), attempt)) as folder:
                return read_small(MANIFEST, folder, MOST_MANIFEST_BYTES)
            failed = [name for name in names(attempt) if name.endswith(FAILED)]
            if failed:
                raise NotPublished(f"{failed[0][: -len(FAILED)]} could not write its part")
            pause = _pause(pause, deadline.until, f"no manifest of rank {rank}")

    def _wait(self, deadline: Deadline) -> int:
        """As another rank: until the attempt's folder has gone and its generation is there."""
        pause = 0.005
        while exists(self.folder, self._root):
            pause = _pause(pause, deadline.until, "rank 0 has not published the generation")
        pause, until = 0.005, min(deadline.until, time.monotonic() + SEEN_SECONDS)
        while True:
            for number in generations(self._root):
                with suppress(InvalidGeneration), opened(self._root, number) as (_, manifest):
                    if manifest.attempt == self.name:
                        return number
            pause = _pause(pause, until, "rank 0 gave up")

    def _give_up(self) -> None:
        """Leave nothing of this rank, and tell rank 0; rank 0 leaves nothing at all."""
        with suppress(OSError):
            if not self._claimed:
                self._files.remove_folder(self.folder, self._root)  # Where it is empty.
                return
            if self._rank == 0:
                # The name goes first: the other ranks look for it.
                removing = removing_name(self.name)
                self._files.rename(self.folder, removing, self._root)
                remove_tree(self._files, removing, self._root)
                return
            with closing(open_folder(self.folder, self._root)) as attempt:
                own = rank_name(self._rank)
                with closing(open_folder(own, attempt)) as folder:
                    if exists(MANIFEST, folder):
                        return  # Rank 0 may be publishing it.
                remove_tree(self._files, own, attempt)
                self._files.make_folder(own + FAILED, attempt)

    def _explained(self, error: OSError, contents: Mapping[str, Sequence[memoryview]]) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = sum(part.nbytes for parts in contents.values() for part in parts)
            return SpaceError(
                f"no room for the {needed} bytes of rank {self._rank}: {error.strerror}; "
                "nothing was kept of this attempt"
            )
        if error.errno in (errno.ENOENT, errno.ESTALE) and self._rank != 0:
            return NotPublished(f"{self.folder} is gone: rank 0 gave up")
        return StoreError(f"{self.folder}: {error}")


def _chunks(part: memoryview, chunk_bytes: int) -> Iterator[memoryview]:
    """What is written at once. Of what is large, the odd bytes at the end come alone: only they need the page
    cache."""
    whole = part.nbytes - part.nbytes % BLOCK_BYTES if part.nbytes >= LARGE_BYTES else 0
    for begin in range(0, whole, chunk_bytes):
        yield part[begin : min(begin + chunk_bytes, whole)]
    if whole < part.nbytes:
        yield part[whole:]


def _pieces(parts: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """What each piece of a file is made of."""
    piece: list[memoryview] = []
    room = PIECE_BYTES
    for part in parts:
        while part:
            piece.append(part[:room])
            part, room = part[room:], room - len(piece[-1])
            if room == 0:
                yield piece
                piece, room = [], PIECE_BYTES
    if piece:
        yield piece


def _sha256(parts: Sequence[memoryview]) -> str:
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()


def _pause(seconds: float, deadline: float, why: str) -> float:
    """Sleep, and return how long to sleep the next time. Raises NotPublished after the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise NotPublished(f"{why} within the deadline")
    time.sleep(min(seconds, left))
    return min(1.0, seconds * 1.5)
