# SPDX-License-Identifier: MIT
"""A small training with Transformers, as jobs have it: the process that `benchmarks.suspend` measures.

Its tensors are on the CPU and stand for a GPU's. It prints a JSON line: the number of objects, and for each
suspend the CPU seconds of what the session does until its state is off the GPU.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gandiva import _accelerator
from gandiva._registry import Registry

USED = (Trainer, TrainingArguments)
"""What a script of Transformers imports. They are not called."""


class CpuAsGpu(_accelerator.Accelerator):
    """All tensors are on the "GPU"; what only CUDA can be asked is left out."""

    pinned = False

    def initialized(self) -> bool:
        return True

    def owns(self, tensor: Any) -> bool:
        return bool(tensor.dtype != torch.uint8)  # as the host's copy is

    def synchronize(self) -> None: ...

    def release_caches(self) -> None: ...

    def left_bytes(self) -> int:
        return 0

    def allocated_bytes(self) -> int:
        return 1 << 30  # always the same, as in a training that goes on

    def _private_pools(self) -> bool:
        return False


class Training:
    """A small GPT-2 and its optimizer."""

    def __init__(self) -> None:
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        torch.manual_seed(1)
        tokens = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
        shape = {"n_layer": 4, "n_head": 4, "n_embd": 64, "vocab_size": 500}
        self.model = GPT2LMHeadModel(GPT2Config(**shape, **tokens))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def train(self, steps: int) -> None:
        """Some mini-batches, of random tokens."""
        for _ in range(steps):
            batch = torch.randint(0, 500, (4, 32))
            loss = self.model(input_ids=batch, labels=batch).loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def main() -> None:
    """Train, and leave and come back between the steps. Argument: how often."""
    _accelerator.Accelerator = CpuAsGpu  # type: ignore[misc]
    training, registry = Training(), Registry()
    for target in (training.model, training.optimizer):
        registry.add(target, type(target).__name__)
    seconds = []
    for _ in range(int(sys.argv[1])):
        training.train(5)
        begin = time.process_time()
        registry.host_bytes()
        registry.offload()
        seconds.append(time.process_time() - begin)
        registry.restore()
    gc.unfreeze()  # (older sessions froze objects)
    print(json.dumps({"objects": len(gc.get_objects()), "seconds": seconds}))


if __name__ == "__main__":
    main()
