# SPDX-License-Identifier: MIT
"""One training of a search: gradient descent with one learning rate, which tells its accuracy as it goes.

    python search_trial.py --rate 0.1 --accuracies accuracies.txt

Too large a rate diverges, too small a one learns slowly. Replace `train` by a real training: what those that
use a pool (pool_list.py, optuna_study.py) need is `session.report` now and then, what search_driver.py needs
a line `STEP ACCURACY`.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from contextlib import nullcontext
from pathlib import Path

try:
    from gandiva import attach
except ImportError:  # outside the cluster
    attach = None  # type: ignore[assignment]


def train(options: argparse.Namespace) -> float:
    """Returns the accuracy at the end."""
    rng, error = random.Random(options.seed), 3.0
    with (
        nullcontext() if attach is None else attach() as session,
        options.accuracies.open("a", encoding="utf-8", buffering=1) as accuracies,
    ):
        for step in range(1, options.steps + 1):
            gradient = error + rng.gauss(0.0, 0.3)
            error = max(-10.0, min(10.0, error - options.rate / 100 * gradient))
            if step % options.tell == 0:
                accuracy = math.exp(-abs(error))
                accuracies.write(f"{step} {accuracy:.4f}\n")
                if session is not None:
                    session.report(step=step, accuracy=accuracy)
            time.sleep(options.minibatch_ms / 1000)
            if session is not None:
                session.step()
    return math.exp(-abs(error))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, required=True, help="learning rate")
    parser.add_argument("--steps", type=int, default=33_000, help="mini-batches (%(default)s)")
    parser.add_argument("--tell", type=int, default=250, help="accuracy every so many (%(default)s)")
    parser.add_argument("--minibatch-ms", type=float, default=20.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--accuracies", type=Path, default=Path("/dev/null"), help="file that the accuracies go to, too"
    )
    print(f"accuracy {train(parser.parse_args()):.4f}")


if __name__ == "__main__":
    main()
