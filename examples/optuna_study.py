# SPDX-License-Identifier: MIT
"""Optuna chooses learning rates and prunes trainings, which take turns on the GPUs of this machine.

    pip install optuna 'gandiva-slurm[run]'
    python optuna_study.py --study lr --trials 40 --at-once 8

More trainings than GPUs are under way at the same time, so that the pruner soon has curves to compare: those
it prunes have cost the least.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import optuna

from gandiva import Pool
from gandiva.pool import Trial

TRAINING = Path(__file__).resolve().with_name("search_trial.py")


class Training:
    """A trial of Optuna's, and the pool's trial that carries it out."""

    def __init__(self, asked: optuna.Trial, trial: Trial) -> None:
        self._asked, self._trial = asked, trial
        self._seen = 0

    def outcome(self) -> float | optuna.trial.TrialState | None:
        """Its accuracy, or why it has none; None while it goes on."""
        over, curve = self._trial.done(), self._trial.curve("accuracy")
        if over:
            completed = self._trial.state == "COMPLETED" and curve
            return curve[-1][1] if completed else optuna.trial.TrialState.FAIL
        for step, accuracy in curve[self._seen :]:
            self._asked.report(accuracy, int(step))
            if self._asked.should_prune():
                self._trial.stop()
                return optuna.trial.TrialState.PRUNED
        self._seen = len(curve)
        return None


def search(study: optuna.Study, pool: Pool, options: argparse.Namespace) -> None:
    """As `study.optimize` does, with several trainings at once."""
    going_on: dict[int, Training] = {}
    for _ in range(options.trials):
        asked = study.ask()
        rate = asked.suggest_float("rate", 1e-4, 1e3, log=True)
        command = (sys.executable, str(TRAINING), "--rate", str(rate), *shlex.split(options.trial))
        going_on[asked.number] = Training(asked, pool.submit(*command))
        while len(going_on) >= options.at_once:
            look(study, going_on)
    while going_on:
        look(study, going_on)


def look(study: optuna.Study, going_on: dict[int, Training]) -> None:
    for number, training in list(going_on.items()):
        outcome = training.outcome()
        if outcome is None:
            continue
        del going_on[number]
        if isinstance(outcome, optuna.trial.TrialState):
            study.tell(number, state=outcome)
        else:
            study.tell(number, outcome)
    time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", default="lr", help="folder of the study (%(default)s)")
    parser.add_argument("--trials", type=int, default=40, help="trainings (%(default)s)")
    parser.add_argument("--at-once", type=int, default=8, help="so many are under way (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=500, help="steps before pruning (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the sampler")
    parser.add_argument("--trial", default="", metavar="OPTIONS", help="more options of each training")
    options = parser.parse_args(arguments)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=options.warm_up)
    sampler = optuna.samplers.TPESampler(seed=options.seed)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    with Pool(options.study) as pool:
        search(study, pool, options)
    for state in ("COMPLETE", "PRUNED", "FAIL"):
        print(f"{state}: {sum(trial.state.name == state for trial in study.trials)}")
    print(f"best: rate {study.best_params['rate']:.2g}, accuracy {study.best_value:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
