# SPDX-License-Identifier: MIT
"""A list of learning rates, each a training, on the GPUs of this machine or allocation.

    pip install 'gandiva-slurm[run]'
    python pool_list.py --study rates --rates 0.0003,0.01,1,300

All trainings take turns on the GPUs. Run again it goes on with those that are not over, and has the results
of the others.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from gandiva import Pool

TRAINING = Path(__file__).resolve().with_name("search_trial.py")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", default="rates", help="folder of the study (%(default)s)")
    parser.add_argument("--rates", default="0.0003,0.01,1,300", help="(%(default)s)")
    parser.add_argument("--trial", default="", metavar="OPTIONS", help="more options of each training")
    options = parser.parse_args(arguments)
    training = (sys.executable, str(TRAINING), *shlex.split(options.trial))
    with Pool(options.study) as pool:
        for rate in options.rates.split(","):
            pool.submit(*training, "--rate", rate, name=f"rate={rate}")
        for trial in pool.as_completed():
            print(f"{trial.name}: {trial.state}, accuracy {trial.last('accuracy')}", flush=True)
        trained = [trial for trial in pool.trials if trial.state == "COMPLETED"]
        best = max(trained, key=lambda trial: trial.last("accuracy") or 0.0, default=None)
    print(f"best: {best.name}" if best else "none was trained")
    return 0 if len(trained) == len(pool.trials) else 1


if __name__ == "__main__":
    sys.exit(main())
