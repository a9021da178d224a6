# SPDX-License-Identifier: GPL-2.0-or-later
"""Talking to a command in a container, over the engine's raw stream."""

from __future__ import annotations

import socket
import struct
import time
from types import SimpleNamespace

import pytest

from container.execute import _talk


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BxxxI", kind, len(payload)) + payload


def stream_over(ours: socket.socket, read_ahead: int) -> SimpleNamespace:
    """What the SDK returns: the bare socket, whose first bytes were read ahead with the HTTP headers."""
    buffer = ours.makefile("rb")
    if read_ahead:
        buffer.peek(read_ahead)
    response = SimpleNamespace(raw=SimpleNamespace(_fp=SimpleNamespace(fp=buffer)))
    return SimpleNamespace(_sock=ours, _response=response)


@pytest.mark.parametrize("read_ahead", [0, 1])
def test_output_that_came_with_the_headers_is_not_lost(read_ahead: int) -> None:
    ours, engines = socket.socketpair()
    with ours, engines:
        engines.sendall(frame(1, b"early ") + frame(2, b"warning")[:5])
        stream = stream_over(ours, read_ahead)
        engines.sendall(frame(2, b"warning")[5:] + frame(1, b"late"))
        engines.shutdown(socket.SHUT_WR)
        assert _talk(stream, None, time.monotonic() + 60, None) == (b"early late", b"warning")


def test_silence_ends_at_the_deadline() -> None:
    ours, engines = socket.socketpair()
    with ours, engines, pytest.raises(TimeoutError):
        _talk(stream_over(ours, 0), None, time.monotonic() + 0.05, None)
