# SPDX-License-Identifier: GPL-2.0-or-later
"""The right to write a journal, and with it to lead the cluster: one process at a time has it.

A lock of the kernel on a file beside the journal. It is gone at the very moment its holder is, however that
ends; a holder that is stopped (SIGSTOP) still has it.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from controller.errors import JournalError


class JournalLock:
    """The lock of one journal; `take` gets it or says that another process has it."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.path = journal.with_name(journal.name + ".lock")
        self.holder = "unknown"
        """The process that had it when `take` failed last: its pid, as text; unknown where it could not write
        that."""
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Whether this process has it now; returns at once. Raises JournalError where there cannot be one."""
        while self._file is None:
            file = self._open()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.holder = _living(file.read(20).strip())
                file.close()
                return False
            except OSError as error:
                file.close()
                raise JournalError(
                    f"cannot lock {self.path}: {error.strerror}: it must be on a file system that can lock "
                    "files, such as a local disk"
                ) from error
            if _is_at(file, self.path):
                self._file = file
                with contextlib.suppress(OSError):  # on a full disk the lock counts, not the number in it
                    os.ftruncate(file.fileno(), 0)
                    os.pwrite(file.fileno(), f"{os.getpid()}\n".encode(), 0)
            else:
                file.close()  # it was removed in between: a lock on it keeps no other process out
        return True

    def is_ours(self) -> bool:
        """False once the lock file was removed: then another process may have taken a new one."""
        return self._file is not None and _is_at(self._file, self.path)

    def release(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), 0)  # the next holder has the lock before it signs
            self._file.close()
            self._file = None

    def _open(self) -> IO[str]:
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | flags, 0o600)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                # A disk that has become read-only: an old lock file locks as well.
                return os.fdopen(os.open(self.path, os.O_RDONLY | flags), "r")
            if os.geteuid() == 0 and self.journal.exists():
                # `gandiva journal vacuum` as root must not leave a lock that the controller cannot open.
                owner = self.journal.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        except OSError as error:
            raise JournalError(
                f"cannot open the journal {self.journal}: {error.strerror}: its folder must exist and belong "
                "to the user of the controller (journal.path in the settings)"
            ) from error
        return os.fdopen(descriptor, "r+")


def _living(pid: str) -> str:
    """The pid, unless it is one that an earlier holder left behind."""
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return pid  # another user's
    except (OSError, ValueError, OverflowError):
        return "unknown"
    return pid


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat(follow_symlinks=False))
    except OSError:
        return False
