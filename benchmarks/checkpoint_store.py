# SPDX-License-Identifier: GPL-2.0-or-later
"""Checkpoint store against the raw disk: the same bytes, the same file system, turn by turn in one run.

    python benchmarks/checkpoint_store.py [--dir DIR] [--mib N] [--rounds N] [--json]

Raw is what dd and cat do. A raw write: plain writes into a new file and one fsync. A raw read: plain reads
into new memory of the size of the file, because a restore ends with all bytes in memory of the job. The store
adds checksums, manifests and their fsyncs, atomic publishing, and the removal of the generation before; the
raw file of the round before is removed outside the measured time. What is saved lies in memory from
`Store.buffer()`, as `State.save()` has it. Before each write and read the page cache gives up the files. The
aim is 0.9 of the raw disk.

The same rounds measure for information, each alone: raw reads into one small buffer, which no restore can
use; raw writes and reads past the page cache, as the store has them; the checksums, by as many threads as the
store has for them; the removal of the raw file; and filling new memory of that size. Each line has the
processor time beside the time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checkpointing.store import Store
from checkpointing.store.files import CHUNK_BYTES
from checkpointing.store.manifest import PIECE_BYTES
from checkpointing.store.reading import checksum_threads
from checkpointing.store.staging import new_memory

AIM: Final = 0.9
FILES: Final = 2
PLAIN_BYTES: Final = 8 << 20


class Cost(NamedTuple):
    seconds: float
    processor_seconds: float


def cost(work: Callable[[], object]) -> Cost:
    began, processor = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - began, time.process_time() - processor)


def write_raw(path: Path, data: memoryview, flags: int = 0, chunk_bytes: int = PLAIN_BYTES) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600)
    for begin in range(0, len(data), chunk_bytes):
        os.write(fd, data[begin : begin + chunk_bytes])
    os.fsync(fd)
    os.close(fd)


def read_raw(path: Path, flags: int = 0, chunk_bytes: int = PLAIN_BYTES) -> None:
    size = path.stat().st_size
    into, done = memoryview(new_memory(size)), 0
    fd = os.open(path, os.O_RDONLY | flags)
    while done < size:
        done += os.readv(fd, [into[done : done + chunk_bytes]])
    os.close(fd)


def read_small(path: Path, buffer: bytearray) -> None:
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def checksums(data: memoryview) -> None:
    """What the store's threads compute of these bytes, and nothing else."""
    pieces = [data[begin : begin + PIECE_BYTES] for begin in range(0, len(data), PIECE_BYTES)]
    with ThreadPoolExecutor(checksum_threads()) as pool:
        list(pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces))


def fill(size_bytes: int) -> None:
    """New memory, as the store takes it for what it reads."""
    into, chunk = memoryview(new_memory(size_bytes)), bytes(1 << 20)
    for begin in range(0, size_bytes, len(chunk)):
        into[begin : begin + len(chunk)] = chunk


def forget(folder: Path) -> None:
    """Take the files out of the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder: Path, size_bytes: int, rounds: int) -> dict[str, list[Cost]]:
    """What each round took. The order changes from round to round."""
    chance, data = random.Random(1), memoryview(new_memory(size_bytes))
    for begin in range(0, size_bytes, 1 << 20):
        data[begin : begin + (1 << 20)] = chance.randbytes(1 << 20)
    part = len(data) // FILES
    contents = {f"part{n}": data[n * part : (n + 1) * part] for n in range(FILES)}
    raw, direct, small = folder / "raw", folder / "direct", bytearray(PLAIN_BYTES)
    store = Store(folder / "store", rank=0, world_size=1, keep=1)
    found: dict[str, list[Cost]] = {}
    steps: list[int] = []

    def save() -> None:
        steps.append(store.save(len(steps), contents) - 1)

    def restore() -> None:
        restored = store.restore()
        assert restored is not None and restored.step == steps[-1]

    writes: dict[str, Callable[[], object]] = {
        "raw write": lambda: write_raw(raw, data),
        "save": save,
        "raw write past the page cache": lambda: write_raw(direct, data, os.O_DIRECT, CHUNK_BYTES),
        "checksums": lambda: checksums(data),
    }
    reads: dict[str, Callable[[], object]] = {
        "raw read": lambda: read_raw(raw),
        "restore": restore,
        "raw read past the page cache": lambda: read_raw(direct, os.O_DIRECT, CHUNK_BYTES),
        "raw read into a small buffer": lambda: read_small(raw, small),
        "new memory": lambda: fill(size_bytes),
    }
    for _ in range(rounds):
        for group in (writes, reads):
            for name in chance.sample(list(group), len(group)):
                forget(folder)
                found.setdefault(name, []).append(cost(group[name]))
        found.setdefault("removal", []).append(cost(raw.unlink))
        direct.unlink()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="a folder on the file system in question (default: $TMPDIR)")
    parser.add_argument("--mib", type=int, default=512, help="MiB of a checkpoint (default: 512)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="gandiva-checkpoint-", dir=options.dir) as name:
        found = measure(Path(name), options.mib << 20, options.rounds)
    median = {name: statistics.median(each.seconds for each in costs) for name, costs in found.items()}
    ratios = {
        "write": median["raw write"] / median["save"],
        "restore": median["raw read"] / median["restore"],
    }
    if options.json:
        print(json.dumps({"mib": options.mib, "aim": AIM, "load": load, "costs": found, "ratios": ratios}))
        return 0
    print(f"{options.mib} MiB, median of {options.rounds} rounds, load {load:.1f} before them")
    for name, seconds in median.items():
        processor = statistics.median(each.processor_seconds for each in found[name])
        each = " ".join(f"{one.seconds:.2f}" for one in found[name])
        print(
            f"  {name:29} {seconds:6.3f} s {options.mib / seconds:7.0f} MiB/s, {processor:.2f} s CPU ({each})"
        )
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} of the raw disk (aim: {AIM}{'' if ratio >= AIM else ', missed'})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
