# SPDX-License-Identifier: GPL-2.0-or-later
"""`make kills`: a writer of the checkpoint store is killed at random points, again and again in one store.

    python -m tests.unit.checkpointing.kills [COUNT] [SEED]

The writer says each generation that it has published. After each kill the newest valid generation must be
that one or the one that it was writing, and whole.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from checkpointing.store import Store
from tests.unit.checkpointing.watched import check, contents, restored

_STEP: Final = struct.Struct("q")
MOST_SAVES: Final = 4
"""A writer is killed after the time of so many saves at the latest."""


class Result(NamedTuple):
    kills: int
    saves: int


def run(folder: Path, count: int, seed: int) -> Result:
    """Raises AssertionError where a generation is lost or not what was saved."""
    chance = random.Random(seed)
    began = time.monotonic()
    store = Store(folder, rank=0, world_size=1)
    for step in range(1, MOST_SAVES + 1):
        store.save(step, contents(step))
    most_seconds = min(1.0, time.monotonic() - began)
    step = MOST_SAVES
    for _ in range(count):
        published = _kill_a_writer(folder, step, chance.uniform(0.0, most_seconds))
        found = restored(folder)
        step = check(found, least_step=max(published, step))
        assert step <= published + 1
    return Result(count, step)


def _kill_a_writer(folder: Path, step: int, seconds: float) -> int:
    """The last step that it said it has saved."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store = Store(folder, rank=0, world_size=1)
            while True:
                step += 1
                store.save(step, contents(step))
                os.write(writer, _STEP.pack(step))
        finally:
            os._exit(1)
    os.close(writer)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the writer ended by itself"
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    return _STEP.unpack(said[-_STEP.size :])[0] if said else step


def main() -> int:
    count, seed = (int(word) for word in [*sys.argv[1:3], "1000", "1"][:2])
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gandiva-kills-") as name:
        found = run(Path(name), count, seed)
    print(
        f"{found.kills} kills, {found.saves} generations published, "
        f"each restorable after the next kill ({time.monotonic() - began:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
