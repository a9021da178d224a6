# SPDX-License-Identifier: MIT
"""The memory of NCCL's communicators, off the GPU and back, with PyTorch 2.12 and NCCL 2.29.7 or later."""

import sys
import time
from typing import Any, List

AGREE_SECONDS = 20.0
POLL_SECONDS = 0.01

GO = "go"
STAY = "stay"


class Communicators:
    """All NCCL communicators of this process, to be registered with the session of every rank.

    Suspending a communicator waits for all of its ranks, without a deadline. So the ranks agree first, over
    the store of the process group: all of them come within AGREE_SECONDS and name the same number of
    communicators, or these stay on the GPU until the end of the process. They stay as well where PyTorch or
    NCCL cannot suspend them.
    """

    saves_offloaded = True

    def __init__(self) -> None:
        self._suspended: List[Any] = []
        self._round = 0
        self._staying = False

    def state_bytes(self) -> int:
        """What suspend() copies to host memory."""
        return sum(int(backend.memory_stats().get("suspend", 0)) for backend in self._backends())

    def offload(self) -> None:
        backends = [] if self._staying else self._backends()
        if not backends:
            return
        if not self._agree(sys.modules["torch"].distributed, len(backends)):
            self._staying = True
            return
        try:
            for backend in backends:
                backend.suspend()
                self._suspended.append(backend)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        for backend in self._suspended:
            backend.resume()
        if self._suspended:
            self._round += 1
        self._suspended = []

    def _backends(self) -> List[Any]:
        """NCCL's backends that can be suspended, in the order in which all ranks made their groups."""
        torch = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if torch is None or distributed is None or not distributed.is_available():
            return []
        if not distributed.is_initialized() or not torch.cuda.is_initialized():
            return []
        device = torch.device("cuda", torch.cuda.current_device())
        found = []
        for group in list(distributed.distributed_c10d._world.pg_map):
            try:
                backend = group._get_backend(device)
                if "nccl" in backend.name() and hasattr(backend, "suspend") and hasattr(backend, "resume"):
                    # It fails where suspend() would: no communicator yet, or an NCCL that is too old.
                    backend.memory_stats()
                    found.append(backend)
            except (RuntimeError, AttributeError):
                continue
        return found

    def _agree(self, distributed: Any, count: int) -> bool:
        """Whether all ranks are about to suspend. All get the same answer, whenever they come."""
        store = distributed.distributed_c10d._get_default_store()
        arrived, decision = (f"gandiva/{self._round}/{count}/{name}" for name in ("arrived", "decision"))
        if int(store.add(arrived, 1)) == distributed.get_world_size():
            store.compare_set(decision, "", GO)
        until = time.monotonic() + AGREE_SECONDS
        while not store.check([decision]):
            if time.monotonic() >= until:
                store.compare_set(decision, "", STAY)
                break
            time.sleep(POLL_SECONDS)
        return bool(store.get(decision) == GO.encode())
