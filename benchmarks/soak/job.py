# SPDX-License-Identifier: GPL-2.0-or-later
"""A training job of the soak: the example's training, which also writes down when it used which GPUs.

Runs in the containers, as a user's job: `python3 job.py FOLDER [options of train_mock.py]`. For each turn one
JSON line is appended to FOLDER/turns/JOB.RANK: from the begin of the first mini-batch to the end of the last.
A job that the driver's checkpoint took off its GPUs hears nothing of it: a mini-batch that took much too long
ends a turn, and begins another; so does one on other GPUs.
When FOLDER/stop exists all ranks end together at one of the next mini-batches, as if it had been the last.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples import train_mock
else:
    sys.path.insert(0, "/opt/gandiva/src/examples")
    import train_mock

AWAY_MINIBATCHES = 3
STOP_EVERY_STEPS = 4
"""How often the ranks agree on whether to stop."""


class Model(train_mock.Model):
    """The example's model with a stop watch."""

    turns: Path
    last: Model

    def __init__(self, options: argparse.Namespace, rank: int, devices: Callable[[int], list[int]]) -> None:
        super().__init__(options, rank, devices)
        self._begin = self._end = 0.0
        self._steps = 0
        self._gpus: list[str] = []
        Model.last = self

    def train_step(self, seed: int) -> int:
        before, begin = self.uuids(), time.time()
        result = super().train_step(seed)
        end = time.time()
        gpus = self.uuids()  # (waits while the driver has the job suspended)
        usual = self._options.minibatch_ms / 1000
        # After a move by the driver the GPUs are others by now: a turn names those that it was on.
        moved = gpus != before or (self._steps and gpus != self._gpus)
        if moved or end - (self._end or begin) > AWAY_MINIBATCHES * usual:
            self.end_turn()
            # When in this mini-batch it came back is not known, only that it is there now.
            begin = end = time.time()
        self._gpus = gpus
        self._begin, self._end = self._begin or begin, end
        self._steps += 1
        return result

    def offload(self) -> int:
        self.end_turn()
        return super().offload()

    def end_turn(self) -> None:
        if self._steps:
            line = {
                "node": os.environ.get("SLURMD_NODENAME", ""),
                "gpus": self._gpus,
                "begin": self._begin,
                "end": self._end,
                "steps": self._steps,
            }
            with self.turns.open("a") as file:
                print(json.dumps(line), file=file)
        self._begin = self._end = 0.0
        self._steps = 0


class Group(train_mock.Group):
    """The example's ranks, which also agree on when to stop."""

    stop: Path
    options: argparse.Namespace

    _calls = 0

    def sum(self, value: int) -> int:
        total = super().sum(value)
        self._calls += 1
        if self._calls % STOP_EVERY_STEPS == 0 and self._reduce(int(self.stop.exists()), max):
            self.options.steps = 0
        return total


def main() -> int:
    """Train; returns the exit status."""
    folder = Path(sys.argv[1])
    options = train_mock.parse(sys.argv[2:])
    Model.turns = folder / "turns" / f"{os.environ['SLURM_JOB_ID']}.{options.rank}"
    Group.stop, Group.options = folder / "stop", options
    train_mock.Model, train_mock.Group = Model, Group  # type: ignore[misc]
    status = train_mock.train(options, None)
    Model.last.end_turn()
    return status


if __name__ == "__main__":
    sys.exit(main())
