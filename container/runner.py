# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands on one host, by a process there that stays.

An `exec` of the engine costs 50 to 300 ms of CPU time, which is more than most commands that a test runs; a
command by way of this process costs a few.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from container import on_host
from container.errors import CommandError, DeadlineError
from container.execute import GRACE_SECONDS, Completed, early, frames, guarded, judged

_KILLED: Final = 137
_SOURCE: Final = Path(on_host.__file__).read_text()


class Runner:
    """Runs commands on a host, several at a time; opened at the first, and again when its host came back.

    It may be used by several threads.
    """

    def __init__(self, client: Any, container: str, host: str) -> None:
        """Args:
        client: of the engine.
        container: id or name.
        host: name used in error messages.
        """
        self._client = client
        self._container = container
        self._host = host
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._line: _Line | None = None

    def run(
        self,
        command: str | Sequence[str],
        *,
        user: str,
        timeout_seconds: float,
        check: bool,
        env: Mapping[str, str],
        stdin: str | bytes | None,
        workdir: str | None,
    ) -> Completed:
        """As :func:`container.execute.execute`. Raises CommandError also where the host goes away, `check` or
        not: what became of the command is not known."""
        shown = command if isinstance(command, str) else shlex.join(command)
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        wanted = {
            "words": guarded(command, timeout_seconds),
            "user": user,
            "env": dict(env),
            "folder": workdir or "/",
            "has_input": stdin is not None,
        }
        began = time.monotonic()
        answer = self._ask(json.dumps(wanted).encode(), data)
        try:
            done = answer.result(timeout_seconds + GRACE_SECONDS)
        except ConnectionError as error:
            raise CommandError(self._host, shown, _KILLED, "", str(error)) from error
        except concurrent.futures.TimeoutError as error:
            raise DeadlineError(f"{self._host}: {shown!r}: no answer in {timeout_seconds:g} s") from error
        return judged(done, self._host, shown, time.monotonic() - began, timeout_seconds, check)

    def close(self) -> None:
        """End the process there. What it has started goes on."""
        with self._lock:
            if self._line is not None:
                self._line.close()
                self._line = None

    def _ask(self, words: bytes, data: bytes) -> Future[Completed]:
        number = next(self._numbers)
        request = on_host.REQUEST.pack(number, len(words), len(data)) + words + data
        with self._lock:
            answer = self._line and self._line.send(number, request)
            while not answer:
                self._line = _Line(self._client, self._container)
                answer = self._line.send(number, request)
            return answer


class _Line:
    """One such process, from its start to its end."""

    def __init__(self, client: Any, container: str) -> None:
        words = ["python3", "-c", _SOURCE]
        created = client.api.exec_create(container, words, stdin=True)
        self._stream = client.api.exec_start(created["Id"], socket=True)
        self._socket: socket.socket = getattr(self._stream, "_sock", self._stream)
        self._socket.settimeout(None)
        self._errors = bytearray()
        self._lock = threading.Lock()
        self._ended = False
        self._waiting: dict[int, Future[Completed]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, number: int, request: bytes) -> Future[Completed] | None:
        """Send a request; None, and nothing is sent, where the process is known to have ended."""
        answer: Future[Completed] = Future()
        with self._lock:
            if self._ended:
                return None
            self._waiting[number] = answer
        try:
            self._socket.sendall(request)
        except OSError:
            self._fail()
        return answer

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        received = bytearray()
        with contextlib.suppress(OSError):
            for piece in self._pieces():
                received += piece
                while (found := _answer(received)) is not None:
                    number, done = found
                    self._waiting.pop(number).set_result(done)
        self._fail()
        self._stream.close()

    def _pieces(self) -> Iterator[bytes]:
        """What the process says, as it comes."""
        coming = bytearray(early(self._stream))
        while True:
            for is_error, payload in frames(coming):
                if is_error:
                    self._errors += payload
                else:
                    yield payload
            piece = self._socket.recv(1 << 16)
            if not piece:
                return
            coming += piece

    def _fail(self) -> None:
        """The process has ended, and with it what it ran."""
        with self._lock:
            self._ended = True
            left, self._waiting = self._waiting, {}
        why = f"the host went away: {self._errors.decode(errors='replace').strip() or 'no word of it'}"
        for answer in left.values():
            answer.set_exception(ConnectionError(why))


def _answer(received: bytearray) -> tuple[int, Completed] | None:
    """Take the first answer off the front of what was received, where it is complete."""
    if len(received) < on_host.ANSWER.size:
        return None
    number, status, *sizes = on_host.ANSWER.unpack_from(received)
    begin = on_host.ANSWER.size
    middle, end = begin + sizes[0], begin + sum(sizes)
    if len(received) < end:
        return None
    out, err = (bytes(received[a:b]).decode(errors="replace") for a, b in ((begin, middle), (middle, end)))
    del received[:end]
    return number, Completed(out, err, status)
