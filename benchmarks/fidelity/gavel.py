# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares Gavel's allocations, served in rounds, with results of Gavel's own simulator, job by job.

    python benchmarks/fidelity/gavel.py [--rows rows.jsonl] [--refs DIR] [--only REGEX] [--solver clarabel]
    python benchmarks/fidelity/gavel.py --rows rows.jsonl --write docs/fidelity.md

The references are not part of this repository: --refs or GANDIVA_REFS names their folder (default:
shared/refs beside the repository). Each row is a simulation with the settings of gavel.toml. Its outcome is
added to the file `--rows`, and a row that is in there is not run again. It needs ECOS.
Exit status 1 when a row that was solved by the reference's own solver is not equal for all jobs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.pages import put_table  # noqa: E402
from benchmarks.peers.measure import REFERENCES  # noqa: E402
from controller.simulation.cluster_spec import parse_cluster  # noqa: E402
from controller.simulation.configure import configure  # noqa: E402
from controller.simulation.driver import Simulation  # noqa: E402
from controller.simulation.ground_truth import read_throughputs  # noqa: E402
from controller.simulation.oracle import read_declared  # noqa: E402
from controller.simulation.outcome import Outcome  # noqa: E402
from controller.simulation.traces import read_trace  # noqa: E402

SAME_SECONDS = 0.5
"""Completion times so close are equal."""
BEGIN, END = "<!-- table: fidelity/gavel.py -->", "<!-- end of gavel's table -->"
POLICIES = {
    "isolated": "isolated",
    "max_min_fairness": "gavel-las",
    "min_total_duration": "gavel-makespan",
    "finish_time_fairness": "gavel-ftf",
    "fifo": "gavel-fifo",
    "allox": "allox",
    "max_sum_throughput": "gavel-max-throughput",
    "max_min_fairness_water_filling": "gavel-hierarchical",
    "gandiva": "gavel-gandiva",
}
"""Gavel's name, without the `_perf` of those that know how fast jobs are and the `_packed` of those that pair
jobs: our preset."""
KNOWING = ("_perf", "_packed")
WITHOUT_SOLVER = ("isolated", "allox", "gavel-fifo", "gavel-gandiva")
"""Presets that another solver makes no difference to."""
DRAWING = ("fifo", "gandiva")
"""Policies that draw types or pairs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One result of Gavel's simulator, as a simulation of ours."""

    refs: Path
    reference: Mapping[str, Any]
    solver: str
    """`ecos` or `clarabel`."""

    @property
    def key(self) -> list[str]:
        return [self.reference["case"], self.reference["policy"], self.solver]

    @property
    def same_solver(self) -> bool:
        return bool(self.solver == self.reference["solver"].lower())

    def run(self) -> Outcome:
        """Ours."""
        row = self.reference
        preset, packed = POLICIES[_plain(row["policy"])], row["policy"].endswith("_packed")
        changes = [f"type_seed={row['seed']}", f"reset_seconds={row['min_alloc_reset_s']}"]
        if preset not in WITHOUT_SOLVER:
            changes += [f"solver={self.solver}"]
        if preset in ("gavel-fifo", "gavel-gandiva"):
            changes += [f"seed={row['seed']}"]
        if preset not in ("isolated", "allox", "gavel-gandiva"):
            aware = row["policy"].endswith(KNOWING)
            changes += [f"throughputs={'aware' if aware else 'agnostic'}"]
        if packed:
            changes += ["space_sharing=true"]
        counts = zip(("v100", "p100", "k80"), row["cluster_v100_p100_k80"].split(":"), strict=True)
        types = {name: count for name, count in counts if count != "0"}
        changes += [f"type_order={json.dumps(list(types))}"]
        cluster = ",".join(f"{name}:{count}" for name, count in types.items())
        trace, table = self.refs / row["trace"], self.refs / row["throughputs"]
        return Simulation(
            trace,
            read_trace(trace, "gavel"),
            parse_cluster(cluster, 1),
            configure(HERE / "gavel.toml", preset, changes),
            read_throughputs(table),
            rates=read_declared(table, types={}),
        ).run()


def _plain(policy: str) -> str:
    return policy.removesuffix("_perf").removesuffix("_packed")


def draws(reference: Mapping[str, Any]) -> bool:
    """Whether this result depends on what its policy drew."""
    one_type = reference["cluster_v100_p100_k80"].endswith(":0:0")
    return reference["policy"] in DRAWING and not (reference["policy"] == "fifo" and one_type)


def rows(refs: Path, solver: str | None) -> Iterator[Row]:
    """All that can be compared. `solver`: in place of the one that the reference used."""
    for row in json.loads((refs / "results_public.json").read_text())["gavel"]:
        preset = POLICIES.get(_plain(row["policy"]))
        if preset is None or not row.get("avg_jct_s") or draws(row):
            continue
        if solver is None or preset not in WITHOUT_SOLVER:
            yield Row(refs, row, solver or row["solver"].lower())


def compare(row: Row, per_job: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Ours against theirs, as JSON."""
    begin = time.monotonic()
    outcome = row.run()
    theirs, reference = per_job[row.reference["per_job_key"]], row.reference
    ours = {job.id: job.jct_seconds for job in outcome.jobs}
    same = sum(abs(ours[i] - seconds) < SAME_SECONDS for i, seconds in theirs.items() if i in ours)
    last = max(job.end_seconds for job in outcome.jobs)
    return {
        "row": row.key,
        "same_solver": row.same_solver,
        "jobs": reference["n"],
        "completed": len(ours),
        "same": same,
        "average_off_fraction": fmean(ours.values()) / reference["avg_jct_s"] - 1,
        "median_off_fraction": median(ours.values()) / reference["median_jct_s"] - 1,
        "makespan_off_fraction": last / reference["makespan_s"] - 1,
        "wall_seconds": round(time.monotonic() - begin, 1),
    }


def markdown(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of docs/fidelity.md."""
    lines = [
        f"| case | Gavel's policy | jobs within {SAME_SECONDS:g} s | average, median, makespan off "
        "| the same with Clarabel | jobs within then |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    other = {tuple(row["row"][:2]): row for row in found if not row["same_solver"]}
    for row in found:
        if row["same_solver"]:
            case, policy, _ = row["row"]
            beside = other.get((case, policy))
            lines.append(
                f"| {case} | {policy} | {row['same']} of {row['jobs']} | {_off(row)} "
                f"| {_off(beside) if beside else ''} | {beside['same'] if beside else ''} |"
            )
    return lines


def _off(row: Mapping[str, Any]) -> str:
    kinds = ("average", "median", "makespan")
    return ", ".join(f"{row[f'{kind}_off_fraction'] + 0.0:+.2%}".replace("-0.00", "+0.00") for kind in kinds)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    """Run rows, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refs", type=Path, default=REFERENCES, metavar="DIR")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="results, one JSON object per line")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows `case/policy` that match")
    parser.add_argument("--solver", choices=("ecos", "clarabel"), help="in place of the reference's own")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="make its table anew; nothing is run")
    args = parser.parse_args()
    if args.write is not None and args.rows is None:
        parser.error("--write needs --rows")
    if args.write is not None:
        put_table(args.write, BEGIN, END, markdown(_read(args.rows)))
        return 0
    if not (args.refs / "results_public.json").exists():
        print(f"no results_public.json in {args.refs}: name their folder with --refs or GANDIVA_REFS")
        return 2
    with gzip.open(args.refs / "per_job/per_job_jct_public.json.gz") as file:
        per_job = json.load(file)
    found = _read(args.rows) if args.rows else []
    known = [row["row"] for row in found]
    for row in rows(args.refs, args.solver):
        if row.key in known or not re.search(args.only, "/".join(row.key[:2])):
            continue
        found.append(compare(row, per_job))
        line = json.dumps(found[-1])
        print(line, flush=True)
        if args.rows:
            with args.rows.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    return int(any(row["same_solver"] and row["same"] < row["jobs"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
