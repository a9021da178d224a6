# SPDX-License-Identifier: MIT
"""A search for the best learning rate, with the rule of the Gandiva paper.

    python search_driver.py --search rates --rates 0.0003,0.001,0.003,0.01,0.1,1,30,300

Submits a job for each rate and then, again and again: predicts from each job's learning curve how accurate it
will be at its end, stops those below a threshold, and lets the most promising ones run exclusively. Until a
job has done 1,000 mini-batches nothing is said of it, and it has a high priority: all are looked at soon.

Runs wherever sbatch does, as an ordinary user, for as long as the search; needs this repository's `gandiva`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gandiva.curves import judge
from gandiva.trials import Search, TrialsError

HERE = Path(__file__).resolve().parent
UNKNOWN_PRIORITY = 100.0


def curve(file: Path, least_step: int) -> list[tuple[float, float]]:
    """What a job has told: accuracy by step. Nothing until it has done so many mini-batches."""
    points = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            step, accuracy = map(float, line.split())
        except ValueError:
            continue  # the line is being written
        points.append((step, accuracy))
    return points if points and points[-1][0] >= least_step else []


def look(search: Search, folder: Path, options: argparse.Namespace) -> bool:
    """Judge the jobs, once. False: none is left."""
    trials = search.trials()
    curves = {
        trial.job: curve(folder / f"accuracies-{trial.job}.txt", options.judge_after) for trial in trials
    }
    judged = judge(curves, final_step=options.steps, stop_below=options.stop_below, top=options.top)
    for trial in trials:
        priority = UNKNOWN_PRIORITY if trial.job in judged.unknown else 1.0
        if trial.job in judged.stop:
            print(f"job {trial.job}: stopped at {curves[trial.job][-1][1]:.0%}", flush=True)
            search.stop(trial.job)
        elif trial.priority != priority:
            search.set_priority(trial.job, priority)
    known = {trial.job for trial in trials if trial.exclusive}
    if known != set(judged.first):
        print(f"exclusive: {', '.join(judged.first) or 'none'}", flush=True)
        search.set_exclusive(judged.first)
    return bool(trials)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--search", default="rates", help="name of the search (%(default)s)")
    parser.add_argument("--rates", default="0.0003,0.001,0.003,0.01,0.1,1,30,300", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=33_000, help="mini-batches of a job (%(default)s)")
    parser.add_argument("--judge-after", type=int, default=1000, help="mini-batches (%(default)s)")
    parser.add_argument("--stop-below", type=float, default=0.3, help="accuracy at the end (%(default)s)")
    parser.add_argument("--top", type=int, default=2, help="so many run exclusively (%(default)s)")
    parser.add_argument("--look-seconds", type=float, default=30.0, help="(%(default)s)")
    parser.add_argument(
        "--trial", default="", metavar="OPTIONS", help="more options of each job, as one word"
    )
    options = parser.parse_args(arguments)
    search, folder, rates = Search(options.search), Path.cwd(), options.rates.split(",")
    jobs = {}
    for rate in rates:
        training = ["--rate", rate, "--steps", str(options.steps), *shlex.split(options.trial)]
        jobs[search.submit(str(HERE / "search_trial.sbatch"), *training)] = rate
    print(f"search {search.name}: jobs {', '.join(jobs)}", flush=True)
    more = True
    while more:
        time.sleep(options.look_seconds)
        try:
            more = look(search, folder, options)
        except TrialsError as error:  # a job has just ended, or slurmctld is restarted
            print(f"looking again: {error}", file=sys.stderr, flush=True)
    ends = {job: curve(folder / f"accuracies-{job}.txt", 0) for job in jobs}
    best = max(jobs, key=lambda job: ends[job][-1][1] if ends[job] else 0.0)
    print(f"best: rate {jobs[best]}, accuracy {ends[best][-1][1]:.2%}" if ends[best] else "none ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
