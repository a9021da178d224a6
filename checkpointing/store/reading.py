# SPDX-License-Identifier: MIT
"""Reading a generation: what is handed out has the size and the checksum that its manifest says."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from .errors import InvalidGeneration
from .files import LARGE_BYTES, closing, direct_or_not, open_folder, open_regular, read_small, set_direct
from .layout import generation_name, rank_name
from .manifest import (
    MANIFEST,
    MOST_MANIFEST_BYTES,
    PIECE_BYTES,
    FileRecord,
    Manifest,
    RankManifest,
    RankRecord,
    parse,
    parse_rank,
)
from .staging import new_memory

READ_BYTES = 1 << 20
"""At once: what is read is in the processor's cache for its checksum."""
AHEAD_BYTES = 2 * PIECE_BYTES
"""What the disk is asked for beyond the piece that is read."""


@contextmanager
def opened(root: int, number: int) -> Iterator[tuple[int, Manifest]]:
    """The folder and the manifest of a generation.

    Raises:
        InvalidGeneration: also for every OSError and ValueError within.
    """
    place = generation_name(number)
    with _explained(place), closing(open_folder(place, root)) as folder:
        with _explained(f"{place}/{MANIFEST}"):
            manifest = parse(read_small(MANIFEST, folder, MOST_MANIFEST_BYTES))
        yield folder, manifest


@contextmanager
def opened_rank(generation: int, manifest: Manifest, rank: int) -> Iterator[tuple[int, RankManifest]]:
    """The folder and the manifest of one rank. Raises InvalidGeneration as opened() does."""
    place = rank_name(rank)
    with _explained(place), closing(open_folder(place, generation)) as folder:
        with _explained(f"{place}/{MANIFEST}"):
            data = read_small(MANIFEST, folder, MOST_MANIFEST_BYTES)
            if record_of(data, manifest.ranks[rank].data_bytes) != manifest.ranks[rank]:
                raise ValueError("its SHA-256 or size is not the one in the generation's manifest")
            found = parse_rank(data)
            said = (found.attempt, found.step, found.rank, found.world_size, found.data_bytes)
            named = (manifest.attempt, manifest.step, rank, manifest.world_size)
            if said != (*named, manifest.ranks[rank].data_bytes):
                raise ValueError("it is of another attempt, step, rank, world size or number of bytes")
        yield folder, found


@contextmanager
def _explained(place: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise InvalidGeneration(f"{place}: {error}") from error


def record_of(manifest: bytes, data_bytes: int) -> RankRecord:
    """How a generation's manifest names a rank's manifest with these bytes."""
    return RankRecord(len(manifest), hashlib.sha256(manifest).hexdigest(), data_bytes)


def checksum_threads() -> int:
    """One for each processor of this process, and not more than a file system needs."""
    return min(8, len(os.sched_getaffinity(0)))


def read_threads() -> int:
    """Some read while the others compute checksums."""
    return 2 * checksum_threads()


class Reader:
    """Reads files of ranks, several pieces at once: each thread reads one and computes its checksum."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def read(self, rank_folder: int, record: FileRecord) -> memoryview:
        """The file's content. Raises ValueError or OSError."""
        content = new_memory(record.size_bytes)
        # No child of this process may share these pages while a disk writes into them: open(2), O_DIRECT.
        content.madvise(mmap.MADV_DONTFORK)
        self._read(rank_folder, record, memoryview(content))
        content.madvise(mmap.MADV_DOFORK)
        return memoryview(content)[: record.size_bytes]

    def check(self, rank_folder: int, record: FileRecord) -> None:
        """Read it and keep nothing. Raises ValueError or OSError."""
        self._read(rank_folder, record, None)

    def _read(self, rank_folder: int, record: FileRecord, into: memoryview | None) -> None:
        with closing(open_regular(record.name, rank_folder)) as fd:
            size = os.fstat(fd).st_size
            if size != record.size_bytes:
                raise ValueError(f"{record.name} has {size} bytes, not {record.size_bytes}")
            direct = size >= LARGE_BYTES and set_direct(fd, True)
            found = [
                self._pool.submit(
                    _piece,
                    fd,
                    begin,
                    min(PIECE_BYTES, size - begin),
                    None if into is None else into[begin : begin + PIECE_BYTES],
                    direct,
                )
                for begin in range(0, size, PIECE_BYTES)
            ]
            wait(found)  # All of them, before the file is closed.
            if tuple(each.result() for each in found) != record.sha256:
                raise ValueError(f"the SHA-256 of {record.name} is not the one in the manifest")


def _piece(fd: int, begin: int, size: int, into: memoryview | None, direct: bool) -> str:
    """Read a piece, and return its checksum. `into`: whole pages, so that no read ends at an odd place."""
    if not direct:
        # The disk reads on while the checksum is computed, and no thread disturbs another's reading ahead.
        os.posix_fadvise(fd, begin, size + AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
    kept = memoryview(new_memory(min(size, READ_BYTES))) if into is None else into
    checksum, done = hashlib.sha256(), 0
    while done < size:
        part = kept if into is None else kept[done : done + READ_BYTES]
        got = min(_read_at(fd, part, begin + done), size - done)
        if got <= 0:
            raise ValueError(f"the file ends after {begin + done} bytes")
        checksum.update(part[:got])
        done += got
    return checksum.hexdigest()


def _read_at(fd: int, part: memoryview, begin: int) -> int:
    return direct_or_not(fd, lambda: os.preadv(fd, [part], begin))
