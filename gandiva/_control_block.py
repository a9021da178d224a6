# SPDX-License-Identifier: MIT
"""A session's end of the control block: the command it reads, and the file of its rank."""

import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import Any, Optional, Tuple

from . import _environment, layout
from .layout import Command, RankRecord, Verb

RUN = layout.head_word(Verb.RUN)
"""The first word of the command where the agent asks for nothing else."""
SEQLOCK_TRIES = 1000


class ControlBlock:
    """The mapped files. Their words are native: one aligned 8-byte store or load each. struct's "<Q" goes
    byte by byte and can tear."""

    def __init__(self, directory: Path, place: _environment.Place) -> None:
        """Raises OSError or ValueError, with nothing left behind, when the block is unusable or another live
        process is this rank already."""
        self.directory, self.rank, pid = directory, place.rank, os.getpid()
        ticks = _environment.start_time_ticks(pid)
        self.record = RankRecord(pid=pid, world_size=place.world_size, start_time_ticks=ticks)
        """How far this rank is with what the agent asks."""
        self._command_map = _map_command(directory / "command")
        self._rank_file, self._rank_map = _map_rank(directory / "ranks" / str(place.rank))
        self._view(self._command_map, self._rank_map)
        self.open = True
        # What an earlier process left under this rank's number must not be read as this one's.
        self.words[layout.WORD_STEPS] = 0
        self.doubles[layout.WORD_SAMPLES] = 0.0

    def _view(self, command: Any, rank: Any) -> None:
        self.command = memoryview(command).cast("Q")
        self.words = memoryview(rank).cast("Q")
        self.doubles = memoryview(rank).cast("d")

    def read(self) -> Optional[Command]:
        """A consistent copy of the command; None where there is none to be had."""
        for _ in range(SEQLOCK_TRIES):
            before = self.command[layout.WORD_SEQUENCE]
            found = layout.parse_command(self._command_map[: layout.COMMAND.size])
            if found is not None and found.sequence == before == self.command[layout.WORD_SEQUENCE]:
                return found
            time.sleep(0)
        return None

    def note(self, **changes: Any) -> None:
        """Change the record, for what is published from now on."""
        self.record = self.record._replace(**changes)

    def publish(self, **others: Any) -> None:
        """Write the record, and the fields that it does not keep, under the seqlock."""
        sequence = self.words[layout.WORD_SEQUENCE] | 1
        self.words[layout.WORD_SEQUENCE] = sequence
        record = self.record._replace(sequence=sequence, **others)
        packed = layout.RANK.pack(layout.RANK_MAGIC, layout.VERSION, *record)
        self._rank_map[: len(packed)] = packed
        self.words[layout.WORD_SEQUENCE] = (sequence + 1) & (2**64 - 1)

    def detach(self) -> None:
        """Go on with memory of its own, in which nobody asks for anything: in a forked child, which shares
        the mappings with its parent and must not speak for it, and at the end."""
        self.open = False
        idle = layout.COMMAND.pack(layout.COMMAND_MAGIC, layout.VERSION, Verb.RUN, 0, 0, 0, 0)
        self._view(idle, bytearray(layout.RANK.size))

    def close(self) -> None:
        """Detach, and give this rank's number free."""
        self.detach()
        self._rank_map.close()
        self._command_map.close()
        self._rank_file.close()  # and with it the lock


def _map_command(path: Path) -> mmap.mmap:
    wrong = f"{path} is no control block of version {layout.VERSION}: "
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != layout.RECORD_BYTES:
            raise ValueError(f"{wrong}wrong size")
        mapped = mmap.mmap(file.fileno(), layout.RECORD_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
    magic, version, *_ = layout.COMMAND.unpack_from(mapped)
    if magic != layout.COMMAND_MAGIC or version != layout.VERSION:
        mapped.close()
        raise ValueError(f"{wrong}its head is {magic!r} {version}")
    return mapped


def _map_rank(path: Path) -> Tuple[Any, mmap.mmap]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        # A POSIX lock, because it ends with the process and is not inherited by forked workers.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Reserve the page: on a full tmpfs a store into a hole would kill the process with SIGBUS.
        os.posix_fallocate(descriptor, 0, layout.RECORD_BYTES)
        os.ftruncate(descriptor, layout.RECORD_BYTES)
        return file, mmap.mmap(descriptor, layout.RECORD_BYTES)
    except BaseException as error:
        file.close()
        if not isinstance(error, BlockingIOError):
            raise
        raise OSError(f"another live process of this job is rank {path.name} already ({path})") from None
