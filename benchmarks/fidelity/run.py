# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares the simulator with results of other people's simulators, case by case and job by job.

    python benchmarks/fidelity/run.py [--refs DIR] [--write docs/fidelity.md] [--only REGEX]

The references are not part of this repository: --refs or GANDIVA_REFS names their folder (default:
shared/refs beside the repository). Exit status 1 when an average or a median is off by more than 1 %.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fidelity import policies  # noqa: E402
from benchmarks.pages import put_table  # noqa: E402
from benchmarks.peers.measure import REFERENCES  # noqa: E402
from controller.simulation.cluster_spec import parse_cluster  # noqa: E402
from controller.simulation.configure import configure  # noqa: E402
from controller.simulation.driver import Simulation  # noqa: E402
from controller.simulation.ground_truth import Throughputs, read_throughputs  # noqa: E402
from controller.simulation.outcome import Outcome  # noqa: E402
from controller.simulation.traces import TraceJob, read_trace  # noqa: E402

TOLERANCE = 0.01
BEGIN, END = "<!-- table: make fidelity -->", "<!-- end of table -->"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the references, as a simulation of ours."""

    simulator: str
    name: str
    their_policy: str
    policy: str
    settings: Path
    changes: tuple[str, ...]
    trace: Path
    cluster: str
    gpus_per_node: int
    reference: dict[str, Any]
    throughputs: Path | None = None
    """The trace is Gavel's, and a round is so many whole steps."""

    def run(self) -> Outcome:
        """Ours."""
        settings = configure(self.settings, self.policy, self.changes)
        if self.throughputs is None:
            jobs = read_trace(self.trace, "tiresias")
        else:
            table = read_throughputs(self.throughputs)
            jobs = in_whole_steps(read_trace(self.trace, "gavel"), table, settings.simulation.round_seconds)
        return Simulation(self.trace, jobs, parse_cluster(self.cluster, self.gpus_per_node), settings).run()


def in_whole_steps(jobs: Sequence[TraceJob], table: Throughputs, round_seconds: float) -> list[TraceJob]:
    """Gavel gives a job only the steps that fit into a round as a whole; the rest of the round is lost to it.
    Durations with these losses, for jobs on V100s that go on to their end once they run."""
    timed = []
    for job in jobs:
        rate = table.rate("v100", job.model, job.gpus)
        assert rate and job.steps
        rounds, left = divmod(job.steps, int(rate * round_seconds))
        timed.append(
            replace(job, steps=None, model="", duration_seconds=rounds * round_seconds + left / rate)
        )
    return timed


def cases(refs: Path) -> Iterator[Case]:
    """All that can be compared: complete rows with counting placement, single GPUs for Blox (its placer is
    pessimistic for gangs)."""
    results = json.loads((refs / "results_public.json").read_text())
    for row in results["tiresias"]:
        if row.get("n") != row["n_trace"] or row["scheme"] != "count" or row["case"].startswith("rerun_"):
            continue
        policy, changes = policies.TIRESIAS[row["schedule"]]
        limits = [float(v) for v in row["queue_limit"].split(",")][: row["num_queue"] - 1]
        if policy.startswith("tiresias"):
            changes = (*changes, f"queue_limits={limits}")
        if policy == "tiresias-gittins":
            samples = refs / "inputs/tiresias/shipped" / row["gittins_dist"].split()[0]
            changes = (*changes, f'distribution="{samples}"')
        switches, nodes, gpus = (int(v) for v in row["switches_nodes_gpus_cpus_mem"].split(",")[:3])
        yield Case(
            "Tiresias",
            row["case"],
            row["schedule"],
            policy,
            HERE / "tiresias.toml",
            changes,
            refs / row["trace"],
            f"v100:{switches * nodes * gpus}",
            gpus,
            row,
        )
    for row in results["blox"]:
        if not row["case"].startswith("xs_"):
            continue
        yield Case(
            "Blox",
            row["case"],
            row["policy"],
            policies.BLOX[row["policy"]],
            HERE / "blox.toml",
            (),
            refs / "inputs/tiresias/converted/xs_job.csv",
            f"v100:{row['nodes'] * row['gpus_per_node']}",
            row["gpus_per_node"],
            row,
        )
    for row in results["gavel"]:
        # Its other policies are compared by gavel.py; other rows have several types of GPUs.
        name = row["case"]
        if row["policy"] != "fifo" or not name.startswith(("xs_", "reset0_xs_")):
            continue
        yield Case(
            "Gavel",
            name,
            row["policy"],
            "fifo",
            HERE / ("gavel-fifo.toml" if row["min_alloc_reset_s"] else "gavel-fifo-reset0.toml"),
            (),
            refs / row["trace"],
            f"v100:{row['cluster_v100_p100_k80'].split(':')[0]}",
            1,
            row,
            refs / row["throughputs"],
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against theirs."""

    case: Case
    average_seconds: float
    median_seconds: float
    same_jobs: int
    """Jobs whose completion time is theirs to the second."""
    jobs: int
    preemptions: int
    wall_seconds: float
    worst: tuple[tuple[str, int, float, float], ...]
    """(job, GPUs, ours, theirs) of the largest differences."""

    @property
    def off(self) -> tuple[float, float]:
        """Relative difference of average and median."""
        theirs = self.case.reference
        return (
            self.average_seconds / theirs["avg_jct_s"] - 1,
            self.median_seconds / theirs["median_jct_s"] - 1,
        )

    @property
    def good(self) -> bool:
        return all(abs(value) <= TOLERANCE for value in self.off)


def compare(case: Case, per_job: dict[str, dict[str, float]]) -> Comparison:
    """Run ours."""
    outcome = case.run()
    jcts = {job.id: job.jct_seconds for job in outcome.jobs}
    theirs = per_job[case.reference["per_job_key"]]
    gaps = sorted(outcome.jobs, key=lambda job: -abs(job.jct_seconds - theirs[job.id]))
    return Comparison(
        case,
        fmean(jcts.values()),
        median(jcts.values()),
        sum(abs(jcts[i] - theirs[i]) < 1 for i in jcts),
        len(jcts),
        sum(job.preemptions for job in outcome.jobs),
        outcome.wall_seconds,
        tuple((job.id, job.gpus, job.jct_seconds, theirs[job.id]) for job in gaps[:3]),
    )


def markdown(found: list[Comparison]) -> list[str]:
    """The table of docs/fidelity.md."""
    lines = [
        "| simulator, case | their policy | ours | average JCT theirs / ours (s) | off "
        "| median theirs / ours (s) "
        "| off | jobs equal to the second | preemptions theirs / ours |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for c in found:
        theirs, (average, middle) = c.case.reference, c.off
        lines.append(
            f"| {c.case.simulator} {c.case.name} | {c.case.their_policy} | {c.case.policy} "
            f"| {theirs['avg_jct_s']:.3f} / {c.average_seconds:.3f} | {average:+.3%} "
            f"| {theirs['median_jct_s']:.1f} / {c.median_seconds:.1f} | {middle:+.3%} "
            f"| {c.same_jobs} of {c.jobs} | {theirs.get('preemptions', 'not told')} / {c.preemptions} |"
        )
    return lines


def main() -> int:
    """Print the table; with --write also into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refs", type=Path, default=REFERENCES, metavar="DIR")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="cases `simulator/case/policy` that match"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="page whose table is to be made anew")
    parser.add_argument("--json", action="store_true", help="one object per case and line")
    args = parser.parse_args()
    if not (args.refs / "results_public.json").exists():
        print(f"no results_public.json in {args.refs}: name their folder with --refs or GANDIVA_REFS")
        return 2
    with gzip.open(args.refs / "per_job/per_job_jct_public.json.gz") as file:
        per_job = json.load(file)
    found: list[Comparison] = []
    for case in cases(args.refs):
        if not re.search(args.only, f"{case.simulator}/{case.name}/{case.their_policy}"):
            continue
        result = compare(case, per_job)
        found.append(result)
        average, middle = result.off
        line = (
            f"{'ok ' if result.good else 'OFF'} {case.simulator:8} {case.name:16} {case.their_policy:17} "
            f"average {average:+8.3%}  median {middle:+8.3%}  {result.same_jobs:5}/{result.jobs} jobs equal  "
            f"{result.wall_seconds:6.2f} s (theirs {case.reference['wall_s']:g} s on their machine)"
        )
        if args.json:
            line = json.dumps(
                {
                    "simulator": case.simulator,
                    "case": case.name,
                    "policy": case.their_policy,
                    "average_off_fraction": average,
                    "median_off_fraction": middle,
                    "jobs_equal": result.same_jobs,
                    "jobs": result.jobs,
                    "largest_differences": result.worst,
                    "wall_seconds": result.wall_seconds,
                }
            )
        print(line, flush=True)
        if not args.json and result.same_jobs < result.jobs:
            for job, gpus, ours, theirs in result.worst:
                if ours != theirs:
                    print(f"      job {job} ({gpus} GPUs): ours {ours:.0f} s, theirs {theirs:.0f} s")
    if args.write is not None:
        put_table(args.write, BEGIN, END, markdown(found))
    good = sum(result.good for result in found)
    print(f"{good} of {len(found)} cases within {TOLERANCE:.0%}", file=sys.stderr)
    return 0 if good == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
