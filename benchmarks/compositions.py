# SPDX-License-Identifier: GPL-2.0-or-later
"""What moves add to policies: `python -m benchmarks.compositions --write docs/compositions.md`.

Jobs of Gavel's public trace, in two parts that are simulated apart, with its table of throughputs as the
ground truth. GANDIVA_REFS or --refs names the folder with both, as for benchmarks/fidelity/run.py. `--write`
draws docs/images/compositions.svg, too, with matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.paper_tables import MIGRATIONS, makespan, replaced
from controller.model import value
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.configure import configure
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import read_throughputs
from controller.simulation.oracle import read_declared
from controller.simulation.outcome import Outcome
from controller.simulation.traces import TraceJob, read_trace

Composition = tuple[str, tuple[str, ...]]
"""A policy, and settings."""
TRACE = "inputs/gavel/generated/cont_multi_n300_lam2200_s0.trace"
TABLE = "inputs/gavel/shipped/simulation_throughputs.json"
PER_NODE, PARTS, JOBS = 4, 2, 60
# The interference of two models does not change from hour to hour.
PACK = ("requests.pack=true", "policy.trials.cooldown_seconds=86400")
SLICES = ("policy.gandiva.slice_seconds=600",)
ONE_TYPE: Mapping[str, Composition] = {
    "`tiresias-las`": ("tiresias-las", ()),
    "`tiresias-las` + defragment": ("tiresias-las", ('policy.moves=["defragment"]',)),
    "`tiresias-las` + pack": ("tiresias-las", ('policy.moves=["pack"]', *PACK)),
    "`tiresias-las` + pack + defragment": ("tiresias-las", ('policy.moves=["pack", "defragment"]', *PACK)),
    "`gavel-las`": ("gavel-las", ()),
    "`gavel-las` + pack": ("gavel-las", ('policy.moves=["pack"]', *PACK)),
    "`gandiva`": ("gandiva", SLICES),
    "`gandiva` + pack": ("gandiva", ('policy.moves=["pack"]', *PACK, *SLICES)),
}
ALL_MOVES = ('policy.moves=["pack", "defragment"]', *PACK)
THREE_TYPES: Mapping[str, Composition] = {
    "`gandiva`": ("gandiva", SLICES),
    "`gandiva` + pack + defragment": ("gandiva", (*ALL_MOVES, *SLICES)),
    "`gandiva` + pack + migrations": ("gandiva", (*MIGRATIONS, PACK[1], *SLICES)),
    "`gavel-las`": ("gavel-las", ()),
    "`gavel-las` + pack + defragment": ("gavel-las", ALL_MOVES),
}
CLUSTERS: Mapping[str, tuple[str, int, Mapping[str, Composition]]] = {
    "Twelve V100": ("v100:12", PARTS, ONE_TYPE),
    "Eight V100, eight P100, eight K80": ("v100:8,p100:8,k80:8", 1, THREE_TYPES),
}
"""GPUs, how many parts of the trace are simulated, and compositions."""


@value
class Line:
    """A composition on all parts of the trace. Hours."""

    name: str
    mean: float
    makespans: tuple[float, ...]
    waiting: float
    """Of the mean: while a job is on no GPU."""
    single: float
    """Of that: jobs of one GPU."""
    used: float
    """GPU time in use, as a fraction of that until the last job ends."""
    shared: float
    """GPU time with two jobs, as a fraction of the GPU time in use."""
    pairs: int
    """How often a job joined another one on its GPUs."""
    migrated: int
    """How often a move other than pack moved a job."""


def parts(refs: Path) -> list[list[TraceJob]]:
    """Each begins at its first job."""
    jobs = read_trace(refs / TRACE, "gavel")
    cut = [jobs[at : at + JOBS] for at in range(0, JOBS * PARTS, JOBS)]
    return [[replace(j, submit_seconds=j.submit_seconds - p[0].submit_seconds) for j in p] for p in cut]


def line(
    name: str, gpus: str, composition: Composition, refs: Path, traces: Sequence[Sequence[TraceJob]]
) -> Line:
    """Simulate it. What models do alone is declared, what pairs do is not."""
    policy, changes = composition
    settings, table = configure(None, policy, changes, own_suspend=True), read_throughputs(refs / TABLE)
    cluster, found, events = parse_cluster(gpus, PER_NODE), list[Outcome](), Counter[str]()
    known = read_declared(refs / TABLE, types={}, gpus_per_node=PER_NODE)
    rates = {m: {at: r for at, r in t.items() if not at.models_beside} for m, t in known.items()}
    for number, jobs in enumerate(traces, start=1):
        print(f"{name}, part {number}", file=sys.stderr, flush=True)
        simulation = Simulation(refs / TRACE, jobs, cluster, settings, table, rates=rates)
        found.append(simulation.run())
        events.update(event.kind for event in simulation.journal.events)
        jct = fmean(job.jct_seconds for job in found[-1].jobs) / 3600
        print(
            f"  mean JCT {jct:.2f} h, makespan {makespan(found[-1]) / 3600:.1f} h",
            file=sys.stderr,
            flush=True,
        )
    done = [job for outcome in found for job in outcome.jobs]
    used = sum(outcome.gpu_seconds for outcome in found)
    waits = [(job.gpus, (job.jct_seconds - job.run_seconds) / 3600 / len(done)) for job in done]
    return Line(
        name=name,
        mean=fmean(job.jct_seconds for job in done) / 3600,
        makespans=tuple(makespan(outcome) / 3600 for outcome in found),
        waiting=sum(hours for _, hours in waits),
        single=sum(hours for count, hours in waits if count == 1),
        used=used / sum(outcome.gpus * makespan(outcome) for outcome in found),
        shared=sum(job.run_seconds * job.gpus for job in done) / used - 1,
        pairs=(events["pack-tried"] + events["pack-planned"]) // 2,  # an event for each job
        migrated=sum(events[f"{move}-planned"] for move in ("balance", "locality", "defragment")),
    )


def text(tables: Mapping[str, Sequence[Line]]) -> str:
    """The tables; what moves add is against the policy alone, the last line without a plus."""
    rows: list[str] = []
    for title, lines in tables.items():
        rows += [
            f"\n{title}:\n",
            "| composition | mean JCT | by moves | makespans | by moves "
            "| GPUs in use | waiting | one GPU | joined | shared | migrated |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        alone = lines[0]
        for one in lines:
            if "+" not in one.name:
                alone = one
            gain = f"{one.mean / alone.mean - 1:+.1%}" if one is not alone else ""
            span = f"{sum(one.makespans) / sum(alone.makespans) - 1:+.1%}" if one is not alone else ""
            spans = ", ".join(f"{hours:.0f}" for hours in one.makespans)
            shared = f"{max(0.0, one.shared):.1%}"
            rows.append(
                f"| {one.name} | {one.mean:.1f} h | {gain} | {spans} h | {span} | {one.used:.0%} "
                f"| {one.waiting:.1f} h | {one.single:.1f} h | {one.pairs} | {shared} | {one.migrated} |"
            )
    return "\n".join(rows)


def draw(tables: Mapping[str, Sequence[Line]], path: Path) -> None:
    """Mean JCT, with what of it is waiting, and makespan, for each cluster."""
    from matplotlib.figure import Figure

    counts = [len(lines) for lines in tables.values()]
    figure = Figure(figsize=(9, 1.0 + 0.4 * sum(counts)), layout="constrained")
    rows = figure.subplots(len(tables), 2, squeeze=False, gridspec_kw={"height_ratios": counts})
    for (title, lines), (left, right) in zip(tables.items(), rows, strict=True):
        names = [one.name.replace("`", "") for one in lines]
        colors = ["#1f5fa8" if "+" in name else "0.65" for name in names]
        left.barh(names, [one.mean for one in lines], color=colors)
        left.barh(names, [one.waiting for one in lines], color="white", alpha=0.5)
        left.set_title(title, loc="left", fontsize="medium")
        left.set_xlabel("mean job completion time, hours (pale: waiting)")
        right.barh(names, [fmean(one.makespans) for one in lines], color=colors)
        right.set_xlabel("mean makespan, hours")
        right.set_yticklabels([])
        for axes in (left, right):
            axes.invert_yaxis()
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def kept(folder: Path | None, title: str, name: str, make: Callable[[], Line]) -> Line:
    """What an earlier run has left in the folder, else a new one."""
    if folder is None:
        return make()
    path = folder / (re.sub(r"[^a-z0-9]+", "-", f"{title} {name}".lower()).strip("-") + ".json")
    if not path.exists():
        path.write_text(json.dumps(asdict(make())) + "\n")
    found = json.loads(path.read_text())
    return Line(**{**found, "makespans": tuple(found["makespans"])})


def main() -> None:
    """Simulate and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--refs", type=Path, default=Path(os.environ.get("GANDIVA_REFS", "shared/refs")))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables between their marks")
    parser.add_argument("--results", type=Path, metavar="DIR", help="keep results here, and take those there")
    parser.add_argument("--only", metavar="WORDS", default="", help="lines with these words, and no page")
    options = parser.parse_args()
    traces, tables = parts(options.refs), dict[str, list[Line]]()
    for title, (gpus, count, compositions) in CLUSTERS.items():
        for name, composition in compositions.items():
            if options.only in f"{title} {name}":
                make = partial(line, name, gpus, composition, options.refs, traces[:count])
                tables.setdefault(title, []).append(kept(options.results, title, name, make))
    if options.write is None or options.only:
        print(text(tables))
        return
    options.write.write_text(replaced(options.write.read_text(), text(tables)))
    draw(tables, options.write.parent / "images" / "compositions.svg")


if __name__ == "__main__":
    main()
