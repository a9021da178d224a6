# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands in containers, always with a deadline."""

from __future__ import annotations

import io
import select
import shlex
import socket
import struct
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import docker.errors

from container.errors import CommandError, DeadlineError

_HEADER: Final = struct.Struct(">BxxxI")
"""Docker's frame: stream (1 stdout, 2 stderr), length of the payload."""
_STDERR: Final = 2
GRACE_SECONDS: Final = 10
"""Time for `timeout` inside the container to end the command before we stop listening to it."""
_TIMED_OUT: Final = frozenset({124, 137})


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended."""

    stdout: str
    stderr: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Content:
    """A file to be put into a container."""

    data: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_seconds: int = 0


def execute(
    client: Any,
    container: str,
    command: str | Sequence[str],
    *,
    host: str = "",
    user: str = "root",
    timeout_seconds: float = 60.0,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    stdin: str | bytes | None = None,
    workdir: str | None = None,
    on_output: Callable[[str], None] | None = None,
) -> Completed:
    """Run a command in a running container and wait for its end.

    Args:
        client: of the engine.
        container: id or name.
        command: a list of words, or a text for `bash -c`.
        host: name used in error messages (default: `container`).
        user: who runs it.
        timeout_seconds: then it is killed, inside the container.
        check: whether a status other than 0 raises.
        env: added to its environment.
        stdin: its standard input; None: empty.
        workdir: its working directory.
        on_output: called with the output as it comes, in pieces.

    Raises:
        CommandError: the status is not 0 and `check` is given.
        DeadlineError: it was killed because it took too long.
    """
    shown = command if isinstance(command, str) else shlex.join(command)
    host = host or container
    api = client.api
    created = api.exec_create(
        container,
        guarded(command, timeout_seconds),
        user=user,
        stdin=stdin is not None,
        environment=dict(env) if env else None,
        workdir=workdir,
    )
    began = time.monotonic()
    stream = api.exec_start(created["Id"], socket=True)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        stdout, stderr = _talk(stream, data, began + timeout_seconds + GRACE_SECONDS, on_output)
    except TimeoutError as error:
        raise DeadlineError(f"{host}: {shown!r}: no answer in {timeout_seconds:g} s") from error
    finally:
        stream.close()
    status = _status(api, created["Id"])
    done = Completed(stdout.decode(errors="replace"), stderr.decode(errors="replace"), status)
    return judged(done, host, shown, time.monotonic() - began, timeout_seconds, check)


def guarded(command: str | Sequence[str], timeout_seconds: float) -> list[str]:
    """The words of a command that ends itself: to close our side of it would leave it running."""
    words = ["bash", "-c", command] if isinstance(command, str) else list(command)
    return ["timeout", "--kill-after=2", f"{timeout_seconds:.3f}", *words]


def judged(
    done: Completed, host: str, shown: str, seconds: float, timeout_seconds: float, check: bool
) -> Completed:
    """What became of a command after so many seconds. Raises as :func:`execute` says."""
    if done.exit_code in _TIMED_OUT and seconds >= timeout_seconds:
        tail = (done.stderr or done.stdout)[-500:]
        raise DeadlineError(f"{host}: {shown!r} was killed after {timeout_seconds:g} s: {tail}")
    if check and done.exit_code != 0:
        raise CommandError(host, shown, done.exit_code, done.stdout, done.stderr)
    return done


def put_files(client: Any, container: str, files: Mapping[str, Content]) -> None:
    """Write files into a container, running or only created; missing folders are made (0755, root)."""
    client.api.put_archive(container, "/", pack(files))


def get_file(client: Any, container: str, path: str) -> bytes:
    """The content of a file in a container, running or not.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        chunks, _ = client.api.get_archive(container, path)
        archive = b"".join(chunks)
    except docker.errors.NotFound as error:
        raise FileNotFoundError(f"{container}:{path}") from error
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None:
                return file.read()
    raise FileNotFoundError(f"{container}:{path} is no regular file")


def pack(files: Mapping[str, Content]) -> bytes:
    """A tar archive of files, by absolute path; the same files give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(files):
            content = files[path]
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size = len(content.data)
            member.mode = content.mode
            member.uid, member.gid = content.uid, content.gid
            member.mtime = content.mtime_seconds
            tar.addfile(member, io.BytesIO(content.data))
    return buffer.getvalue()


def _talk(
    stream: Any, data: bytes | None, deadline: float, on_output: Callable[[str], None] | None
) -> tuple[bytes, bytes]:
    """Send the input, collect both outputs until the command closes them."""
    connection: socket.socket = getattr(stream, "_sock", stream)
    connection.setblocking(False)
    stdout, stderr = bytearray(), bytearray()
    received = bytearray(early(stream))
    unsent = memoryview(data or b"")
    writing = data is not None

    def sort_out() -> None:
        for is_error, payload in frames(received):
            (stderr if is_error else stdout).extend(payload)
            if on_output is not None:
                on_output(payload.decode(errors="replace"))

    while True:
        sort_out()
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        readable, writable, _ = select.select([connection], [connection] if writing else [], [], left)
        if writable:
            writing, unsent = _send(connection, unsent)
        if not readable:
            continue
        try:
            piece = connection.recv(65536)
        except BlockingIOError:
            continue
        if not piece:
            return bytes(stdout), bytes(stderr)
        received += piece


def early(stream: Any) -> bytes:
    """Output that came in one packet with the engine's HTTP headers: it sits in the buffer from which these
    were read, and the bare socket, which is all the SDK gives us, would never show it."""
    response = getattr(stream, "_response", None)
    buffer = getattr(getattr(getattr(response, "raw", None), "_fp", None), "fp", None)
    if buffer is None or buffer.closed:
        return b""
    return bytes(buffer.peek())


def _send(connection: socket.socket, unsent: memoryview) -> tuple[bool, memoryview]:
    """One step of writing; at the end the command sees the end of its input."""
    try:
        if unsent:
            unsent = unsent[connection.send(unsent[:65536]) :]
        if not unsent:
            connection.shutdown(socket.SHUT_WR)
            return False, unsent
    except BlockingIOError:
        pass
    except (BrokenPipeError, ConnectionResetError):
        return False, unsent  # The command ended without reading all: its status says enough.
    return True, unsent


def frames(received: bytearray) -> list[tuple[bool, bytes]]:
    """Take the complete frames off the front of what was received: whether of the errors, and the payload."""
    found = []
    while len(received) >= _HEADER.size:
        kind, length = _HEADER.unpack_from(received)
        end = _HEADER.size + length
        if len(received) < end:
            break
        found.append((kind == _STDERR, bytes(received[_HEADER.size : end])))
        del received[:end]
    return found


def _status(api: Any, exec_id: str) -> int:
    """The exit status; the engine may need a moment after the outputs are closed."""
    for _ in range(100):
        status = api.exec_inspect(exec_id)["ExitCode"]
        if status is not None:
            return int(status)
        time.sleep(0.02)
    raise DeadlineError("the Docker engine does not say how a command ended")
