# SPDX-License-Identifier: GPL-2.0-or-later
"""Serves a cluster port over standard input and output; runs on a host of a cluster.

    python port_server.py ADAPTER DEADLINE_SECONDS

One call a line, pickled and in base64: `(number, method, arguments)`; answers `(number, result, error)`, in
any order. The method `set_deadline` is the server's own: seconds for the calls that come after it.
Standard library and `controller` only: the file is copied to the cluster by itself.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import sys
from typing import Any

from controller.cluster.adapter import open_cluster


def encode(message: Any) -> bytes:
    return base64.b64encode(pickle.dumps(message, protocol=4)) + b"\n"


def decode(line: bytes) -> Any:
    return pickle.loads(base64.b64decode(line))


async def serve(adapter: Any, deadline_seconds: float) -> None:
    port = open_cluster(adapter, deadline_seconds=deadline_seconds)
    tasks: set[asyncio.Task[None]] = set()

    async def set_deadline(seconds: float) -> None:
        port._deadline_seconds = seconds

    async def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        reply: tuple[int, Any, Exception | None]
        try:
            call = set_deadline if method == "set_deadline" else getattr(port, method)
            reply = (number, await call(*arguments), None)
        except Exception as error:
            reply = (number, None, error)
        sys.stdout.buffer.write(encode(reply))
        sys.stdout.buffer.flush()

    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        task = asyncio.ensure_future(answer(*decode(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await port.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2])))
