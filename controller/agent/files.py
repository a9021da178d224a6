# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that root opens where others may put something in their place, locks between a node's agents, and
commands."""

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE

from controller.agent.deadline import Deadline, polls


@contextlib.contextmanager
def opened(path: Path | str, flags: int, mode: int = 0o600, folder: int | None = None) -> Iterator[int]:
    """A descriptor that is closed at the end; a link is not followed. Raises OSError."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def try_lock(file: int) -> bool:
    """Take the lock of an open file, until it is closed. False: another process has it. Raises OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Path, deadline: Deadline) -> Iterator[int]:
    """A file of root's, made where there is none, that no other agent can lock meanwhile: when one controller
    takes over from another, a node has two agents for a moment.

    Raises OSError, TimeoutError when another agent has it at the deadline.
    """
    # Not blocking: a pipe in its place must not hang.
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK) as file:
        if not any(try_lock(file) for _ in polls(deadline)):
            raise TimeoutError(errno.ETIMEDOUT, "another agent keeps it locked", str(path))
        yield file


def rewrite(file: int, data: bytes) -> None:
    """Replace what an open file holds. Raises OSError, also where a full file system takes only a part."""
    if os.pwrite(file, data, 0) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(file, len(data))


def write_atomically(path: Path, text: str, mode: int) -> None:
    """Readers see the old text or the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode) as file:
        os.fchmod(file, mode)
        rewrite(file, text.encode())
    temporary.replace(path)


def is_own(folder: Path) -> bool:
    """Whether it is a folder that only this user can use."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o77
    return own and os.access(folder, os.W_OK | os.X_OK)


def make_own(folder: Path) -> None:
    """A folder that only this user can use, where there is none. Raises OSError: another one is there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_own(folder):
        raise PermissionError(errno.EPERM, "it is not this user's alone", str(folder))


def keep_whole(folder: Path) -> None:
    """As long as this process lives, systemd-tmpfiles removes nothing there, however old it is. Raises
    OSError: there is no such folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # others may hold it, and some file systems have no locks
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def text_of(path: Path) -> str:
    """Of a file of the kernel's; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def run(command: Sequence[str], seconds: float) -> str:
    """Run a command for so long at most; returns what went wrong, or nothing."""
    try:
        done = subprocess.run(command, timeout=seconds, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = " ".join(done.stderr.decode("utf-8", "replace").split())
    return "" if done.returncode == 0 else said[:300] or f"{command[0]}: exit status {done.returncode}"
