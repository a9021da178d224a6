# SPDX-License-Identifier: GPL-2.0-or-later
"""One rank of a DistributedDataParallel job, with gloo: trained on the CPU, and present on a mock GPU.

    python -m tests.unit.jobside.ddp_job FOLDER STEPS view|copy

RANK and WORLD_SIZE are in the environment. FOLDER/rank<RANK>.log gets a line per step: the loss, to the bit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

import gandiva
from examples import mockcuda
from gandiva import _accelerator
from tests.unit.jobside.cpu_as_gpu import CpuAsGpu

MIB = 1 << 20


class OnGpu:
    """What NVML sees of this process. The context goes, too, so that nothing stays."""

    def __init__(self) -> None:
        self.context: mockcuda.Context | None = None
        self.restore()

    def restore(self) -> None:
        self.context = mockcuda.Context(0)
        self.context.alloc(64 * MIB)

    def offload(self) -> None:
        assert self.context is not None
        self.context.destroy()
        self.context = None


def main() -> None:
    folder, steps, buckets = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    gpu = CpuAsGpu(torch)
    _accelerator.Accelerator = lambda _: gpu  # type: ignore[assignment, misc]
    mockcuda.init()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks
    )
    torch.manual_seed(3)
    net = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    )
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=buckets == "view")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session = gandiva.attach()
    session.register(OnGpu(), name="mock GPU")
    session.register(model, optimizer)
    with (folder / f"rank{rank}.log").open("w") as log:
        for step in range(steps):
            torch.manual_seed(1000 * rank + step)
            loss = model(torch.randn(16, 32)).pow(2).mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            print(json.dumps({"step": step, "loss": loss.item().hex()}), file=log, flush=True)
            gpu.put(*on_gpu(model, optimizer))
            time.sleep(0.02)
            session.step(samples=16)
    session.finish()
    torch.distributed.destroy_process_group()


def on_gpu(model: Any, optimizer: Any) -> list[Any]:
    state = [
        value for found in optimizer.state.values() for value in found.values() if torch.is_tensor(value)
    ]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*model.parameters(), *model.buffers(), *gradients, *state]


if __name__ == "__main__":
    main()
