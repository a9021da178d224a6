# SPDX-License-Identifier: GPL-2.0-or-later
"""Checkpoint store against the raw disk: the same bytes, the same file system, turn by turn in one run.

    python benchmarks/checkpoint_store.py [--dir DIR] [--mib N] [--rounds N] [--json]

Raw is what dd does: plain writes into one file and one fsync; plain reads into one buffer. The store adds
checksums, manifests and their fsyncs, and atomic publishing; its reading keeps all content in memory. Before
each read the page cache gives up the file. In the same rounds two parts of the store's work are measured
alone: the checksums, by as many threads as the store has, and filling new memory of that size, which reading
into one small buffer spares. The store cannot be faster than these. The aim is 0.9 of the raw disk.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checkpointing.store import Store
from checkpointing.store.files import CHUNK_BYTES
from checkpointing.store.manifest import PIECE_BYTES
from checkpointing.store.reading import checksum_threads
from checkpointing.store.staging import buffer

AIM: Final = 0.9
FILES: Final = 2


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def write_raw(path: Path, data: memoryview) -> None:
    with path.open("wb", buffering=0) as file:
        for begin in range(0, len(data), CHUNK_BYTES):
            file.write(data[begin : begin + CHUNK_BYTES])
        os.fsync(file.fileno())


def read_raw(path: Path) -> None:
    buffer = bytearray(CHUNK_BYTES)
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
    into, chunk = buffer(size_bytes), bytes(1 << 20)
    for begin in range(0, size_bytes, len(chunk)):
        into[begin : begin + len(chunk)] = chunk


def forget(folder: Path) -> None:
    """Take the files out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder: Path, size_bytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round. What comes first changes from round to round."""
    data = memoryview(os.urandom(1 << 20) * (size_bytes >> 20))
    part = len(data) // FILES
    contents = {f"part{n}": data[n * part : (n + 1) * part] for n in range(FILES)}
    raw = folder / "raw"
    store = Store(folder / "store", rank=0, world_size=1, keep=1)
    names = ("raw write", "save", "raw read", "restore", "checksums", "new memory")
    found: dict[str, list[float]] = {name: [] for name in names}

    def restore() -> None:
        restored = store.restore()
        assert restored is not None and restored.step == step

    for step in range(rounds):
        raw.unlink(missing_ok=True)
        writes: list[tuple[str, Callable[[], object]]] = [
            ("raw write", lambda: write_raw(raw, data)),
            ("save", lambda step=step: store.save(step, contents)),  # type: ignore[misc]
        ]
        reads: list[tuple[str, Callable[[], object]]] = [
            ("raw read", lambda: read_raw(raw)),
            ("restore", restore),
        ]
        for pair in (writes, reads):
            for name, work in reversed(pair) if step % 2 else pair:
                os.sync()
                forget(folder)
                found[name].append(seconds(work))
        found["checksums"].append(seconds(lambda: checksums(data)))
        found["new memory"].append(seconds(lambda: fill(len(data))))
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
    with tempfile.TemporaryDirectory(prefix="gandiva-checkpoint-", dir=options.dir) as name:
        found = measure(Path(name), options.mib << 20, options.rounds)
    median = {name: statistics.median(times) for name, times in found.items()}
    ratios = {
        "write": median["raw write"] / median["save"],
        "restore": median["raw read"] / median["restore"],
    }
    if options.json:
        print(json.dumps({"mib": options.mib, "aim": AIM, "seconds": found, "ratios": ratios}))
        return 0
    print(f"{options.mib} MiB, median of {options.rounds} rounds")
    for name, value in median.items():
        each = " ".join(f"{one:.2f}" for one in found[name])
        print(f"  {name:10} {value:7.2f} s {options.mib / value:8.0f} MiB/s   ({each})")
    least = {"write": median["checksums"], "restore": max(median["checksums"], median["new memory"])}
    bounds = {
        "write": median["raw write"] / max(median["raw write"], least["write"]),
        "restore": median["raw read"] / max(median["raw read"], least["restore"]),
    }
    for name, ratio in ratios.items():
        print(
            f"{name}: {ratio:.2f} of the raw disk (aim: {AIM}{'' if ratio >= AIM else ', missed'}), "
            f"no more than {bounds[name]:.2f} is possible here"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
