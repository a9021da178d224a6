# SPDX-License-Identifier: GPL-2.0-or-later
"""HTTP over a UNIX socket, `unix:/path`, that its user and root alone can connect to."""

import errno
import http.client
import os
import socket
import stat
from pathlib import Path

PREFIX = "unix:"
MAX_PATH_BYTES = 107


class UnixConnection(http.client.HTTPConnection):
    """As its base, to the socket at `path`."""

    def __init__(self, path: str, deadline_seconds: float) -> None:
        super().__init__("localhost", timeout=deadline_seconds)
        self._path = path

    def connect(self) -> None:
        """Raises OSError; TimeoutError at once where the server has a full queue of clients waiting."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except BlockingIOError as error:
            raise TimeoutError from error


def prepare(own: socket.socket, path: Path) -> None:
    """Before `own` is bound to a path: the file has mode 0600 from the first, and one that a dead server left
    there is removed. Two servers that start at the same moment must be kept apart by a lock of their own.
    Raises OSError, also where a server answers."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"the path of a UNIX socket has at most {MAX_PATH_BYTES} bytes")
    # Linux takes the mode of the file from that of the socket.
    os.fchmod(own.fileno(), 0o600)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # The queue of a living server may be full.
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            # Said of other files, too: those stay, and cannot be bound to.
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "another server answers there")
