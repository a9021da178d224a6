# SPDX-License-Identifier: GPL-2.0-or-later
"""What growing gains: mean completion times of a public trace under `fifo`, with and without the move `grow`.

    python -m benchmarks.grow --refs FOLDER

The trace is one that Gavel's generator made (single-GPU jobs of 26 models, Poisson arrivals), with Gavel's
throughputs: they say how fast each model is on 1, 2 and 4 GPUs. Every job may grow to all GPUs of its
server, and pays for it: a requeue, writing and reading a checkpoint of 2 GiB, and 20 s to train again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from controller.simulation.cluster_spec import parse_cluster  # noqa: E402
from controller.simulation.configure import configure  # noqa: E402
from controller.simulation.driver import Simulation  # noqa: E402
from controller.simulation.ground_truth import read_throughputs  # noqa: E402
from controller.simulation.metrics import summary  # noqa: E402
from controller.simulation.traces import read_trace  # noqa: E402

TRACE = "inputs/gavel/generated/cont_single_n400_lam1400_s0.trace"
THROUGHPUTS = "inputs/gavel/shipped/simulation_throughputs.json"
GPUS_PER_NODE = 4
COMMON = ("requests.suspend=requeue", f"simulation.max_gpus={GPUS_PER_NODE}")


def main() -> int:
    """Simulate, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    refs = Path(os.environ.get("GANDIVA_REFS", ROOT.parent / "shared/refs"))
    parser.add_argument("--refs", type=Path, default=refs)
    parser.add_argument("--gpus", type=int, nargs="+", default=[36, 64, 128])
    parser.add_argument("--policies", default="fifo")
    args = parser.parse_args()
    if not (args.refs / TRACE).is_file():
        print(f"not run: there is no {args.refs / TRACE} (--refs or GANDIVA_REFS names the folder)")
        return 0
    jobs, throughputs = read_trace(args.refs / TRACE, "gavel"), read_throughputs(args.refs / THROUGHPUTS)
    print(f"{TRACE}: {len(jobs)} jobs")
    for gpus in args.gpus:
        for policy in args.policies.split(","):
            means: list[float] = []
            for moves in ("[]", '["grow"]'):
                settings = configure(None, policy, (*COMMON, f"policy.moves={moves}"))
                begin = time.perf_counter()
                cluster = parse_cluster(f"v100:{gpus}", GPUS_PER_NODE)
                outcome = Simulation(Path(TRACE), jobs, cluster, settings, throughputs).run()
                found = summary(outcome)
                means.append(float(found["avg_jct_seconds"]))
                print(
                    f"{policy:<13} {gpus:4} GPUs  moves={moves:<8}  mean JCT {means[-1] / 3600:7.2f} h  "
                    f"in use {found['gpu_utilization_fraction']:4.0%}  requeues {found['preemptions']:5}  "
                    f"({time.perf_counter() - begin:.0f} s)",
                    flush=True,
                )
            print(
                f"{policy:<13} {gpus:4} GPUs  {means[0] / means[1]:.2f} times as fast with grow", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
