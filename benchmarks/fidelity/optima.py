# SPDX-License-Identifier: GPL-2.0-or-later
"""Solves every allocation of a run with other solvers, too: do they find the same objective, and the same X?

    python benchmarks/fidelity/optima.py [--refs DIR] [--only REGEX] [--write docs/fidelity.md]

The runs are rows of gavel.py with Clarabel, the default. Each allocation that a run computes is computed
again with ECOS and with HiGHS where the problem is linear. The run uses Clarabel's.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.fidelity.gavel import Row, rows  # noqa: E402
from benchmarks.fidelity.gavel_ways import allocations  # noqa: E402
from benchmarks.fidelity.gavel_ways.allocations import WAYS  # noqa: E402
from benchmarks.fidelity.gavel_ways.settings import WaySettings  # noqa: E402
from benchmarks.fidelity.gavel_ways.solvers import solver  # noqa: E402
from benchmarks.pages import put_table  # noqa: E402
from benchmarks.peers.measure import REFERENCES  # noqa: E402
from controller.model.solving import ProblemKind  # noqa: E402
from controller.policies.allocations.allocation import Allocated, Fractions, Given  # noqa: E402
from controller.policies.allocations.check import GOOD  # noqa: E402
from controller.solver.problem_data import Found  # noqa: E402

BEGIN, END = "<!-- table: fidelity/optima.py -->", "<!-- end of the table of optima -->"
CASES = (
    r"^(ae|cont96_phys)/(max_min_fairness|max_min_fairness_perf|max_min_fairness_packed|max_sum_throughput_perf"
    r"|finish_time_fairness|finish_time_fairness_perf|finish_time_fairness_packed"
    r"|min_total_duration|min_total_duration_perf)$"
)
OTHERS = ("ecos", "highs")
SOLVERS = {"clarabel": "Clarabel", "ecos": "ECOS", "highs": "HiGHS"}
DIFFERENT = 1e-3
"""Fractions that differ by more than this are different ones."""


@dataclass
class Solved:
    """One allocation by one solver."""

    objective: float
    fractions: Fractions
    found: list[bool] = field(default_factory=list)
    """Of each problem that it states: whether it has a solution."""
    has_objective: bool = True
    """False: the problems only ask whether there is a solution."""


@dataclass
class Beside:
    """The allocations of a run by Clarabel, beside those by another solver."""

    case: str
    policy: str
    solver: str
    allocations: int = 0
    same_found: int = 0
    """Allocations where both solvers found the same problems to have a solution."""
    has_objective: bool = True
    objectives_off: float = 0.0
    """The largest difference, relative to Clarabel's."""
    other_x: int = 0
    """Allocations with an X that differs by more than DIFFERENT."""
    most_off: float = 0.0
    """The largest difference of a fraction."""

    def add(self, ours: Solved, theirs: Solved) -> None:
        self.allocations += 1
        self.same_found += ours.found == theirs.found
        self.has_objective = self.has_objective and ours.has_objective
        off = abs(theirs.objective - ours.objective) / max(abs(ours.objective), 1e-12)
        self.objectives_off = max(self.objectives_off, off)
        x_off = difference(ours.fractions, theirs.fractions)
        self.other_x += x_off > DIFFERENT
        self.most_off = max(self.most_off, x_off)


def difference(one: Fractions, other: Fractions) -> float:
    """The largest difference of a fraction. What is not there is 0."""
    return max(
        (
            abs(one.get(jobs, {}).get(name, 0.0) - other.get(jobs, {}).get(name, 0.0))
            for jobs in {**one, **other}
            for name in {**one.get(jobs, {}), **other.get(jobs, {})}
        ),
        default=0.0,
    )


def solved(way: str, settings: WaySettings, given: Given, name: str) -> Solved:
    """This allocation, by this solver."""
    statuses, costs = list[bool](), list[bool]()

    def watched(kind: ProblemKind, stated: Mapping[str, Any]) -> Found:
        found = solve(kind, stated)
        statuses.append(found[0] in GOOD)
        costs.append(bool(stated["cost"].any()))
        return found

    solve = solver(name)
    allocated = WAYS[way](settings).allocate(given, watched)
    return Solved(allocated.objective, allocated.fractions, statuses, any(costs) or not costs)


def beside(row: Row) -> list[Beside]:
    """Run it, and solve all its allocations with the other solvers."""
    case, policy, _ = row.key
    solvers = [solver for solver in OTHERS if solver != "highs" or "finish_time" not in policy]
    found = {solver: Beside(case, policy, solver) for solver in solvers}
    run = allocations.allocate

    def watched(way: str, settings: WaySettings, given: Given) -> Allocated:
        ours = solved(way, settings, given, "clarabel")
        for name, line in found.items():
            line.add(ours, solved(way, settings, given, name))
        return run(way, settings, given)

    with mock.patch.object(allocations, "allocate", watched):
        row.run()
    return list(found.values())


def chosen(refs: Path, only: str) -> Iterator[Row]:
    """The rows with Clarabel that are compared."""
    for row in rows(refs, "clarabel"):
        name = "/".join(row.key[:2])
        if re.search(CASES, name) and re.search(only, name):
            yield row


def markdown(found: Iterable[Beside]) -> list[str]:
    """The table of docs/fidelity.md."""
    lines = [
        "| case | Gavel's policy | beside Clarabel | allocations | same problems solvable "
        f"| objectives off by at most | X off by more than {DIFFERENT:g} | X off by at most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        objective = f"{one.objectives_off:.1e}" if one.has_objective else "none"
        lines.append(
            f"| {one.case} | {one.policy} | {SOLVERS[one.solver]} | {one.allocations} | {one.same_found} "
            f"| {objective} | {one.other_x} | {one.most_off:.2g} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refs", type=Path, default=REFERENCES, metavar="DIR")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows `case/policy` that match")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table there")
    args = parser.parse_args(arguments)
    if find_spec("ecos") is None:
        print("ECOS is not installed: pip install ecos==2.0.14")
        return 2
    found = list[Beside]()
    for row in chosen(args.refs, args.only):
        found += beside(row)
        print(*markdown(found)[-1:], sep="\n", file=sys.stderr, flush=True)
    if args.write is not None:
        put_table(args.write, BEGIN, END, markdown(found))
    else:
        print(*markdown(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
