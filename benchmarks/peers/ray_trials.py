# SPDX-License-Identifier: GPL-2.0-or-later
"""Trials of `benchmarks.learning_curves` under Ray Tune with ASHA: `PYTHON ray_trials.py FOLDER GPUS`.

Standard input: a JSON object with `curves` (lists of final, slope, seed), `rungs` and `factor`. FOLDER/N.log
is what trial N says.
"""

import json
import sys
from pathlib import Path
from typing import Any

import ray  # type: ignore[import-not-found]
from ray import tune
from ray.tune.schedulers import ASHAScheduler  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.learning_curve_trial import STEPS, Curve, log_to, train


def trainable(config: dict[str, Any]) -> None:
    import gandiva

    curve, path = config["trial"]
    log = log_to(Path(path))

    def tell(step: int, accuracy: float) -> None:
        log(step, accuracy)
        if step:
            tune.report({"step": step, "accuracy": accuracy})

    train(Curve(*curve), tell, gandiva.attach())


def main() -> None:
    folder, gpus = Path(sys.argv[1]).absolute(), int(sys.argv[2])
    asked = json.load(sys.stdin)
    ray.init(
        num_cpus=gpus,
        num_gpus=gpus,
        include_dashboard=False,
        object_store_memory=200 << 20,
        _temp_dir=str(folder / "r"),
    )
    print("ready", flush=True)
    trials = [(curve, str(folder / f"{number}.log")) for number, curve in enumerate(asked["curves"])]
    asha = ASHAScheduler(
        time_attr="step", max_t=STEPS, grace_period=asked["rungs"][0], reduction_factor=asked["factor"]
    )
    tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1, "gpu": 1}),
        param_space={"trial": tune.grid_search(trials)},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", scheduler=asha, max_concurrent_trials=gpus, reuse_actors=True
        ),
        run_config=tune.RunConfig(storage_path=str(folder / "results"), verbose=0),
    ).fit()


if __name__ == "__main__":
    main()
