# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva allocate`: one allocation problem, solved and shown."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.cli.common import Subparsers, add_options, new_parser
from controller.errors import GandivaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controller.model import JobId
    from controller.policies.allocations.allocation import Allocated, Given

_DESCRIPTION = """\
Solves one allocation problem: jobs with their throughputs on each GPU type, and the GPUs. The answer is the
fraction of the time that each job is to run on each type, what the policy optimises, and the throughput that
each job has then. Needs neither Slurm nor a controller."""

_EXAMPLES = """\
  gandiva allocate --policy gavel-las --problem problem.json
  gandiva allocate --policy gavel-makespan --problem problem.json --json
  … | gandiva allocate --policy allox --problem -     from standard input"""

_OPTIONS = """
--policy NAME   how to allocate, such as gavel-las; a wrong name lists all
--problem FILE  the problem (JSON; -: standard input)
--json          the answer as JSON"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "allocate", "solve one allocation problem", _DESCRIPTION, _EXAMPLES, run)
    add_options(parser, _OPTIONS, policy={"required": True}, problem={"required": True})


def run(args: argparse.Namespace) -> int:
    """Print the allocation. Raises GandivaError where there is none."""
    from controller.cli.problem_file import read_problem
    from controller.policies.allocations.allocation import AllocationError
    from controller.policies.allocations.checked import effective
    from controller.policies.allocations.presets import ALLOCATIONS
    from controller.policies.allocations.settings import KEYS, AllocationSettings, unsuitable
    from controller.solver.solve import find

    if args.policy not in ALLOCATIONS:
        raise GandivaError(f"--policy {args.policy}: must be one of {', '.join(ALLOCATIONS)}")
    text, source = _text(args.problem), str(args.problem)
    given, settings = read_problem(text, source, AllocationSettings, KEYS[args.policy])
    if wrong := unsuitable(args.policy, settings):
        raise GandivaError(f"{source}: options.{wrong} with {args.policy}")
    began = time.monotonic()
    try:
        allocated = ALLOCATIONS[args.policy](settings).allocate(given, find)
    except AllocationError as error:
        raise GandivaError(f"{args.problem}: {error}") from None
    seconds, rates = time.monotonic() - began, effective(given, allocated.fractions)
    if args.json:
        print(json.dumps(_as_json(given, allocated, rates, seconds)))
    else:
        _print(given, allocated, rates, seconds)
    return 0


def _text(path: Path) -> str:
    from controller.cli.problem_file import MOST_BYTES
    from controller.settings.base import read_file

    given = sys.stdin.buffer.read if str(path) == "-" else lambda most: read_file(path, most, GandivaError)
    try:
        return given(MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise GandivaError(f"{path}: not UTF-8 text (byte {error.start}): JSON must be") from None


def _as_json(
    given: Given, allocated: Allocated, rates: Mapping[JobId, float], seconds: float
) -> dict[str, Any]:
    return {
        "allocation": [
            {"jobs": list(jobs), "fractions": dict(by_type)} for jobs, by_type in allocated.fractions.items()
        ],
        "objective": allocated.objective,
        "throughput": [rates[job.id] for job in given.jobs],
        "status": allocated.status,
        "seconds": seconds,
    }


def _print(given: Given, allocated: Allocated, rates: Mapping[JobId, float], seconds: float) -> None:
    gpus = {job.id: job.gpus for job in given.jobs}
    rows = [["JOB", "GPUS", *given.types, "STEPS/S"]]
    for jobs, by_type in allocated.fractions.items():
        if len(jobs) == 1 or any(by_type.values()):
            rate = f"{rates[jobs[0]]:.4f}" if len(jobs) == 1 else ""
            shown = [f"{by_type[name]:.4f}" for name in given.types]
            rows.append(["+".join(map(str, jobs)), str(gpus[jobs[0]]), *shown, rate])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"\nobjective {allocated.objective:.6g}, {allocated.status}, {seconds:.3f} s")
