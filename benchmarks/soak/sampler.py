# SPDX-License-Identifier: GPL-2.0-or-later
"""What the parts cost, on one host of the cluster: `python3 sampler.py FOLDER NAME SECONDS`.

Every SECONDS one JSON line in FOLDER/samples-NAME.jsonl: processor seconds, resident memory, threads and file
descriptors by kind of process, and (on the controller's host) the controller's own metrics. Processor time is
the processes' own count and does not depend on what else the machine does. Ends when FOLDER/done exists.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

KINDS = (
    ("controller", re.compile(r"gandiva\0daemon")),
    ("pyslurm workers", re.compile(r"pyslurm_worker")),
    ("node agents", re.compile(r"gandiva-agent")),
    ("slurmctld", re.compile(r"(^|/)slurmctld\0")),
    ("slurmstepd", re.compile(r"^slurmstepd")),
    ("slurmd", re.compile(r"(^|/)slurmd\0")),
    ("sshd", re.compile(r"sshd")),
    ("jobs", re.compile(r"job\.py\0")),
)
METRICS = "http://localhost:6822/metrics"
WANTED = (
    "gandiva_gpus{",
    "gandiva_jobs{",
    "gandiva_journal_size_bytes",
    "gandiva_observe_duration_seconds",
    "gandiva_operations_total",
    "gandiva_plan_duration_seconds",
    "gandiva_step_failures_total",
    "gandiva_ticks_total",
)
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def processes() -> Iterator[tuple[str, float, int, int, int]]:
    """(kind, processor seconds, resident bytes, threads, descriptors) of each process of a known kind."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            kind = next((name for name, pattern in KINDS if pattern.search(command)), None)
            if kind is None:
                continue
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            # utime and stime, and for those that end often also what their dead children used.
            seconds = (int(fields[11]) + int(fields[12])) / _TICKS
            descriptors = sum(1 for _ in (entry / "fd").iterdir()) if kind == "controller" else 0
            yield kind, seconds, int(fields[21]) * _PAGE, int(fields[17]), descriptors
        except (OSError, IndexError, ValueError):
            continue  # it has just ended


def metrics() -> dict[str, float]:
    """Those of the controller's metrics that are wanted; nothing where it does not answer."""
    try:
        with urllib.request.urlopen(METRICS, timeout=2) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        if line.startswith(WANTED) and 'node="' not in line:
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def sample(with_metrics: bool) -> dict[str, object]:
    """One line."""
    kinds: dict[str, dict[str, float]] = {}
    for kind, seconds, resident, threads, descriptors in processes():
        sums = kinds.setdefault(
            kind, {"processes": 0, "cpu_seconds": 0, "rss_bytes": 0, "threads": 0, "descriptors": 0}
        )
        sums["processes"] += 1
        sums["cpu_seconds"] += seconds
        sums["rss_bytes"] += resident
        sums["threads"] += threads
        sums["descriptors"] += descriptors
    return {"time": time.time(), "kinds": kinds, "metrics": metrics() if with_metrics else {}}


def main() -> None:
    """Until told to end."""
    folder, name, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    with (folder / f"samples-{name}.jsonl").open("w") as file:
        while not (folder / "done").exists():
            print(json.dumps(sample(name == "ctl")), file=file, flush=True)
            time.sleep(seconds)


if __name__ == "__main__":
    main()
