# SPDX-License-Identifier: MIT
"""A small PyTorch training that a scheduler can suspend between two mini-batches.

    python train_torch.py --steps 500
    sbatch train_torch.sbatch

What it takes to be suspended are three lines, marked (1) to (3). Without Gandiva they do nothing. With
--store, it takes (4) to keep its state in a checkpoint store: then it can be moved to another server, too.
Trains on the GPU where there is one, else on the CPU, with several processes (torchrun or srun) by
DistributedDataParallel. The digest printed at the end is that of all parameters: suspended or not, it is
the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

try:
    from gandiva import attach
except ImportError:  # outside the cluster
    attach = None  # type: ignore[assignment]


def place() -> tuple[int, int]:
    """(rank, world size), from torchrun or from an srun step."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ.get("SLURM_STEP_ID", "").isdigit() and "SLURM_PROCID" in os.environ:
        return int(os.environ["SLURM_PROCID"]), int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    return 0, 1


class Batches:
    """Makes the batches, and knows how far it is: a part of what is saved, as a data loader's position."""

    def __init__(self, seed: int, size: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._size = size

    def next(self) -> torch.Tensor:
        return torch.randn(self._size, 64, generator=self._generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


def digest(model: nn.Module) -> str:
    """SHA-256 over the bytes of all parameters and buffers."""
    result = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        result.update(name.encode())
        result.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return result.hexdigest()


def train(options: argparse.Namespace) -> int:
    rank, world_size = place()
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if world_size > 1:
        # A suspended job is silent for as long as others have its GPUs: no time-out may end it meanwhile.
        torch.distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=None if "MASTER_ADDR" in os.environ else f"file://{options.meeting}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(days=7),
        )

    network = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 1)).to(device)
    model: nn.Module = network if world_size == 1 else nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.MSELoss()
    batches = Batches(options.seed * 1_000_003 + rank, options.batch)

    session = attach() if attach is not None else None  # (1)
    if session is not None:
        session.register(network, optimizer)  # (2)

    first = 0
    if options.store is not None:
        from checkpointing.store import Store
        from checkpointing.store.state import State, run_word

        store = Store(options.store, rank=rank, world_size=world_size, run=run_word())
        shared = ["network", "optimizer"]  # the same in all ranks
        state = State(replicated=shared, network=network, optimizer=optimizer, batches=batches)
        if session is not None:
            first = session.register_store(store, state)  # (4)
        print(f"rank {rank}: goes on from step {first}", flush=True)

    loss = torch.zeros(())
    for step in range(first, options.steps):
        inputs = batches.next().to(device)
        targets = inputs.square().mean(dim=1, keepdim=True)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % max(1, options.steps // 10) == 0:
            print(f"step {step + 1}/{options.steps}, loss {loss.item():.6f}", flush=True)
        if session is not None:
            session.step(samples=options.batch)  # (3)

    result = {"digest": digest(network), "loss": loss.item(), "steps": options.steps, "rank": rank}
    if options.state_out is not None:
        Path(str(options.state_out).replace("%r", str(rank))).write_text(json.dumps(result) + "\n")
    print(f"rank {rank}: done, digest {result['digest']}", flush=True)
    if session is not None:
        session.finish()
    if world_size > 1:
        torch.distributed.destroy_process_group()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    parser.add_argument("--meeting", type=Path, help="new file that all ranks see, without MASTER_ADDR")
    parser.add_argument("--store", type=Path, help="folder of a checkpoint store")
    parser.add_argument("--state-out", type=Path, help="JSON with the final digest; %%r is the rank")
    return train(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
