# SPDX-License-Identifier: GPL-2.0-or-later
"""A training on a mock GPU whose accuracy follows a learning curve: a trial of `benchmarks.learning_curves`.

Writes a line `TIME STEP ACCURACY PID` when it begins and every TELL_STEPS mini-batches, and the same to its
session. It goes on from its last checkpoint where it has a folder for these.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

STEPS, MINIBATCH_MS, TELL_STEPS = 640, 25.0, 10
MEMORY_MB = 1024
LEAST, NOISE = 0.05, 0.005
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Tell = Callable[[int, float], None]


@dataclass(frozen=True)
class Curve:
    """A power law from the first that is told to `final`, with noise; the greater the slope, the sooner it
    levels off."""

    final: float
    slope: float
    seed: int

    def accuracy(self, step: int) -> float:
        noise = random.Random(f"{self.seed}:{step}").gauss(0.0, NOISE) if step < STEPS else 0.0
        first, last = TELL_STEPS**-self.slope, STEPS**-self.slope
        risen = (first - max(step, TELL_STEPS) ** -self.slope) / (first - last)
        return LEAST + (self.final - LEAST) * float(risen) + noise

    def words(self) -> list[str]:
        """As the program takes it."""
        return ["--curve", *map(str, astuple(self))]


def train(curve: Curve, tell: Tell, session: Any, checkpoints: Path | None = None, until: int = STEPS) -> int:
    """From the last checkpoint to this step. Returns the step at which it is then.

    `tell`: called with step and accuracy, at the begin too. `session`: of gandiva.attach()."""
    sys.path.insert(0, str(EXAMPLES))
    import train_mock  # type: ignore[import-not-found]

    options = train_mock.parse(
        [f"--minibatch-ms={MINIBATCH_MS}", f"--memory-mb={MEMORY_MB}", f"--seed={curve.seed}"]
    )
    train_mock.mockcuda.init()
    model = train_mock.Model(options, 0, train_mock.device_chooser(session))
    saved = train_mock.Checkpoints(checkpoints, 0)
    done, reduced = max(saved.steps(), default=0), 0
    if done:
        reduced, states = saved.load(done)
        model.load(states)
    model.restore()
    session.register(model)
    tell(done, curve.accuracy(done))
    while done < until:
        reduced = model.train_step(train_mock.mix(curve.seed, done, reduced))
        done += 1
        if done % TELL_STEPS == 0:
            tell(done, curve.accuracy(done))
        session.step()
    saved.save(done, reduced, model.snapshot())
    model.offload()
    return done


def log_to(path: Path) -> Tell:
    """What writes the lines of a trial."""
    file = path.open("a", buffering=1, encoding="utf-8")

    def tell(step: int, accuracy: float) -> None:
        file.write(f"{time.time():.3f} {step} {accuracy:.4f} {os.getpid()}\n")

    return tell


def main() -> None:
    import gandiva

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curve", nargs=3, required=True, metavar=("FINAL", "SLOPE", "SEED"))
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, help="folder of its own")
    parser.add_argument("--until", type=int, default=STEPS, help="mini-batches (%(default)s)")
    options = parser.parse_args()
    final, slope, seed = options.curve
    log = log_to(options.log)
    with gandiva.attach() as session:

        def tell(step: int, accuracy: float) -> None:
            log(step, accuracy)
            if step:
                session.report(step=step, accuracy=accuracy)

        curve = Curve(float(final), float(slope), int(seed))
        train(curve, tell, session, options.checkpoints, options.until)


if __name__ == "__main__":
    main()
