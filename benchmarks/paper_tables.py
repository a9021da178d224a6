# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of the Gandiva paper, simulated: `python -m benchmarks.paper_tables --write docs/gandiva.md`.

What the paper measured of jobs alone and packed is the ground truth. Policies see none of it but what they
measure. Source: Gandiva (OSDI'18), section 6 (SPEC 1.11). `--write` draws docs/images/gandiva.svg, too, with
matplotlib.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from controller.model import value
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.configure import configure
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import Throughputs
from controller.simulation.outcome import Outcome
from controller.simulation.traces import TraceJob

BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
GANGS = (1, 2, 4)
PACK = ('policy.moves=["pack"]', "requests.pack=true")
MIGRATIONS = (
    'policy.moves=["pack", "balance", "locality", "defragment"]',
    "requests.pack=true",
    "simulation.stores=true",
)
"""Jobs have checkpoint stores, and migrate by them, also while they are suspended."""
MOVES = ('policy.moves=["pack", "defragment"]', "requests.pack=true")
LONG_SLICES = ("policy.gandiva.slice_seconds=600",)


@value
class Model:
    """A row of the paper's table of packing on one P40."""

    name: str
    utilization: float
    """Fraction of a GPU, alone."""
    turns: float
    """Mini-batches/s of all jobs together, taking turns."""
    packed: float
    """At the same time."""
    chance: float
    """Of a job in the paper's mix to be of this model."""

    @property
    def gain(self) -> float:
        return self.packed / self.turns - 1


MODELS = (
    Model("VAE", 0.087, 81.8, 419.3, 0.15),
    Model("SuperResolution", 0.141, 40.3, 145.2, 0.15),
    Model("RHN", 0.616, 10.1, 14.8, 0.25 / 3),
    Model("SCRNN", 0.668, 16.7, 23.3, 0.25 / 3),
    Model("MI-LSTM", 0.762, 22.2, 25.9, 0.25 / 3),
    Model("LSTM", 0.872, 63.8, 53.0, 0.15),
    Model("ResNet-50", 0.940, 10.3, 9.0, 0.15),
    Model("ResNeXt-50", 0.989, 83.6, 74.4, 0.15),
)
BY_NAME = {model.name: model for model in MODELS}


def truth() -> Throughputs:
    """The paper's rates. Two of one model do together what it reports for packing. Of unlike models, whose
    rates it does not report, each goes as the geometric mean of the two gains says."""
    alone = {("p40", m.name, gang): m.turns for m in MODELS for gang in GANGS}
    shared = {
        ("p40", m.name, gang, other.name, gang): m.turns * math.sqrt((1 + m.gain) * (1 + other.gain)) / 2
        for m, other, gang in product(MODELS, MODELS, GANGS)
    }
    return Throughputs(alone, shared)


def simulated(
    jobs: Sequence[TraceJob], cluster: str, policy: str, *changes: str
) -> tuple[Outcome, Simulation]:
    """`cluster` as --cluster takes it, with four GPUs per server."""
    per_server = min(4, int(cluster.partition(":")[2]))
    settings = configure(None, policy, changes, own_suspend=True)
    made = Simulation(Path("trace"), jobs, parse_cluster(cluster, per_server), settings, truth())
    return made.run(), made


# -- the table of packing -------------------------------------------------------------------------------


@value
class Packed:
    """Two jobs of a model on one GPU."""

    model: Model
    kept: bool
    gain: float
    """Mini-batches/s until both have ended, with the move pack against without."""


def packing() -> Iterator[Packed]:
    """Each model: half an hour of work for each of two jobs."""
    for model in MODELS:
        jobs = [TraceJob(str(n), 0.0, 1, 1800.0, n, model=model.name) for n in (1, 2)]
        turns, _ = simulated(jobs, "p40:1", "gandiva")
        packed, made = simulated(jobs, "p40:1", "gandiva", *PACK)
        said = [decision.reason for decision in made.journal.decisions]
        undone = any(reason.startswith("stops sharing") for reason in said)
        yield Packed(model, not undone, makespan(turns) / makespan(packed) - 1)


def makespan(outcome: Outcome) -> float:
    """Seconds from the first submission to the last end."""
    return max(job.end_seconds for job in outcome.jobs) - min(job.submit_seconds for job in outcome.jobs)


# -- many jobs ------------------------------------------------------------------------------------------


@value
class Run:
    """A policy on a trace."""

    name: str
    jct_minutes: float
    makespan_minutes: float
    utilization: float
    """Of the GPUs, as a GPU shows it: that of the jobs on it, as fast as they go."""
    migrations_per_hour: float


def mix(seed: int, count: int, every_seconds: float, minutes: tuple[float, float]) -> list[TraceJob]:
    """Jobs of the paper's mix. The two largest models are on 2 or 4 GPUs."""
    draw, jobs = random.Random(seed), list[TraceJob]()
    for number in range(1, count + 1):
        model = draw.choices(MODELS, [m.chance for m in MODELS])[0]
        gpus = draw.choice((2, 4)) if model in MODELS[-2:] else 1
        duration = 60 * draw.uniform(*minutes)
        jobs.append(TraceJob(str(number), number * every_seconds, gpus, duration, number, model=model.name))
    return jobs


def run(name: str, jobs: Sequence[TraceJob], cluster: str, policy: str, *changes: str) -> Run:
    """One line of a comparison."""
    outcome, made = simulated(jobs, cluster, policy, *changes)
    seconds = makespan(outcome)
    busy = sum(BY_NAME[j.model].utilization * (j.duration_seconds or 0.0) * j.gpus for j in jobs)
    moved = sum(d.reason.startswith("migrates: ") for d in made.journal.decisions)
    found = Run(
        name,
        fmean(job.jct_seconds for job in outcome.jobs) / 60,
        seconds / 60,
        busy / (outcome.gpus * seconds),
        moved / seconds * 3600,
    )
    print(found, file=sys.stderr, flush=True)
    return found


def two_hours() -> list[Run]:
    """The paper's 1,000 jobs on 180 GPUs, at a ninth of the size."""
    jobs, on = mix(1, 111, 65.0, (30, 45)), "p40:20"
    return [
        run("`fifo`", jobs, on, "fifo"),
        run("`gandiva`", jobs, on, "gandiva"),
        run("`gandiva`, pack", jobs, on, "gandiva", *PACK),
        run("`gandiva`, pack + migrations", jobs, on, "gandiva", *MIGRATIONS),
    ]


def nine_days() -> list[Run]:
    """As much work as 12 GPUs can do in nine days."""
    jobs, on = mix(2, 324, 2400.0, (60, 540)), "p40:12"
    return [
        run("`fifo`", jobs, on, "fifo"),
        run("`fifo-skip`", jobs, on, "fifo-skip"),
        run("`fifo-skip`, defragment", jobs, on, "fifo-skip", 'policy.moves=["defragment"]'),
        run("`gandiva`", jobs, on, "gandiva", *LONG_SLICES),
        run("`gandiva`, pack", jobs, on, "gandiva", *LONG_SLICES, *PACK),
        run("`gandiva`, pack + migrations", jobs, on, "gandiva", *LONG_SLICES, *MIGRATIONS),
        run("`tiresias-las`", jobs, on, "tiresias-las"),
        run("`tiresias-las`, pack + defragment", jobs, on, "tiresias-las", *MOVES),
    ]


# -- the page -------------------------------------------------------------------------------------------


def text(packed: Sequence[Packed], tables: Mapping[str, Sequence[Run]]) -> str:
    """What stands between the marks."""
    lines = [
        "### Packing two jobs of a model on one GPU",
        "",
        "| model | GPU use alone | taking turns | packed | gain in the paper | ours | kept |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in packed:
        m, kept = row.model, "yes" if row.kept else "no, parted after the trial"
        rates = f"{m.utilization:.1%} | {m.turns} /s | {m.packed} /s"
        lines.append(f"| {m.name} | {rates} | {m.gain:+.0%} | {row.gain:+.1%} | {kept} |")
    for title, runs in tables.items():
        base = runs[0]
        lines += ["", f"### {title}", ""]
        lines += [
            "| policy | mean JCT | to `fifo` | makespan | to `fifo` | GPU use | migrations per hour |",
            "|---|---|---|---|---|---|---|",
        ]
        for r in runs:
            jct, span = r.jct_minutes / base.jct_minutes - 1, r.makespan_minutes / base.makespan_minutes - 1
            times = f"{r.jct_minutes:,.0f} min | {jct:+.1%} | {r.makespan_minutes:,.0f} min | {span:+.1%}"
            lines.append(f"| {r.name} | {times} | {r.utilization:.1%} | {r.migrations_per_hour:.2f} |")
    return "\n".join(lines)


def draw(packed: Sequence[Packed], runs: Sequence[Run], path: Path) -> None:
    """Left the gains of packing, right the nine days."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = range(len(packed))
    left.bar(
        [at - 0.2 for at in places],
        [100 * r.model.gain for r in packed],
        0.4,
        label="paper, packed",
        color="0.7",
    )
    left.bar(
        [at + 0.2 for at in places],
        [100 * r.gain for r in packed],
        0.4,
        label="simulated, pack",
        color="#1f5fa8",
    )
    left.set_xticks(places, [r.model.name for r in packed], rotation=35, ha="right", fontsize=8)
    left.set_yscale("symlog", linthresh=20)
    left.set_yticks([-20, 0, 20, 100, 400], ["-20", "0", "20", "100", "400"])
    left.axhline(0, color="black", linewidth=0.8)
    left.set_ylabel("throughput against turns, %")
    left.legend(fontsize=8, frameon=False)
    right.barh([r.name.replace("`", "") for r in runs], [r.jct_minutes for r in runs], color="#1f5fa8")
    right.invert_yaxis()
    right.set_xlabel("mean job completion time, minutes")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def replaced(page: str, new: str) -> str:
    """The page with this between its marks."""
    return page[: page.index(BEGIN) + len(BEGIN)] + f"\n{new}\n" + page[page.index(END) :]


def main() -> None:
    """Simulate and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables between its marks")
    options = parser.parse_args()
    packed = list(packing())
    tables = {"Two hours, 111 jobs on 20 GPUs": two_hours(), "Nine days, 324 jobs on 12 GPUs": nine_days()}
    new = text(packed, tables)
    if options.write is None:
        print(new)
        return
    options.write.write_text(replaced(options.write.read_text(), new))
    draw(packed, list(tables.values())[-1], options.write.parent / "images" / "gandiva.svg")


if __name__ == "__main__":
    main()
