# SPDX-License-Identifier: GPL-2.0-or-later
"""Checkpoint store against the raw disk: the same bytes, the same file system, turn by turn in one run.

    python benchmarks/checkpoint_store.py [--dir DIR] [--mib N] [--rounds N] [--json]

Raw is what dd does: plain writes into one file and one fsync; plain reads into one buffer. The store adds
checksums, manifests and their fsyncs, and atomic publishing; its reading keeps all content in memory. Before
each read the page cache gives up the file. The aim is 0.9 of the raw disk's throughput.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checkpointing.store import Store
from checkpointing.store.files import CHUNK_BYTES

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
    found: dict[str, list[float]] = {name: [] for name in ("raw write", "save", "raw read", "restore")}

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
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} of the raw disk (aim: {AIM}{'' if ratio >= AIM else ', missed'})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
