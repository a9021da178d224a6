# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs commands on a host of the mini cluster, for as long as its standard input is open.

:mod:`container.runner` starts it there, by its text: it imports the standard library alone. Numbers are in
network byte order. A request is REQUEST, a JSON object (`words`, `user`, `env`, `folder`, `has_input`) and
the command's standard input. An answer is ANSWER, the standard output and the errors. Answers come as
commands end, in any order.
"""

import contextlib
import json
import os
import pwd
import selectors
import struct
import subprocess
import sys
import threading
from typing import Any, BinaryIO

REQUEST = struct.Struct(">QII")
"""Number, bytes of the JSON object, bytes of the input."""
ANSWER = struct.Struct(">QiII")
"""Number, exit status, bytes of both outputs."""
CANNOT_START = 126

_answering = threading.Lock()


def serve() -> None:
    """Until the end of the input."""
    source = sys.stdin.buffer
    while head := source.read(REQUEST.size):
        number, words_bytes, input_bytes = REQUEST.unpack(head)
        wanted, data = json.loads(source.read(words_bytes)), source.read(input_bytes)
        threading.Thread(target=_answer, args=(number, wanted, data), daemon=True).start()


def _answer(number: int, wanted: dict[str, Any], data: bytes) -> None:
    try:
        status, out, err = _run(wanted, data if wanted["has_input"] else None)
    except (OSError, KeyError) as error:
        status, out, err = CANNOT_START, b"", f"cannot run {wanted['words']}: {error}\n".encode()
    with _answering:
        sys.stdout.buffer.write(ANSWER.pack(number, status, len(out), len(err)) + out + err)
        sys.stdout.buffer.flush()


def _run(wanted: dict[str, Any], data: bytes | None) -> tuple[int, bytes, bytes]:
    """Status and outputs of a command. It has ended when its process has: what it leaves running may keep the
    outputs open, and what that writes is thrown away."""
    user = pwd.getpwnam(wanted["user"])
    other = user.pw_uid != os.geteuid()
    outputs = [os.pipe() for _ in range(2)]
    for _, end in outputs:
        os.fchown(end, user.pw_uid, user.pw_gid)  # it may open /dev/stderr
    try:
        child = subprocess.Popen(
            wanted["words"],
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=outputs[0][1],
            stderr=outputs[1][1],
            cwd=wanted["folder"],
            env={**os.environ, "HOME": user.pw_dir, **wanted["env"]},
            start_new_session=True,
            user=user.pw_uid if other else None,
            group=user.pw_gid if other else None,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid) if other else None,
        )
    finally:
        for _, end in outputs:
            os.close(end)
    if data is not None:
        threading.Thread(target=_feed, args=(child.stdin, data), daemon=True).start()
    ended, end = os.pipe()
    threading.Thread(target=_await, args=(child, end), daemon=True).start()
    found = {source: bytearray() for source, _ in outputs}
    watched = selectors.DefaultSelector()
    for source in (ended, *found):
        watched.register(source, selectors.EVENT_READ)
    while (ready := [key.fd for key, _ in watched.select()]) != [ended]:
        for source in ready:
            if source != ended and not _read(source, found[source]):
                watched.unregister(source)
    os.close(ended)
    for source in found:
        if source in watched.get_map():
            threading.Thread(target=_throw_away, args=(source,), daemon=True).start()
        else:
            os.close(source)
    watched.close()
    status = child.returncode if child.returncode >= 0 else 128 - child.returncode
    out, err = (bytes(data) for data in found.values())
    return status, out, err


def _await(child: subprocess.Popen[bytes], end: int) -> None:
    child.wait()
    os.close(end)


def _read(source: int, found: bytearray) -> bool:
    """What is there now; false at its end."""
    piece = os.read(source, 1 << 16)
    found += piece
    return bool(piece)


def _feed(target: BinaryIO, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), target:
        target.write(data)


def _throw_away(source: int) -> None:
    while os.read(source, 1 << 16):
        pass
    os.close(source)


if __name__ == "__main__":
    serve()
