# SPDX-License-Identifier: MIT
"""DistributedDataParallel, or fully_shard(), on as many GPUs as the job has at each start.

    sbatch train_ddp.sbatch
    sbatch train_ddp.sbatch --fsdp
    python -m gandiva.launch train_ddp.py --steps 500

A scheduler may suspend this training, move it to another server, and start it again with more ranks or with
fewer. It goes on from the step that it had reached, and no sample is left out or comes twice. With
--global-batch all ranks together train on so many samples in each step: the losses are those of any other
number of ranks, but for rounding. With --per-rank each rank does, and the learning rate follows. Trains on
GPUs where there are any, else on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn

import gandiva
from checkpointing.store import Store
from checkpointing.store.state import State, run_word
from gandiva.batches import Batches

FEATURES = 32
RATE = 0.02
"""Learning rate for RATE_BATCH samples in a step."""
RATE_BATCH = 32


def dataset(samples: int) -> torch.utils.data.TensorDataset:
    """Points, and how far they are from the origin."""
    points = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(points, points.norm(dim=1, keepdim=True))


def mean_over_ranks(loss: torch.Tensor) -> float:
    """The mean of all ranks' losses, which are each the mean of as many samples."""
    total = loss.detach().clone()
    distributed.all_reduce(total)
    return float(total.item() / distributed.get_world_size())


def replicated(network: nn.Sequential) -> nn.Module:
    """Each rank has the whole network."""
    return nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)


def fully_sharded(network: nn.Sequential) -> nn.Module:
    """Each rank keeps its part of the network, and of the optimizer's state."""
    from torch.distributed.fsdp import fully_shard  # PyTorch 2.6 and later

    for layer in network:
        fully_shard(layer)
    return fully_shard(network)


def train(options: argparse.Namespace) -> None:
    cuda = torch.cuda.is_available()
    # A suspended job is silent for as long as others have its GPUs: no time-out may end it meanwhile.
    distributed.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(days=7))
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(options.seed)

    data = dataset(options.samples)
    batches = Batches(len(data), global_batch=options.global_batch, per_rank=options.per_rank)
    # A generator of its own: the loader's iterators would change the state of the common one.
    loader = torch.utils.data.DataLoader(data, batch_sampler=batches, generator=torch.Generator())
    network = nn.Sequential(nn.Linear(FEATURES, options.width), nn.Tanh(), nn.Linear(options.width, 1))
    network.to(device)
    model = fully_sharded(network) if options.fsdp else replicated(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    loss_of = nn.MSELoss()

    session = gandiva.attach()
    session.register(network, optimizer)
    store = Store(options.store, run=run_word())
    same_in_all = {"network": network, "optimizer": optimizer, "batches": batches}
    state = State(replicated=same_in_all, **same_in_all)
    step = session.register_store(store, state)
    for group in optimizer.param_groups:
        group["lr"] = RATE * batches.global_batch / RATE_BATCH
    if rank == 0:
        print(f"goes on from step {step} with {ranks} ranks", flush=True)

    log = options.log.open("a") if options.log is not None and rank == 0 else None
    for points, distances in batches.counted(loader):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(points.to(device)), distances.to(device))
        loss.backward()
        optimizer.step()
        step += 1
        mean = mean_over_ranks(loss)
        if log is not None:
            line = {"step": step, "ranks": ranks, "samples": batches.done, "loss": mean}
            print(json.dumps({**line, "node": os.uname().nodename}), file=log, flush=True)
        if step >= min(options.steps, options.until or options.steps):
            break
        session.step(samples=batches.per_rank)
    session.finish()
    if step < options.steps:
        state.save(store, step).result()
    if rank == 0:
        print(f"ended at step {step}", flush=True)
    distributed.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--global-batch", type=int, help="samples of a step in all ranks together (32)")
    size.add_argument("--per-rank", type=int, help="samples of a step in each rank")
    parser.add_argument("--fsdp", action="store_true", help="spread the model over the ranks: fully_shard()")
    parser.add_argument("--steps", type=int, default=500, help="(%(default)s)")
    parser.add_argument("--until", type=int, metavar="STEP", help="save and end there; go on another time")
    parser.add_argument("--samples", type=int, default=4000, help="size of the data set (%(default)s)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", type=Path, required=True, help="folder of a checkpoint store")
    parser.add_argument("--log", type=Path, help="file that gets a line of JSON for each step")
    options = parser.parse_args()
    if options.per_rank is None and options.global_batch is None:
        options.global_batch = RATE_BATCH
    train(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
