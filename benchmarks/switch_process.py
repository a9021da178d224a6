# SPDX-License-Identifier: MIT
"""The mock training in a process that trains with Transformers, too: a job of `benchmarks.switch_gap`.

Arguments: the folder of the examples, and those of train_mock.py there.
"""

from __future__ import annotations

import runpy
import sys

from suspend_process import CpuAsGpu, Training  # type: ignore[import-not-found]

import gandiva
from gandiva import _accelerator


def main() -> None:
    """Register what Transformers has, and run the mock training."""
    _accelerator.Accelerator = CpuAsGpu  # type: ignore[misc]
    training = Training()
    training.train(5)
    gandiva.attach().register(training.model, training.optimizer, name="GPT-2")
    folder = sys.argv.pop(1)
    sys.path.insert(0, folder)
    runpy.run_path(f"{folder}/train_mock.py", run_name="__main__")


if __name__ == "__main__":
    main()
