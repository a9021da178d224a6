# SPDX-License-Identifier: GPL-2.0-or-later
"""Proof and figures on a real GPU: `python3 -m benchmarks.realgpu --out DIR`.

The real node agent and real jobs on one GPU of this machine, without Slurm. Each stage is a process with a
deadline; what it finds is printed as it comes, and kept in DIR/results.json and DIR/table.txt.
docs/real-gpus.md says what each stage shows and what the machine must have.

Exit status: 0 everything was as it must be, 1 something was not, 2 wrong usage, 3 nothing was wrong, but
something could not be run here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.realgpu.report import FAILED, NOT_RUN, OK, Row, line_of, load, worst, write_results
from benchmarks.realgpu.rig import MARK, ROOT, START_SECONDS, Place, end_remains, make_place
from benchmarks.realgpu.stages import STAGES

NOBODY = 65534
SHORTEST_SECONDS = 15.0
"""A stage that has less time left than this is not begun."""


def main() -> int:
    """Run the stages; see the module's text for the exit status."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    mark = uuid.uuid4().hex
    scratch = Path(tempfile.mkdtemp(prefix="realgpu-", dir=options.scratch))
    try:
        place = Place(scratch, options.gpu, options.uid, options.job_python, mark)
        make_place(place)
        return _run(options, place)
    finally:
        for pid in end_remains(mark):
            print(f"process {pid} does not end; it may still hold the GPU", file=sys.stderr)
        _unmount_below(scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def _run(options: argparse.Namespace, place: Place) -> int:
    until = time.monotonic() + options.limit_s
    found: dict[str, Mapping[str, Any]] = {}
    head = {
        "commit": _commit(),
        "gpu": options.gpu,
        "uid of the jobs": options.uid,
        "mock": options.mock,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    rows = [_user_row(place, options.mock)]
    if rows[0].verdict != OK and place.uid != os.geteuid():
        place = replace(place, uid=os.geteuid())
        os.chown(place.scratch / "jobs", place.uid, -1)
        rows.append(_user_row(place, options.mock))
    found["start"] = {"status": worst(rows), "seconds": 0.0, "rows": [asdict(row) for row in rows]}
    for row in rows:
        print(line_of("start", row), flush=True)
    write_results(options.out, head, found)
    for stage in options.stages:
        found[stage] = _stage(stage, place, options.mock, until - time.monotonic())
        write_results(options.out, head, found)
        print(f"{stage:8} {found[stage]['status']}, {found[stage]['seconds']:.0f} s", flush=True)
    verdicts = {stage["status"] for stage in found.values()}
    print(f"Results: {options.out / 'table.txt'}, {options.out / 'results.json'}")
    return 1 if FAILED in verdicts else 3 if NOT_RUN in verdicts else 0


def _stage(stage: str, place: Place, mock: bool, left_seconds: float) -> Mapping[str, Any]:
    seconds = min(STAGES[stage][1], left_seconds)
    if seconds < SHORTEST_SECONDS:
        row = Row("the stage", f"{max(0.0, left_seconds):.0f} s are left of --limit-s", NOT_RUN)
        return {"status": NOT_RUN, "seconds": 0.0, "rows": [asdict(row)]}
    begin = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.realgpu.stages", stage, "--scratch", str(place.scratch)]
    command += ["--gpu", str(place.gpu), "--uid", str(place.uid), "--job-python", place.python]
    command += ["--mock"] if mock else []
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, MARK: place.mark}, start_new_session=True
    )
    problem = None
    try:
        if process.wait(timeout=seconds) != 0:
            problem = f"it ended with status {process.returncode}; what it printed says why"
    except subprocess.TimeoutExpired:
        problem = f"not done within {seconds:.0f} s"
    finally:
        process.kill()
        process.wait()
        end_remains(place.mark)
    _, rows = load(place.scratch / f"{stage}.json")
    if problem is not None:
        rows.append(Row("the stage", problem, FAILED))
        print(line_of(stage, rows[-1]), flush=True)
    return {
        "status": worst(rows),
        "seconds": round(time.monotonic() - begin, 1),
        "rows": [asdict(row) for row in rows],
    }


def _user_row(place: Place, mock: bool) -> Row:
    """Whether the jobs' user can do what a job does. It also brings PyTorch's files into memory."""
    command = [place.python, str(place.kit / "worker.py"), "--check"]
    command += ["--model", "mock"] if mock else []
    what = f"a job of uid {place.uid} can use the GPU"
    try:
        done = subprocess.run(
            command,
            env=place.environ(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            **place.as_user(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Row(what, str(error), NOT_RUN)
    if done.returncode == 0:
        return Row(what, "yes", OK)
    said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return Row(what, said[-1], NOT_RUN)


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _unmount_below(folder: Path) -> None:
    """The agent mounts a file system for each job's rank files."""
    with contextlib.suppress(OSError):
        mounts = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in mounts:
            if point.startswith(f"{folder}/"):
                subprocess.run(["umount", "-l", point], check=False, timeout=30)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.realgpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument(
        "--stages", default=",".join(STAGES), metavar="A,B,…", help="which of them (%(default)s)"
    )
    parser.add_argument("--gpu", type=int, default=0, help="NVML index (%(default)s)")
    parser.add_argument(
        "--uid",
        type=int,
        default=NOBODY if os.geteuid() == 0 else os.geteuid(),
        help="the jobs' user; another than one's own needs root (%(default)s)",
    )
    parser.add_argument(
        "--job-python", default=sys.executable, help="the jobs' interpreter, with PyTorch (%(default)s)"
    )
    parser.add_argument(
        "--limit-s", type=float, default=570.0, help="seconds for everything together (%(default)s)"
    )
    parser.add_argument(
        "--scratch", type=Path, default=None, help="where other users may enter (the system's own)"
    )
    parser.add_argument(
        "--mock", action="store_true", help="for mock GPUs: jobs without PyTorch, everything small and quick"
    )
    options = parser.parse_args()
    options.stages = options.stages.split(",")
    unknown = [stage for stage in options.stages if stage not in STAGES]
    if unknown:
        parser.error(f"--stages: no stage {unknown[0]!r}; there are {', '.join(STAGES)}")
    if options.uid != os.geteuid() and os.geteuid() != 0:
        parser.error(f"--uid: only root can run jobs of uid {options.uid}")
    if options.gpu < 0 or options.limit_s <= 0:
        parser.error("--gpu must not be negative, --limit-s must be positive")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("results.json", "table.txt"):
        if (options.out / name).exists():
            parser.error(f"--out: {options.out / name} is there already; name another folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
