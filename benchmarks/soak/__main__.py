# SPDX-License-Identifier: GPL-2.0-or-later
"""`make soak`: the product at the size of a real site, on a real Slurm, with every rule checked.

64 nodes with eight GPUs each (64 slurmd in one container), 610 live jobs of five users, of 1 to 16 GPUs,
every GPU shared by two; jobs that end are replaced. Slices are 60 s, and the settings are the default ones
but for those that `site.CONTROLLER` explains. `--quick` is 16 nodes and 156 jobs with slices of 20 s, for CI.
A run must be long enough for some of the short jobs (`site.SHORT_STEPS`) to do all their mini-batches.
The status is 0 when no rule was broken; times are only reported.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.soak import rules, site
from benchmarks.soak.figures import figures, plot, show
from benchmarks.soak.site import FOLDER, SoakJob, Wanted
from container.cluster import MiniCluster
from container.errors import MiniClusterError
from container.images import REPOSITORY_ROOT

HERE = Path(__file__).resolve().parent
LIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING"})
LOOK_SECONDS = 10.0
CHECK_EVERY = 6
AT_ONCE = 40
START_SECONDS = 180.0
FILL_SECONDS = 300.0
DRAIN_SECONDS = 420.0


class Soak:
    """One run."""

    def __init__(self, cluster: MiniCluster, minutes: float, slice_seconds: float, say: Console) -> None:
        self.cluster = cluster
        self.seconds = minutes * 60
        self.slice_seconds = slice_seconds
        self.say = say
        self.jobs: list[SoakJob] = []
        self.broken: list[str] = []
        self.host = next(host for host in cluster.spec.hosts if host.role == "node")
        self.nodes = len(cluster.spec.node_names)
        self.sizes = site.SIZES[self.nodes]
        self._ended: set[int] = set()

    def run(self, output: Path) -> int:
        """Returns the number of broken rules."""
        self._prepare()
        references = self._references()
        samplers = [self._sample("ctl", "ctl", 5.0), self._sample(self.host.name, "nodes", 15.0)]
        slices = {"name": "gandiva", "gandiva": {"slice_seconds": self.slice_seconds}}
        self._start_controller({**site.CONTROLLER, "policy": slices})
        self._fill()
        begin = time.time()
        self.cluster.exec("ctl", ["sdiag", "-r"])
        self._soak(begin)
        end = time.time()
        sdiag = self.cluster.exec("ctl", ["sdiag"]).stdout
        self._drain()
        if not self.broken:
            self.broken += rules.overlaps(self.cluster, self.host)
        self.cluster.exec("login", f"touch {FOLDER}/done")
        for sampler in samplers:
            sampler.join(60)
        output.mkdir(parents=True, exist_ok=True)
        evidence = rules.gather(self.cluster, self.jobs, references)
        kept = {name: value for name, value in vars(evidence).items() if not name.startswith("turns")}
        (output / "evidence.json").write_text(json.dumps(kept, default=vars))
        (output / "turns.txt").write_text(evidence.turns_text)
        self.broken += rules.check(evidence)
        raw = {
            "begin": begin,
            "end": end,
            "nodes": len(self.cluster.spec.node_names),
            "slice_seconds": self.slice_seconds,
            "sdiag": sdiag,
            "jobs": len(self.jobs),
            "live": sum(self.sizes.values()),
            "gpus": len(self.cluster.spec.node_names) * site.GPUS_PER_NODE,
            "samples": {
                name: [
                    json.loads(line)
                    for line in self.cluster.read_file("login", f"{FOLDER}/samples-{name}.jsonl").splitlines()
                ]
                for name in ("ctl", "nodes")
            },
        }
        (output / "raw.json").write_text(json.dumps(raw))
        (output / "controller.log").write_text(self.cluster.controller_log())
        found = figures(raw, evidence.turns)
        (output / "figures.json").write_text(json.dumps(found, indent=1))
        (output / "soak.svg").write_text(plot(raw, evidence.turns))
        show(self.say, found, evidence)
        for line in self.broken[:40]:
            self.say.print(f"[red]broken:[/red] {line}", highlight=False)
        return len(self.broken)

    def _start_controller(self, settings: Mapping[str, Any]) -> None:
        """On a machine that starts 64 agents at the same time the first look takes its time."""
        try:
            self.cluster.start_controller(settings)
        except MiniClusterError:
            if not self.cluster.controller_running():
                raise
            probe = "import urllib.request as u; u.urlopen('http://localhost:6822/healthz')"
            self._wait(
                "the controller",
                START_SECONDS,
                lambda: self.cluster.exec("ctl", ["python3", "-c", probe], check=False).exit_code == 0,
            )

    # -- parts ------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        cluster = self.cluster
        cluster.stop_controller()
        folders = " ".join(f"{FOLDER}/{name}" for name in ("turns", "meeting", "output"))
        cluster.exec("login", f"rm -rf {FOLDER}; mkdir -p {folders}; chmod 1777 {FOLDER} {folders}")
        for name in ("job.py", "sampler.py"):
            cluster.write_file("login", f"{FOLDER}/{name}", (HERE / name).read_text())
        cluster.exec(self.host.name, site.on_all_nodes("mockgpu clear-history", self.host.nodes))

    def _references(self) -> dict[int, str]:
        """Results of undisturbed runs of the short jobs, by size."""
        self.say.print("  reference runs", highlight=False)
        wanted = [Wanted("alice", gpus, site.SHORT_STEPS[self.nodes]) for gpus in self.sizes]
        jobs = site.submit(self.cluster, wanted, reference=True)
        self._wait("the reference runs", 120, lambda: self._all_over(jobs))
        found = {job.gpus: rules.digests(self.cluster, [job])[job.job_id] for job in jobs}
        missing = [gpus for gpus, digest in found.items() if not digest]
        if missing:
            raise MiniClusterError(f"reference runs of {missing} GPUs gave no result")
        return found

    def _all_over(self, jobs: list[SoakJob]) -> bool:
        states = site.states(self.cluster)
        return not any(states.get(job.job_id) in LIVE | {"COMPLETING"} for job in jobs)

    def _sample(self, host: str, name: str, seconds: float) -> threading.Thread:
        command = ["python3", f"{FOLDER}/sampler.py", FOLDER, name, f"{seconds:g}"]
        longest = self.seconds + FILL_SECONDS + DRAIN_SECONDS + 900
        thread = threading.Thread(
            target=lambda: self.cluster.exec(host, command, timeout_seconds=longest, check=False),
            daemon=True,
        )
        thread.start()
        return thread

    def _fill(self) -> None:
        """Two waves: the first takes all GPUs, the second shares them."""
        began = time.monotonic()
        first, second = site.waves(self.nodes)
        # All nodes are one machine here: not all of them start their jobs at the same moment.
        for start in range(0, len(first), AT_ONCE):
            self.jobs += site.submit(self.cluster, first[start : start + AT_ONCE])
            self._wait("the first wave on GPUs", FILL_SECONDS, lambda: self._pending() < AT_ONCE // 4)
        self._wait("the first wave on GPUs", FILL_SECONDS, lambda: self._pending() == 0)
        self.jobs += site.submit(self.cluster, second)
        seconds = time.monotonic() - began
        self.say.print(f"  filled in {seconds:.0f} s: {self._line()}", highlight=False)

    def _pending(self) -> int:
        return sum(state == "PENDING" for state in site.states(self.cluster).values())

    def _soak(self, begin: float) -> None:
        looks = 0
        while (left := begin + self.seconds - time.time()) > 0:
            time.sleep(min(LOOK_SECONDS, left))
            looks += 1
            self._feed()
            if looks % CHECK_EVERY == 0:
                self.broken += rules.overlaps(self.cluster, self.host)
                self.say.print(f"  {time.time() - begin:5.0f} s: {self._line()}", highlight=False)
                if self.broken:
                    return

    def _feed(self) -> None:
        """Replace jobs that ended by others of their size."""
        states = site.states(self.cluster)
        new = []
        for job in self.jobs:
            if job.job_id in self._ended:
                continue
            state = states.get(job.job_id, "FORGOTTEN")
            if state not in LIVE:
                self._ended.add(job.job_id)
                new.append(Wanted(job.user, job.gpus, job.steps))
        if new:
            self.jobs += site.submit(self.cluster, new)

    def _drain(self) -> None:
        """Let every job end at its next turn, and see that all of them do."""
        self.cluster.exec("login", f"touch {FOLDER}/stop")
        began = time.monotonic()
        try:
            self._wait("the end of all jobs", DRAIN_SECONDS, lambda: self._all_over(self.jobs))
        except MiniClusterError as error:
            self.broken.append(str(error))
        self.say.print(f"  drained in {time.monotonic() - began:.0f} s", highlight=False)

    def _line(self) -> str:
        counts: dict[str, int] = {}
        for state in site.states(self.cluster).values():
            counts[state] = counts.get(state, 0) + 1
        return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))

    def _wait(self, what: str, seconds: float, condition: object) -> None:
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise MiniClusterError(f"not within {seconds:g} s: {what}: {self._line()}")
            time.sleep(1.0)


def main() -> int:
    """Run and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="the five-minute version")
    parser.add_argument("--minutes", type=float, help="under load (30; quick: 3)")
    parser.add_argument("--slice-seconds", type=float, help="(60; quick: 20)")
    parser.add_argument("--nodes", type=int, choices=sorted(site.SIZES), help="(64; quick: 16)")
    parser.add_argument("--name", default="soak", help="of the mini cluster (%(default)s)")
    parser.add_argument(
        "--keep", action="store_true", help="leave it running; one of this name is used again"
    )
    parser.add_argument("--source", type=Path, default=REPOSITORY_ROOT, help="sources of another checkout")
    parser.add_argument("--output", type=Path, default=Path("build/soak"), help="folder (%(default)s)")
    options = parser.parse_args()
    quick = options.quick
    console = Console(soft_wrap=True)
    spec = site.spec(options.name, options.nodes or (16 if quick else 64))
    cluster = MiniCluster(spec, report=lambda line: console.print(f"  {line}", highlight=False))
    try:
        if options.keep:
            try:
                cluster = MiniCluster.attach(options.name)
            except MiniClusterError:
                cluster.up(options.source)
        else:
            cluster.down()
            cluster.up(options.source)
        soak = Soak(
            cluster,
            options.minutes or (3 if quick else 30),
            options.slice_seconds or (20 if quick else 60),
            console,
        )
        failures = soak.run(options.output)
    except MiniClusterError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        if not options.keep:
            cluster.gather_logs(options.output / "logs")
        return 1
    finally:
        if not options.keep:
            cluster.down()
    console.print(f"{'no rule was broken' if not failures else f'{failures} broken rules'}", highlight=False)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
