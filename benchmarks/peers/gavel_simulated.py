# SPDX-License-Identifier: GPL-2.0-or-later
"""One run of Gavel's own simulator; `benchmarks/fidelity/gavel_random.py` starts this.

    PYTHON gavel_simulated.py CLONE TRACE THROUGHPUTS POLICY CLUSTER SEED

Prints one line of JSON: completion times by job, and when the last job ended. PYTHON is as for
`gavel_shipped.py`. Modules that a simulation does not use (gRPC, matrix completion) are replaced by empty
ones. Nothing of this project is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import runpy
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

UNUSED = ("grpc", "matrix_completion", "runtime", "runtime.rpc")
SIMULATE = "scripts/drivers/simulate_scheduler_with_trace.py"


def main() -> None:
    """Simulate, and print what came of it."""
    clone, trace, throughputs, policy, cluster, seed = sys.argv[1:]
    folder = Path(clone) / "scheduler"
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for name in UNUSED:
        module = types.ModuleType(name)
        module.__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]
        sys.modules[name] = module
    made = importlib.import_module("scheduler").Scheduler
    found: dict[str, object] = {}

    def keep(scheduler: object, *_: object) -> float:
        times = scheduler._job_completion_times  # type: ignore[attr-defined]
        found["jct"] = {str(job): seconds for job, seconds in times.items() if seconds is not None}
        found["end"] = scheduler.get_current_timestamp()  # type: ignore[attr-defined]
        return 0.0

    made.get_average_jct = keep
    logging.disable(logging.CRITICAL)
    sys.argv = [SIMULATE, "-t", trace, "-p", policy, "--throughputs_file", throughputs, "-c", cluster]
    sys.argv += ["--seed", seed]
    with contextlib.redirect_stdout(sys.stderr):
        runpy.run_path(SIMULATE, run_name="__main__")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
