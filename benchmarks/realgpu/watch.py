# SPDX-License-Identifier: GPL-2.0-or-later
"""Watches one GPU through NVML and writes down who holds memory on it: `python3 watch.py --gpu 0 --out FILE`.

Knows nothing of the project, so that no error of the project can hide here: pynvml and the standard library
are all it imports. It looks every few milliseconds and writes a JSON line whenever something has changed;
between two lines things were as the first one says. SIGTERM ends it with a line that says how often it
looked, and how long it once did not.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Overlap:
    """Two or more jobs on the GPU at one sample."""

    time: float
    held_bytes: Mapping[str, int]


@dataclass(frozen=True)
class Verdict:
    """What the watcher's lines say about jobs that should never be on the GPU together."""

    samples: int
    longest_gap_seconds: float
    overlaps: tuple[Overlap, ...]
    strangers: Mapping[int, int]
    """Most bytes held by processes of no job, by pid."""
    unread: int
    """Changes from which on the GPU could not be read for a while."""
    seen: Mapping[str, int]
    """Most bytes held by each job: a watcher that saw no job proves nothing."""


UNKNOWN_BYTES = 1 << 62
"""A size that NVML does not tell could be any."""


def judge(
    lines: Iterable[Mapping[str, Any]], jobs: Mapping[str, Collection[int]], allowed_bytes: int = 0
) -> Verdict:
    """Jobs are given as the pids of their processes; each may leave so much on the GPU while it is off it."""
    owner = {pid: job for job, pids in jobs.items() for pid in pids}
    overlaps, unread, samples, gap = [], 0, 0, 0.0
    strangers: dict[int, int] = {}
    seen: dict[str, int] = {}
    for line in lines:
        if "samples" in line:
            samples, gap = int(line["samples"]), float(line["longest_gap_seconds"])
            continue
        if "error" in line:
            unread += 1
            continue
        held: dict[str, int] = {}
        for pid_text, size in line["processes"].items():
            pid, nbytes = int(pid_text), UNKNOWN_BYTES if size is None else int(size)
            if pid in owner:
                held[owner[pid]] = held.get(owner[pid], 0) + nbytes
            elif nbytes:
                strangers[pid] = max(nbytes, strangers.get(pid, 0))
        for job, nbytes in held.items():
            seen[job] = max(nbytes, seen.get(job, 0))
        there = {job: nbytes for job, nbytes in held.items() if nbytes > allowed_bytes}
        if len(there) > 1:
            overlaps.append(Overlap(float(line["time"]), there))
    return Verdict(samples, gap, tuple(overlaps), strangers, unread, seen)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines that a watcher has written so far."""
    text = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in text if line.endswith("\n")]


def sample(pynvml: Any, handle: Any) -> dict[str, Any]:
    """Who holds how much now; None where NVML lists a process without a size."""
    processes: dict[str, int | None] = {}
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        size = process.usedGpuMemory
        processes[str(process.pid)] = None if size is None else int(size)
    return {"processes": processes, "used": int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)}


def watch(gpu: int, every_seconds: float, out: Path) -> None:
    """Until SIGTERM."""
    import pynvml

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    last: dict[str, Any] = {}
    samples, longest, before = 0, 0.0, time.monotonic()
    with out.open("w", buffering=1) as file:
        while not stopped:
            try:
                now = sample(pynvml, handle)
            except pynvml.NVMLError as error:
                now = {"error": str(error)}
            at = time.monotonic()
            longest = max(longest, at - before)
            before = at
            samples += 1
            if now != last:
                print(json.dumps({"time": time.time(), **now}), file=file)
                last = now
            time.sleep(max(0.0, every_seconds - (time.monotonic() - at)))
        print(json.dumps({"samples": samples, "longest_gap_seconds": longest}), file=file)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", type=int, default=0, help="NVML index (%(default)s)")
    parser.add_argument("--every-ms", type=float, default=10.0, help="(%(default)s)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    watch(options.gpu, options.every_ms / 1000, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
