# SPDX-License-Identifier: MIT
"""A data-parallel training for the mini cluster's mock GPUs that goes on with any number of ranks.

    sbatch --gandiva --gandiva-gpus=1-4 --gres=gpu:1 --wrap "python3 -m gandiva.ranks train_ranks.py"

All ranks have the same state: a sum over the samples so far, which does not depend on how these were shared
out. On SIGTERM all stop at the same step, rank 0 writes the state, and the next start goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import gandiva

if TYPE_CHECKING:
    from examples import mockcuda
    from examples.train_mock import MIB, WORD, Group, Stop, mix
else:
    import mockcuda
    from train_mock import MIB, WORD, Group, Stop, mix

STATE_BYTES = 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4096, help="of the whole training (%(default)s)")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--per-rank", type=int, default=0, help="batch that each rank keeps")
    kept.add_argument("--overall", type=int, default=0, help="batch that all ranks together keep (16)")
    parser.add_argument("--sample-ms", type=float, default=5.0, help="GPU time of a sample (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="checkpoint and meeting point (here)")
    options = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not options.per_rank:
        batch = gandiva.Batch(overall=options.overall or 16)
    else:
        batch = gandiva.Batch(per_rank=options.per_rank)

    stop, meeting = Stop(), options.folder / f"meeting-{os.environ['MASTER_PORT']}"
    meeting.mkdir(parents=True, exist_ok=True)
    group = Group(rank, world_size, meeting)
    checkpoint = options.folder / "state.json"
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"samples": 0, "sum": 0}
    mockcuda.init()
    context = mockcuda.Context(int(os.environ["LOCAL_RANK"]))
    address = context.alloc(STATE_BYTES, 256 * MIB)

    session = gandiva.attach()  # tells the launcher how far the rank is
    while state["samples"] < options.samples:
        sizes = [batch.of_rank(world_size, other) for other in range(world_size)]
        first = state["samples"] + sum(sizes[:rank])
        mine = range(first, min(first + sizes[rank], options.samples))
        context.step(round(len(mine) * options.sample_ms * 1000), 100, address, STATE_BYTES, first)
        context.synchronize()
        state["sum"] = (state["sum"] + group.sum(sum(mix(sample) for sample in mine))) & WORD
        session.step(samples=len(mine))
        state["samples"] = min(state["samples"] + batch.of_all(world_size), options.samples)
        if group.sum(int(stop.asked)):
            break
    if rank == 0:
        draft = checkpoint.with_suffix(".new")
        draft.write_text(json.dumps(state))
        draft.rename(checkpoint)
        print(f"{world_size} ranks: {state['samples']} samples, sum {state['sum']:016x}", flush=True)
    context.destroy()
    group.close()
    return 0 if state["samples"] >= options.samples else 128 + signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main())
