# SPDX-License-Identifier: GPL-2.0-or-later
"""A process with mock GPUs that does what it is told, one JSON line at a time.

Requests are `[name, argument, …]`; the answer is `{"result": …}`, or `{"error": CUresult}`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
if True:  # the folder of the binding has to be on the path first
    import mockcuda  # type: ignore[import-not-found,unused-ignore]

contexts: list[Any] = []


def context(device: int) -> int:
    contexts.append(mockcuda.Context(device))
    return len(contexts) - 1


def timed(microseconds: int, share: int) -> float:
    """Seconds that one kernel took."""
    began = time.monotonic()
    contexts[0].spin(microseconds, share)
    contexts[0].synchronize()
    return time.monotonic() - began


def digest(which: int, address: int, size: int) -> str:
    return hashlib.sha256(contexts[which].copy_out(address, size)).hexdigest()


def forked_alloc() -> int:
    """What cuMemAlloc says in a child made by fork."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            contexts[0].alloc(1 << 20)
            code = 0
        except mockcuda.CudaError as error:
            code = error.code
        os.write(writer, bytes([code]))
        os._exit(0)
    code = os.read(reader, 1)[0]
    os.wait()
    return code


def uuids() -> list[str]:
    return [mockcuda.device_uuid(device) for device in range(mockcuda.device_count())]


def become_sleep() -> None:
    """Goes on as another program, without CUDA."""
    os.execvp("sleep", ["sleep", "60"])


COMMANDS: dict[str, Callable[..., Any]] = {
    "init": mockcuda.init,
    "context": context,
    "destroy": lambda which: contexts[which].destroy(),
    "alloc": lambda which, *sizes: contexts[which].alloc(*sizes),
    "communicator": lambda which: contexts[which].create_communicator(),
    "no_communicator": lambda which: contexts[which].destroy_communicator(),
    "free": lambda which, address: contexts[which].free(address),
    "fill": lambda which, address, value, size: contexts[which].fill(address, value, size),
    "step": lambda which, *arguments: contexts[which].step(*arguments),
    "spin": lambda which, microseconds, share: contexts[which].spin(microseconds, share),
    "sync": lambda which: contexts[which].synchronize(),
    "memory": lambda which: contexts[which].memory_info(),
    "uuids": uuids,
    "digest": digest,
    "timed": timed,
    "forked_alloc": forked_alloc,
    "become_sleep": become_sleep,
    "state": mockcuda.checkpoint_state,
    "restore_thread": mockcuda.checkpoint_restore_thread,
    "lock": mockcuda.checkpoint_lock,
    "checkpoint": mockcuda.checkpoint_save,
    "restore": mockcuda.checkpoint_restore,
    "unlock": mockcuda.checkpoint_unlock,
}


def main() -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"result": COMMANDS[name](*arguments)}
        except mockcuda.CudaError as error:
            answer = {"error": error.code}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
