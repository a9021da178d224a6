# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads files as a user, so that they are in the page cache: `python -I page_cache.py BYTES UID GID GROUPS`.

The paths come on standard input, separated by NUL. What cannot be read, is no ordinary file, or exceeds what
is left of BYTES is passed over. Prints how many bytes were read. The agent runs this file by its path: it
imports nothing but the standard library.
"""

import contextlib
import os
import stat
import sys

CHUNK_BYTES = 1 << 20


def read(path: bytes, most_bytes: int) -> int:
    """The bytes of one file. Raises OSError."""
    # A pipe in the place of a file must not make the reader wait.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            return 0
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        done = 0
        while done <= found.st_size and (chunk := os.read(file, CHUNK_BYTES)):
            done += len(chunk)
        return done
    finally:
        os.close(file)


def main() -> None:
    """Become the user, for good, and read them all."""
    most_bytes, uid, gid = (int(word) for word in sys.argv[1:4])
    if os.geteuid() == 0:
        os.setgroups([int(word) for word in sys.argv[4].split(",")])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    os.nice(19)
    left_bytes = most_bytes
    for path in sys.stdin.buffer.read().split(b"\0"):
        with contextlib.suppress(OSError, ValueError):
            left_bytes -= read(path, left_bytes)
    print(most_bytes - left_bytes)


if __name__ == "__main__":
    main()
