# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon a user's search finds its best trial, on 4 mock GPUs of this machine, for real.

    python -m benchmarks.learning_curves --rows rows.jsonl --hyperqueue PYTHON --ray PYTHON
    python -m benchmarks.learning_curves --rows rows.jsonl --write docs/performance.md    needs matplotlib

24 trials, in one order with the best one at the position that the table names; the same for all ways:

    gandiva         `gandiva.Pool`: all are under way, in slices. The driver stops those whose curve ends
                    below what another one has already, lets the two most promising go first, and of the
                    others those of which nothing is known (priority 100)
    to the end      four at a time, each to its end (HyperQueue runs them)
    stopped         the same, and the driver of `gandiva` stops those that run
    kill and queue  asynchronous successive halving: to a rung, and from its checkpoint on when it is promoted
                    (HyperQueue runs the pieces, four at a time)
    Ray Tune        its own ASHAScheduler: stopped at a rung, never resumed

The trials' mini-batches are kernels of mock GPUs; processes, switches, checkpoints and copies of 1 GiB at
12 GiB/s are real. `--hyperqueue` and `--ray`: a Python with the package hyperqueue, and one with ray[tune].
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.learning_curve_trial import MINIBATCH_MS, STEPS, Curve
from benchmarks.learning_curves_report import Row, shown, write
from benchmarks.workstation import ROOT, Workstation, workstation
from gandiva.curves import Judgement, judge
from gandiva.pool import Pool

TRIALS, GPUS, TOP = 24, 4, 2
SLICE_SECONDS, LOOK_SECONDS = 2.0, 0.25
RUNGS, FACTOR = (70, 210, STEPS), 3
LEAST_POINTS = 6
"""Of a curve that is judged."""
UNKNOWN_PRIORITY = 100.0
MARGIN = 0.02
"""By so much, four times the noise, less than what another trial has reached is no reason to stop one."""
POSITIONS = (0.25, 0.50, 0.75)
STUDY = f"""[policy]
name = "gandiva"
gandiva.slice_seconds = {SLICE_SECONDS}
gandiva.max_jobs_per_gpu = {TRIALS // GPUS}
"""
TRIAL = [sys.executable, str(ROOT / "benchmarks/learning_curve_trial.py")]
PEERS = ROOT / "benchmarks/peers"
Curves = Mapping[int, Sequence[tuple[float, float]]]


def made_trials(position: float, seed: int) -> list[Curve]:
    """In the order in which they are tried; the best one is at `position`."""
    rng = random.Random(seed)

    def made(final: float) -> Curve:
        return Curve(round(final, 4), round(rng.uniform(0.2, 0.8), 3), rng.getrandbits(31))

    others = [made(rng.uniform(0.05, 0.85)) for _ in range(TRIALS - 1)]
    at = round(position * TRIALS) - 1
    return [*others[:at], made(0.91), *others[at:]]


def best_of(trials: Sequence[Curve]) -> int:
    return max(range(len(trials)), key=lambda number: trials[number].final)


# --- what is measured --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """A line of a trial's log."""

    time: float
    step: int
    accuracy: float
    pid: int


def told(log: Path) -> list[Told]:
    """All whole lines; none where it has not begun."""
    if not log.exists():
        return []
    text = log.read_text(encoding="utf-8")
    lines = map(str.split, text[: text.rfind("\n") + 1].splitlines())
    return [Told(float(at), int(step), float(accuracy), int(pid)) for at, step, accuracy, pid in lines]


def logs(folder: Path) -> dict[int, list[Told]]:
    """By trial."""
    return {number: told(folder / f"{number}.log") for number in range(TRIALS)}


def measured(found: Mapping[int, Sequence[Told]], best: int, began: float) -> dict[str, Any]:
    """What a table needs of a run that began at this time."""
    lines = sorted((line for mine in found.values() for line in mine), key=lambda line: line.time)
    firsts = [next((line.time for line in mine if line.step), math.inf) for mine in found.values()]
    end = next((line.time for line in found[best] if line.step == STEPS), math.inf)
    reached, points = 0.0, []
    for line in lines:
        if line.step and line.accuracy > reached:
            reached = line.accuracy
            points.append((round(line.time - began, 3), reached))
    return {
        "first_seconds": max(firsts) - began,
        "best_seconds": end - began,
        "total_seconds": lines[-1].time - began,
        "gpu_seconds": sum(map(minibatches, found.values())) * MINIBATCH_MS / 1000,
        "points": points,
    }


def minibatches(lines: Sequence[Told]) -> int:
    """Those of all starts, what was done twice among them."""
    return sum(max(0, after.step - before.step) for before, after in itertools.pairwise(lines))


# --- drivers -----------------------------------------------------------------------------------------------


def judgement(curves: Curves, living: set[int]) -> Judgement:
    """Of the living trials: stop those that will end below what some trial has reached already."""
    reached = max((points[-1][1] for points in curves.values() if points), default=0.0)
    known = {
        str(number): curves[number] if len(curves[number]) >= LEAST_POINTS else ()
        for number in sorted(living)
    }
    return judge(known, final_step=STEPS, stop_below=reached - MARGIN, top=TOP)


@dataclass
class Halving:
    """Asynchronous successive halving of trials that there are (ASHA, Li et al. 2020)."""

    trials: int
    rungs: Sequence[int]
    factor: int
    _begun: int = 0
    _results: list[dict[int, float]] = field(init=False)
    """For each rung, accuracies by trial."""
    _promoted: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._results = [{} for _ in self.rungs]
        self._promoted = [set() for _ in self.rungs]

    def result(self, trial: int, rung: int, accuracy: float) -> None:
        self._results[rung][trial] = accuracy

    def next(self) -> tuple[int, int] | None:
        """A trial, and the rung that it is to be trained to; None: nothing until there are other results."""
        for rung in reversed(range(len(self.rungs) - 1)):
            results = self._results[rung]
            order = sorted(results, key=lambda trial: -results[trial])
            for trial in order[: len(order) // self.factor]:
                if trial not in self._promoted[rung]:
                    self._promoted[rung].add(trial)
                    return trial, rung + 1
        if self._begun == self.trials:
            return None
        self._begun += 1
        return self._begun - 1, 0


# --- ways --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """What runs the trials. `run`: in a new folder; returns when it began, once all is over."""

    run: Callable[[Path, Sequence[Curve], str], float]
    needs: str = ""
    """The option with the Python that it needs."""


def words(curve: Curve, folder: Path, number: int) -> list[str]:
    return [*TRIAL, *curve.words(), "--log", str(folder / f"{number}.log")]


def gandiva(folder: Path, trials: Sequence[Curve], _python: str) -> float:
    study = folder / "study.toml"
    study.write_text(STUDY)
    with Pool(folder / "study", file=study, gpus=range(GPUS)) as pool:
        began = time.time()
        submitted = {
            number: pool.submit(*words(curve, folder, number), name=str(number), priority=UNKNOWN_PRIORITY)
            for number, curve in enumerate(trials)
        }
        unknown, exclusive = set(map(str, submitted)), set[str]()
        while living := {number for number, trial in submitted.items() if not trial.done()}:
            curves = {number: trial.curve("accuracy") for number, trial in submitted.items()}
            judged = judgement(curves, living)
            for name in judged.stop:
                submitted[int(name)].stop()
            for name in unknown - set(judged.unknown) - set(judged.stop):
                submitted[int(name)].set_priority(1)
            for name in exclusive ^ set(judged.first):
                submitted[int(name)].set_exclusive(name in judged.first)
            unknown, exclusive = set(judged.unknown), set(judged.first)
            time.sleep(LOOK_SECONDS)
    return began


@contextmanager
def hyperqueue(folder: Path, python: str) -> Iterator[Callable[[list[str]], None]]:
    """What takes the commands of tasks; by the end they are over."""
    command = [python, str(PEERS / "hyperqueue_tasks.py"), str(folder / "hq"), str(GPUS)]
    with (folder / "hyperqueue.out").open("wb") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
        )
    assert server.stdin is not None and server.stdout is not None
    ready = any(line == "ready\n" for line in server.stdout)

    def submit(task: list[str]) -> None:
        assert server.stdin is not None
        server.stdin.write(json.dumps(task) + "\n")

    try:
        if not ready:
            raise RuntimeError(f"HyperQueue does not start: {folder / 'hyperqueue.out'}")
        yield submit
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def to_the_end(folder: Path, trials: Sequence[Curve], python: str) -> float:
    with hyperqueue(folder, python) as submit:
        began = time.time()
        for number, curve in enumerate(trials):
            submit(words(curve, folder, number))
    return began


def stopped(folder: Path, trials: Sequence[Curve], python: str) -> float:
    with hyperqueue(folder, python) as submit:
        began, over = time.time(), set[int]()
        for number, curve in enumerate(trials):
            submit(words(curve, folder, number))
        while len(over) < TRIALS:
            found = logs(folder)
            over |= {number for number, lines in found.items() if lines and lines[-1].step == STEPS}
            curves = {
                number: [(line.step, line.accuracy) for line in lines if line.step]
                for number, lines in found.items()
            }
            for name in judgement(curves, set(range(TRIALS)) - over).stop:
                over.add(int(name))
                with suppress(ProcessLookupError):
                    os.kill(found[int(name)][0].pid, signal.SIGTERM)
            time.sleep(LOOK_SECONDS)
    return began


def kill_and_queue(folder: Path, trials: Sequence[Curve], python: str) -> float:
    halving = Halving(TRIALS, RUNGS, FACTOR)
    running: dict[int, int] = {}
    with hyperqueue(folder, python) as submit:
        began = time.time()
        while True:
            while len(running) < GPUS and (piece := halving.next()) is not None:
                number, rung = piece
                saved = ["--checkpoints", str(folder / f"saved-{number}"), "--until", str(RUNGS[rung])]
                submit([*words(trials[number], folder, number), *saved])
                running[number] = rung
            if not running:
                return began
            time.sleep(0.02)
            for number, rung in list(running.items()):
                lines = told(folder / f"{number}.log")
                if lines and lines[-1].step == RUNGS[rung]:
                    halving.result(number, running.pop(number), lines[-1].accuracy)


def ray_tune(folder: Path, trials: Sequence[Curve], python: str) -> float:
    asked = {"curves": [astuple(curve) for curve in trials], "rungs": RUNGS, "factor": FACTOR}
    command = [python, str(PEERS / "ray_trials.py"), str(folder), str(GPUS)]
    with (folder / "ray.out").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(asked))
    process.stdin.close()
    while process.stdout.readline() not in ("ready\n", ""):
        pass
    began = time.time()
    process.stdout.read()
    process.stdout.close()
    if process.wait():
        raise RuntimeError(f"Ray Tune has failed: {folder / 'ray.out'}")
    return began


WAYS = {
    "gandiva": Way(gandiva),
    "to the end": Way(to_the_end, "hyperqueue"),
    "stopped": Way(stopped, "hyperqueue"),
    "kill and queue": Way(kill_and_queue, "hyperqueue"),
    "Ray Tune": Way(ray_tune, "ray"),
}


def run(
    station: Workstation, way: str, position: float, seed: int, python: str, keep: Path | None = None
) -> Row:
    """One way, one order of trials."""
    folder = station.folder / f"{seed}-{way.replace(' ', '-')}"
    folder.mkdir()
    trials = made_trials(position, seed)
    load = os.getloadavg()[0]
    try:
        began = WAYS[way].run(folder, trials, python)
    finally:
        if keep is not None:
            shutil.copytree(folder, keep / folder.name, ignore=shutil.ignore_patterns("api", "r"))
    found = measured(logs(folder), best_of(trials), began)
    return Row(way=way, position=position, load=load, **found)


def main() -> int:
    """Run and print, or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=Path, required=True, help="file that results are added to; the table has means"
    )
    parser.add_argument("--hyperqueue", metavar="PYTHON", help="with HyperQueue")
    parser.add_argument("--ray", metavar="PYTHON", help="with Ray Tune")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--positions", nargs="*", type=float, default=POSITIONS, help="of the best trial")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="copy what runs leave behind to this folder")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="make its table and its plot")
    options = parser.parse_args()
    if options.write is None:
        with workstation(GPUS, copy_rate="12GiB") as station, options.rows.open("a") as file:
            os.environ.update(station.environ)
            for seed, position in enumerate(options.positions):
                for way in options.ways:
                    python = getattr(options, WAYS[way].needs, sys.executable) if WAYS[way].needs else ""
                    if python is None:
                        continue
                    row = run(station, way, position, seed, python, options.logs)
                    file.write(json.dumps(asdict(row)) + "\n")
                    file.flush()
    rows = [Row(**json.loads(line)) for line in options.rows.read_text().splitlines()]
    table = Table(*shown(rows)[0])
    for line in shown(rows)[1:]:
        table.add_row(*line)
    Console().print(table)
    if options.write is not None:
        write(rows, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
