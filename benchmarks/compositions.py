# SPDX-License-Identifier: GPL-2.0-or-later
"""What moves add to policies: `python -m benchmarks.compositions --write docs/compositions.md`.

Jobs of Gavel's public trace, in two parts that are simulated apart, with its table of throughputs as the
ground truth. GANDIVA_REFS or --refs names the folder with both, as for benchmarks/fidelity/run.py. `--write`
draws docs/images/compositions.svg, too, with matplotlib.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.paper_tables import makespan, replaced
from controller.model import value
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.configure import configure
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import read_throughputs
from controller.simulation.traces import TraceJob, read_trace

TRACE = "inputs/gavel/generated/cont_multi_n300_lam2200_s0.trace"
TABLE = "inputs/gavel/shipped/simulation_throughputs.json"
CLUSTER, PER_NODE, PARTS, JOBS = "v100:12", 4, 2, 60
# The interference of two models does not change from hour to hour.
PACK = ("requests.pack=true", "policy.pack.cooldown_seconds=86400")
SLICES = ("policy.gandiva.slice_seconds=600",)
COMPOSITIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "`tiresias-las`": ("tiresias-las", ()),
    "`tiresias-las` + defragment": ("tiresias-las", ('policy.moves=["defragment"]',)),
    "`tiresias-las` + pack": ("tiresias-las", ('policy.moves=["pack"]', *PACK)),
    "`tiresias-las` + pack + defragment": ("tiresias-las", ('policy.moves=["pack", "defragment"]', *PACK)),
    "`gavel-las`": ("gavel-las", ()),
    "`gavel-las` + pack": ("gavel-las", ('policy.moves=["pack"]', *PACK)),
    "`gandiva`": ("gandiva", SLICES),
    "`gandiva` + pack": ("gandiva", ('policy.moves=["pack"]', *PACK, *SLICES)),
}


@value
class Line:
    """A composition on all parts of the trace. Hours."""

    name: str
    mean: float
    makespans: tuple[float, ...]


def parts(refs: Path) -> list[list[TraceJob]]:
    """Each begins at its first job."""
    jobs = read_trace(refs / TRACE, "gavel")
    cut = [jobs[at : at + JOBS] for at in range(0, JOBS * PARTS, JOBS)]
    return [[replace(j, submit_seconds=j.submit_seconds - p[0].submit_seconds) for j in p] for p in cut]


def line(name: str, refs: Path, traces: Sequence[Sequence[TraceJob]]) -> Line:
    """Simulate it."""
    policy, changes = COMPOSITIONS[name]
    settings, table = configure(None, policy, changes, own_suspend=True), read_throughputs(refs / TABLE)
    cluster, found = parse_cluster(CLUSTER, PER_NODE), []
    for number, jobs in enumerate(traces, start=1):
        print(f"{name}, part {number}", file=sys.stderr, flush=True)
        found.append(Simulation(refs / TRACE, jobs, cluster, settings, table).run())
        jct = fmean(job.jct_seconds for job in found[-1].jobs) / 3600
        print(
            f"  mean JCT {jct:.2f} h, makespan {makespan(found[-1]) / 3600:.1f} h",
            file=sys.stderr,
            flush=True,
        )
    hours = [job.jct_seconds / 3600 for outcome in found for job in outcome.jobs]
    spans = tuple(makespan(outcome) / 3600 for outcome in found)
    return Line(name, fmean(hours), spans)


def text(lines: Sequence[Line]) -> str:
    """The table; what moves add is against the policy alone, the last line without a plus."""
    rows = [
        "| composition | mean JCT | by moves | makespans | by moves |",
        "|---|---|---|---|---|",
    ]
    alone = lines[0]
    for one in lines:
        if "+" not in one.name:
            alone = one
        gain = f"{one.mean / alone.mean - 1:+.1%}" if one is not alone else ""
        span = f"{sum(one.makespans) / sum(alone.makespans) - 1:+.1%}" if one is not alone else ""
        spans = ", ".join(f"{hours:.0f}" for hours in one.makespans)
        rows.append(f"| {one.name} | {one.mean:.1f} h | {gain} | {spans} h | {span} |")
    return "\n".join(rows)


def draw(lines: Sequence[Line], path: Path) -> None:
    """Mean JCT and makespan."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [one.name.replace("`", "") for one in lines]
    colors = ["#1f5fa8" if "+" in name else "0.65" for name in names]
    left.barh(names, [one.mean for one in lines], color=colors)
    left.set_xlabel("mean job completion time, hours")
    right.barh(names, [fmean(one.makespans) for one in lines], color=colors)
    right.set_xlabel("mean makespan of the two parts, hours")
    left.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Simulate and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--refs", type=Path, default=Path(os.environ.get("GANDIVA_REFS", "shared/refs")))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between its marks")
    options = parser.parse_args()
    traces = parts(options.refs)
    lines = [line(name, options.refs, traces) for name in COMPOSITIONS]
    if options.write is None:
        print(text(lines))
        return
    options.write.write_text(replaced(options.write.read_text(), text(lines)))
    draw(lines, options.write.parent / "images" / "compositions.svg")


if __name__ == "__main__":
    main()
