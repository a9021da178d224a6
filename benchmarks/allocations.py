# SPDX-License-Identifier: GPL-2.0-or-later
"""How long an allocation takes, beside Gavel's own code on the same problem, by policy and number of jobs.

    python -m benchmarks.allocations --rows rows.jsonl [--only REGEX] [--jobs N …]   goes on where it stopped
    python -m benchmarks.allocations --rows rows.jsonl --write docs/performance.md   makes table and plot
    python -m benchmarks.allocations --worker                                        in the solver's process

GANDIVA_GAVEL         clone of stanford-futuredata/gavel (commit c4fa400 was used)
GANDIVA_GAVEL_PYTHON  a Python with cvxpy, ecos, cvxopt, psutil and numpy < 2.3

CPU seconds of one thread. Theirs: `get_allocation` with ECOS, as their simulations have it. Ours: all that
the controller and its solver's process do from the state of the jobs to the fractions, with default settings.
Theirs ends with the first number of jobs that takes longer than `--limit-seconds` or more than 8 GiB. Both
answers are measured by what the policy optimises.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.allocation_report import write
from benchmarks.fidelity.gavel_ways.allocations import allocate
from benchmarks.fidelity.gavel_ways.settings import WaySettings
from benchmarks.peers.measure import ROOT, environment
from controller.cli.problem_file import read_problem
from controller.model import JobId
from controller.policies.allocations.allocation import AllocationJob, Fractions, Given
from controller.policies.allocations.as_problem import AsProblem
from controller.policies.allocations.checked import effective
from controller.policies.allocations.layout import Layout
from controller.policies.allocations.settings import KEYS, AllocationSettings
from controller.policies.allocations.shares import equal_throughputs, isolated_throughputs
from controller.policies.allocations.worker import COMMAND, answers
from controller.settings.base import Section
from controller.solver import WorkerSolver
from controller.solver.frames import decode, encode
from controller.solver.solve import answer

CLONE = Path(os.environ.get("GANDIVA_GAVEL", "no clone"))
PYTHON = os.environ.get("GANDIVA_GAVEL_PYTHON", "python3")
SCRIPT = Path(__file__).with_name("peers") / "gavel_shipped.py"
SIZES = [32, 64, 128, 256, 512, 1024, 2048]
MOST_BYTES = 8 << 30
ROUNDS = 5
"""Of measurements in the solver's process; the first, which starts it, does not count."""
SHORT_SECONDS, LONG_SECONDS, MOST_TIMES = 0.5, 10.0, 500
"""Short ones are measured several times. Long ones once: what loading takes does not matter."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
AGNOSTIC: Mapping[str, Any] = {"throughputs": "agnostic"}
AS_V100: Mapping[str, Any] = {"throughputs": "agnostic", "agnostic_type": "v100"}
PAIRS: Mapping[str, Any] = {"space_sharing": True}
POLICIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "max_min_fairness": ("gavel-las", AGNOSTIC),
    "max_min_fairness_perf": ("gavel-las", {}),
    "max_min_fairness_packed": ("gavel-las", PAIRS),
    "finish_time_fairness": ("gavel-ftf", AS_V100),
    "finish_time_fairness_perf": ("gavel-ftf", {}),
    "finish_time_fairness_packed": ("gavel-ftf", PAIRS),
    "min_total_duration": ("gavel-makespan", AS_V100),
    "min_total_duration_perf": ("gavel-makespan", {}),
    "min_total_duration_packed": ("gavel-makespan", PAIRS),
    "max_sum_throughput_perf": ("gavel-max-throughput", {}),
    "max_sum_throughput_normalized_by_cost_perf": ("gavel-cost", {}),
    "max_sum_throughput_normalized_by_cost_perf_SLOs": ("gavel-cost-slo", {}),
    "max_sum_throughput_normalized_by_cost_packed_SLOs": ("gavel-cost-slo", PAIRS),
    "max_min_fairness_water_filling": ("gavel-hierarchical", AGNOSTIC),
    "max_min_fairness_water_filling_perf": ("gavel-hierarchical", {}),
    "max_min_fairness_water_filling_packed": ("gavel-hierarchical", PAIRS),
    "max_min_fairness_strategy_proof_perf": ("gavel-strategy-proof", {}),
    "allox": ("allox", {}),
    "fifo": ("gavel-fifo", AGNOSTIC),
    "fifo_perf": ("gavel-fifo", {}),
    "fifo_packed": ("gavel-fifo", PAIRS),
    "gandiva": ("gavel-gandiva", {}),
    "isolated": ("isolated", {}),
    "proportional": ("proportional", {}),
}
"""Gavel's policy: ours, and its settings."""
GREEDY = ("gavel-fifo",)
"""Ours are Gavel's ways here: the problem of the paper is not the one that its code answers."""


def measure(policy: str, jobs: int, their_seconds: float, our_seconds: float) -> dict[str, Any]:
    """One problem, theirs and ours, with what each may take. `their_seconds` is 0: theirs only draws it."""
    preset, options = POLICIES[policy]
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder) / "problem.json"
        words = [PYTHON, str(SCRIPT), str(CLONE), policy, str(jobs), str(problem)]
        theirs = _limited(words if their_seconds else [*words, "--draw"], their_seconds or our_seconds)
        given = ["--solve", preset, json.dumps(options), str(problem)]
        ours = _limited([sys.executable, "-m", "benchmarks.allocations", *given], our_seconds)
        values: list[float | None] = [None, None]
        if "fractions" in theirs and "fractions" in ours:
            stated = _read(problem, preset, options)[0]
            values = [value(policy, stated, _fractions(found)) for found in (theirs, ours)]
    return {
        "policy": policy,
        "jobs": jobs,
        "preset": preset,
        "theirs_seconds": theirs.get("seconds"),
        "theirs_failed": theirs.get("failed"),
        "theirs_value": values[0],
        "ours_seconds": ours.get("seconds"),
        "ours_failed": ours.get("failed"),
        "ours_value": values[1],
    }


def _limited(words: list[str], limit_seconds: float) -> dict[str, Any]:
    """What it printed, or `failed`: why there is nothing."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_seconds) + 1, int(limit_seconds) + 5))

    done = subprocess.run(
        words,
        cwd=ROOT,
        env=environment(**ONE_THREAD),
        preexec_fn=bound,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        answered: dict[str, Any] = json.loads(done.stdout or "{}")
        return answered
    if done.returncode < 0:
        return {"failed": f"more than {limit_seconds:g} s"}
    last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
    return {"failed": "more than 8 GiB" if "emory" in last else last[:200]}


def _fractions(found: Mapping[str, Any]) -> Fractions:
    return {tuple(map(JobId, jobs)): row for jobs, row in found["fractions"]}


def value(policy: str, given: Given, fractions: Fractions) -> float | None:
    """What the policy optimises, so that more is better. None: of a policy that has no one number."""
    layout, rates = Layout(given), effective(given, fractions)
    mine = [rates[job.id] for job in layout.jobs]
    if policy in ("max_min_fairness_perf", "max_min_fairness_packed"):
        return min(rate / float(equal) for rate, equal in zip(mine, equal_throughputs(layout), strict=True))
    if policy in ("finish_time_fairness_perf", "finish_time_fairness_packed"):
        return min(
            rate / float(alone) for rate, alone in zip(mine, isolated_throughputs(layout), strict=True)
        )
    if policy in ("min_total_duration_perf", "min_total_duration_packed"):
        return min(
            rate / (job.steps_left or 0.0)
            for rate, job in zip(mine, layout.jobs, strict=True)
            if job.steps_left
        )
    return sum(mine) if policy == "max_sum_throughput_perf" else None


def _read(problem: Path, preset: str, options: Mapping[str, Any]) -> tuple[Given, Any]:
    content = json.loads(problem.read_text()) | {"options": options}
    settings: type[Section] = AllocationSettings
    keys: Collection[str] = KEYS[preset]
    if preset in GREEDY:
        settings, keys = WaySettings, WaySettings.model_fields
    if preset == "gavel-hierarchical":
        return read_problem(json.dumps(content), str(problem), settings, keys)
    content["jobs"] = [{k: v for k, v in job.items() if k != "entity"} for job in content["jobs"]]
    return read_problem(json.dumps(content | {"entities": []}), str(problem), settings, keys)


def _stated(preset: str, settings: Any, given: Given) -> Fractions:
    stated = AsProblem(preset, settings)
    asked = stated.begin(given)
    table = stated.read(decode(asked, answer(encode(asked), answers())))
    rows = zip(*[iter(table.fractions)] * len(table.types), strict=True)
    return {
        jobs: dict(zip(table.types, row, strict=True)) for jobs, row in zip(table.jobs, rows, strict=True)
    }


def _answered(way: str, settings: Any, given: Given) -> Fractions:
    return allocate(way, settings, given).fractions


def solve(preset: str, options: Mapping[str, Any], problem: Path) -> dict[str, Any]:
    """Ours, in the mean of as many times as make it long enough for the clock."""
    given, settings = _read(problem, preset, options)
    solved = _answered if preset in GREEDY else _stated
    times, spent = -1, 0.0  # the first, which loads the solvers, does not count
    while times <= 0 or (spent < SHORT_SECONDS and times < MOST_TIMES):
        begin = time.process_time()
        fractions = solved(preset, settings, given)
        last = time.process_time() - begin
        times += 1
        if times or last > LONG_SECONDS:
            spent, times = spent + last, max(1, times)
    rows = [[list(jobs), row] for jobs, row in fractions.items() if max(row.values(), default=0.0) > 0]
    return {"seconds": spent / times, "fractions": rows}


async def in_worker(jobs: int, types: int) -> str:
    """`gavel-las` in the solver's process, and what this process has to do for it meanwhile."""
    draw, done = random.Random(1), asyncio.Event()
    names = tuple(f"type{number}" for number in range(types))
    patient = AllocationSettings(deadline_seconds=3600.0)
    solver, stated = WorkerSolver(COMMAND), AsProblem("gavel-las", patient)
    seconds, own, cpu = [], [], []
    for _ in range(ROUNDS + 1):
        given = Given(
            types=names,
            workers=dict.fromkeys(names, jobs // 4),
            jobs=tuple(
                AllocationJob(id=JobId(i), throughput={name: draw.uniform(1, 10) for name in names})
                for i in range(jobs)
            ),
        )
        begin = time.process_time()
        done.clear()
        problem = stated.begin(given)
        solver.submit("las", problem, done.set)
        await done.wait()
        solution = solver.take()["las"]
        stated.read(solution)
        own.append(time.process_time() - begin)
        seconds.append(solution.seconds)
        begin = time.process_time()
        answer(encode(problem), answers())
        cpu.append(time.process_time() - begin)
    await solver.close()
    return (
        f"gavel-las, {jobs:,} jobs x {types} types: {min(seconds[1:]):.3f} to {max(seconds[1:]):.3f} s "
        f"in the solver's process, which is {min(cpu[1:]):.3f} to {max(cpu[1:]):.3f} s of CPU; "
        f"{max(own[1:]) * 1e3:.0f} ms of CPU at most in the loop's"
    )


def measured(path: Path) -> list[dict[str, Any]]:
    """All rows so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(args: argparse.Namespace) -> Iterator[tuple[str, int, bool]]:
    """Policies, numbers of jobs, and whether theirs is to be measured as well: it is not after it failed, and
    then ours goes on where there are no pairs."""
    for policy, (_, options) in POLICIES.items():
        for jobs in args.jobs:
            mine = [row for row in measured(args.rows) if row["policy"] == policy]
            theirs = not any(row["theirs_failed"] for row in mine)
            if any(row["ours_failed"] for row in mine) or (options.get("space_sharing") and not theirs):
                break
            if re.search(args.only, policy) and jobs not in [row["jobs"] for row in mine]:
                yield policy, jobs, theirs


def main() -> None:
    """Measure, or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="one JSON object per line")
    parser.add_argument("--only", default="", metavar="REGEX", help="of Gavel's policies")
    parser.add_argument("--jobs", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument(
        "--limit-seconds", type=float, default=600.0, metavar="S", help="CPU time of one problem"
    )
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="nothing is run; the plot needs matplotlib"
    )
    parser.add_argument("--worker", action="store_true", help="time in the solver's process instead")
    parser.add_argument("--solve", nargs=3, metavar=("PRESET", "OPTIONS", "PROBLEM"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.solve:
        preset, options, problem = args.solve
        print(json.dumps(solve(preset, json.loads(options), Path(problem))))
    elif args.worker:
        for jobs, types in ((2048, 3), (10000, 5)):
            print(asyncio.run(in_worker(jobs, types)), flush=True)
    elif args.rows is None:
        parser.error("--rows names the file of results")
    elif args.write:
        write(measured(args.rows), args.write)
    elif not (CLONE / "scheduler" / "policies").is_dir():
        print("not compared: GANDIVA_GAVEL names no clone of stanford-futuredata/gavel")
    else:
        for policy, jobs, theirs in missing(args):
            line = json.dumps(
                measure(policy, jobs, args.limit_seconds if theirs else 0.0, args.limit_seconds)
            )
            print(line, flush=True)
            with args.rows.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
