# SPDX-License-Identifier: MIT
"""How ranks below `gandiva.ranks` tell their launcher what they have done."""

import contextlib
import os
import select
import stat
import struct
from typing import List, Mapping, Optional, Tuple

from ._session import Session

FD_NAME = "GANDIVA_REPORT_FD"
"""The environment variable with the pipe's end: its descriptor and its inode. A process below the rank
inherits the variable, and may have another file under that number."""
_RECORD = struct.Struct("<Id")
_MOST = 4096 * _RECORD.size


class ReportingSession(Session):
    """What `gandiva.attach()` returns below the launcher, which leaves the GPUs for all ranks."""

    def __init__(self, descriptor: int, rank: int) -> None:
        self._descriptor, self._rank = descriptor, rank
        self._steps = 0

    @property
    def steps_done(self) -> int:
        return self._steps

    def step(self, samples: float = 0) -> None:
        self._steps += 1
        # Where the launcher has ended, or is stopped for so long that the pipe is full, it need not know.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, _RECORD.pack(self._rank, samples))


def reporting_session(environ: Mapping[str, str]) -> Optional[Session]:
    """The session of a rank below the launcher; None elsewhere."""
    (descriptor, _, inode), rank = environ.get(FD_NAME, "").partition(":"), environ.get("RANK", "")
    if not (descriptor.isdecimal() and rank.isdecimal()):
        return None
    try:
        found = os.fstat(int(descriptor))
    except (OSError, OverflowError):
        return None
    if not stat.S_ISFIFO(found.st_mode) or str(found.st_ino) != inode:
        return None
    return ReportingSession(int(descriptor), int(rank))


class Reports:
    """The launcher's end."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        for end in (self._read, self.descriptor):
            os.set_blocking(end, False)
        self._samples = 0.0

    def wait(self, seconds: float) -> None:
        """For the next one, at most so long."""
        select.select([self._read], [], [], seconds)

    def take(self) -> List[float]:
        """Mini-batches that rank 0 has done since the last call: the samples of all ranks in each."""
        done: List[float] = []
        for rank, samples in self._records():
            self._samples += samples
            if rank == 0:
                done.append(self._samples)
                self._samples = 0.0
        return done

    def _records(self) -> List[Tuple[int, float]]:
        try:
            data = os.read(self._read, _MOST)
        except BlockingIOError:
            return []
        whole = data[: len(data) // _RECORD.size * _RECORD.size]
        return [(rank, samples) for rank, samples in _RECORD.iter_unpack(whole)]
