# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast the simulator is at the size of a large site, and as it grows.

    python benchmarks/simulator.py [decisions]          one decision for 10,000 GPUs and 20,000 jobs
    python benchmarks/simulator.py scale                100,000 jobs on 10,000 GPUs
    python benchmarks/simulator.py philly               the public Philly trace, 82,247 jobs on 512 GPUs
    python benchmarks/simulator.py growth --svg FILE    jobs and GPUs from small to large, with a plot

`benchmarks/peers` compares it with other people's simulators.
"""

from __future__ import annotations

import argparse
import atexit
import math
import os
import random
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from controller.model import ALL_CHANGED, Memory, Plan, Snapshot  # noqa: E402
from controller.policies.assemble import make_policy  # noqa: E402
from controller.policies.protocol import Policy  # noqa: E402
from controller.settings.schema import Settings  # noqa: E402
from controller.simulation.cluster_spec import parse_cluster  # noqa: E402
from controller.simulation.configure import configure  # noqa: E402
from controller.simulation.driver import Simulation  # noqa: E402
from controller.simulation.metrics import percentile  # noqa: E402
from controller.simulation.outcome import Outcome  # noqa: E402
from controller.simulation.traces import TraceJob, read_trace  # noqa: E402

FIDELITY = HERE / "fidelity"
IDEAL = (
    "requests.suspend=requeue",
    *(f"simulation.{key}_seconds=0.0" for key in ("rpc", "start", "step", "suspend", "resume", "requeue")),
    "simulation.restart_seconds=0.0",
    "simulation.checkpoint_bytes_per_second=0",
)
SIZES, SHARES = (1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05)
"""GPUs per job and how often (the mix of the Philly trace as Gavel uses it)."""


def made_trace(count: int, gpus: int, load: float, seed: int = 1) -> list[TraceJob]:
    """Poisson arrivals, log-normal durations (median 30 min), so that `load` of the GPUs are asked for."""
    rng = random.Random(seed)
    sigma, median_seconds = 1.6, 1800.0
    mean_seconds = median_seconds * math.exp(sigma**2 / 2)
    mean_gpus = sum(size * share for size, share in zip(SIZES, SHARES, strict=True))
    gap_seconds = mean_seconds * mean_gpus / (gpus * load)
    jobs, now = [], 0.0
    for number in range(count):
        size = rng.choices(SIZES, SHARES)[0]
        duration = min(30 * 86400.0, max(1.0, rng.lognormvariate(math.log(median_seconds), sigma)))
        jobs.append(TraceJob(str(number), round(now, 3), size, round(duration, 3), number + 2))
        now += rng.expovariate(1 / gap_seconds)
    return jobs


def run(jobs: list[TraceJob], gpus: int, policy: str, settings: Path | None = None) -> Outcome:
    """One simulation on nodes of 8 GPUs; by default nothing costs time and jobs are preempted by requeue."""
    chosen: Settings = configure(settings, policy, IDEAL if settings is None else ())
    return Simulation(
        Path("made"), jobs, parse_cluster(f"a100:{gpus}", 8), chosen, on_progress=progress
    ).run()


def progress(done: int, total: int, _time: float) -> None:
    """On a terminal."""
    if (done % 500 == 0 or done == total) and sys.stderr.isatty():
        print(f"\r{done}/{total} jobs ", end="" if done < total else "\n", file=sys.stderr)


def decisions(args: argparse.Namespace) -> None:
    """Decisions while 20,000 jobs are there, from a backlog on a full cluster. All jobs start at once, so
    that thousands change their queue or their GPUs at once later: the worst case."""
    waiting = made_trace(args.jobs, args.gpus, load=1.0)
    jobs = [TraceJob(j.id, 0.0, j.gpus, 1e6 + (j.duration_seconds or 0), j.line) for j in waiting]
    late = [
        TraceJob(f"late{i}", 10.0 + i * 5, 1 + i % 2, 400.0 + 37 * (i % 50), i + 2)
        for i in range(args.decisions)
    ]
    for policy in args.policies.split(","):
        extra: tuple[str, ...] = ()
        if policy == "tiresias-gittins" and args.learned:
            # The index counts from the first decision on, as where the policy has run for a while.
            extra = (f'distribution="{sizes_file()}"',)
        settings = configure(None, policy, (*IDEAL, *extra))
        watched = Watched(make_policy(settings.policy), args.decisions, resync=args.resync)
        cluster = parse_cluster(f"a100:{args.gpus}", 8)
        with suppress(Enough):
            Simulation(Path("made"), [*jobs, *late], cluster, settings, policy=watched).run()
        seconds = watched.seconds
        # The very first sees no jobs yet.
        ordered = sorted(seconds[2:])
        print(
            f"{policy:17} {args.gpus} GPUs, {watched.most_jobs} jobs at once: plan with all jobs new "
            f"{seconds[1] * 1e3:.1f} ms; then {len(ordered)} decisions, median "
            f"{percentile(ordered, 0.5) * 1e3:.2f} ms, p99 {percentile(ordered, 0.99) * 1e3:.2f} ms, "
            f"max {ordered[-1] * 1e3:.2f} ms",
            flush=True,
        )


class Enough(Exception):
    """So many decisions are enough."""


class Watched:
    """A policy, and the CPU time of its decisions: on a busy machine wall time says little."""

    def __init__(self, policy: Policy, count: int, *, resync: bool) -> None:
        """`count`: so many decisions. `resync`: of snapshots that say that everything changed."""
        self._policy, self._count, self._resync = policy, count, resync
        self.seconds: list[float] = []
        self.most_jobs = 0

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """That of the policy. Raises Enough."""
        if self._resync:
            snapshot = replace(snapshot, changed=ALL_CHANGED)
        self.most_jobs = max(self.most_jobs, len(snapshot.jobs))
        begin = time.process_time()
        made = self._policy.plan(snapshot, memory)
        self.seconds.append(time.process_time() - begin)
        if len(self.seconds) >= self._count:
            raise Enough
        return made


def sizes_file() -> Path:
    """GPU-seconds of 1,000 finished jobs like those of the trace."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as file:
        file.write("duration\n")
        for job in made_trace(1000, 10_000, load=1.0, seed=2):
            file.write(f"{job.gpus * (job.duration_seconds or 1):.3f}\n")
    atexit.register(os.unlink, file.name)
    return Path(file.name)


def report(outcome: Outcome, policy: str, cpu_seconds: float) -> str:
    """One line."""
    ordered = sorted(outcome.decision_seconds)
    return (
        f"{policy:17} {len(outcome.jobs):7} jobs {outcome.gpus:6} GPUs: {outcome.wall_seconds:8.2f} s "
        f"({cpu_seconds:.2f} s CPU), {len(ordered)} decisions, "
        f"median {percentile(ordered, 0.5) * 1e3:.3f} ms, p99 {percentile(ordered, 0.99) * 1e3:.3f} ms, "
        f"max {ordered[-1] * 1e3:.1f} ms, "
        f"{sum(job.preemptions for job in outcome.jobs)} preemptions"
    )


def scale(args: argparse.Namespace) -> None:
    """One large simulation for each policy."""
    jobs = made_trace(args.jobs, args.gpus, args.load)
    for policy in args.policies.split(","):
        begin = time.process_time()
        outcome = run(jobs, args.gpus, policy, args.settings)
        print(report(outcome, policy, time.process_time() - begin), flush=True)


def philly(args: argparse.Namespace) -> None:
    """The public trace, with the settings of the comparison with the authors' simulator."""
    trace = args.refs / "inputs/philly/philly.csv.gz"
    if not trace.is_file():
        print(f"not run: there is no {trace} (--refs or GANDIVA_REFS names the folder)")
        return
    jobs = read_trace(trace, "philly")
    for policy in args.policies.split(","):
        begin = time.process_time()
        outcome = run(jobs, args.gpus, policy, HERE / "fidelity" / "tiresias.toml")
        print(report(outcome, policy, time.process_time() - begin), flush=True)


def growth(args: argparse.Namespace) -> None:
    """CPU time against the number of jobs, the cluster growing with it; and the exponent of its growth."""
    points: list[tuple[int, float]] = []
    for count in args.counts:
        gpus = max(80, count // 10)
        begin = time.process_time()
        outcome = run(made_trace(count, gpus, args.load), gpus, args.policies.split(",")[0], args.settings)
        seconds = time.process_time() - begin
        points.append((count, seconds))
        print(report(outcome, args.policies.split(",")[0], seconds), flush=True)
    for (n, t), (m, u) in pairwise(points):
        bound = m * math.log(m) / (n * math.log(n))
        print(f"{n} -> {m} jobs: {u / t:.2f} times the time; n log n allows {bound:.2f}")
    if args.svg is not None:
        args.svg.write_text(growth_svg(points), encoding="utf-8")


def growth_svg(points: list[tuple[int, float]]) -> str:
    """Measured time and n log n through the first point, both axes logarithmic."""
    from controller.simulation.plots import svg

    first, seconds = points[0]
    unit = seconds / (first * math.log(first))
    bound = [(math.log10(n), math.log10(1e3 * unit * n * math.log(n))) for n, _ in points]
    taken = [(math.log10(n), math.log10(1e3 * t)) for n, t in points]
    drawn = svg(
        "CPU time of a simulation (blue) against n log n from its first point (red); cluster of n/10 GPUs",
        [("measured", taken), ("n log n", bound)],
        lambda x: f"{10**x:,.0f} jobs",
        lambda y: f"{10**y / 1e3:.3g} s",
    )
    style = (
        "<style>polyline{fill:none;stroke-width:2}text{font:12px sans-serif}.r{text-anchor:end;"
        "dominant-baseline:middle}.m{text-anchor:middle}.g{stroke:#ccc}.t{font-weight:bold}</style>"
    )
    return (
        drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", ">" + style, 1)
        + "\n"
    )


def main() -> int:
    """Run the benchmark that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind")
    one = kinds.add_parser("decisions")
    one.add_argument("--gpus", type=int, default=10_000)
    one.add_argument("--jobs", type=int, default=20_000)
    one.add_argument("--decisions", type=int, default=1000)
    one.add_argument("--policies", default="fifo,tiresias-las,tiresias-gittins,srtf")
    one.add_argument("--resync", action="store_true", help="every snapshot says that everything changed")
    one.add_argument("--learned", action="store_true", help="tiresias-gittins knows 1,000 finished jobs")
    one.set_defaults(run=decisions)
    two = kinds.add_parser("scale")
    two.add_argument("--gpus", type=int, default=10_000)
    two.add_argument("--jobs", type=int, default=100_000)
    two.set_defaults(run=scale)
    four = kinds.add_parser("philly")
    four.add_argument(
        "--refs", type=Path, default=Path(os.environ.get("GANDIVA_REFS", ROOT.parent / "shared/refs"))
    )
    four.add_argument("--gpus", type=int, default=512)
    four.add_argument("--policies", default="tiresias-las")
    four.set_defaults(run=philly)
    three = kinds.add_parser("growth")
    three.add_argument("--counts", type=int, nargs="+", default=[1000, 3000, 10_000, 30_000, 100_000])
    three.add_argument("--svg", type=Path)
    three.set_defaults(run=growth)
    for parser_ in (two, three):
        parser_.add_argument("--load", type=float, default=0.9)
        parser_.add_argument("--policies", default="tiresias-las")
        parser_.add_argument("--settings", type=Path)
    args = parser.parse_args(sys.argv[1:] or ["decisions"])
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
