# SPDX-License-Identifier: MIT
"""PyTorch state off the GPU and back, in place.

The unit is the *storage*, not the tensor: its bytes are copied to host memory, the storage is resized to
zero, and later resized back and refilled. Tensors, views, tied parameters, gradients, optimizer state and
autograd's own bookkeeping (DistributedDataParallel hangs its hooks there) keep their identity, because
none of them is replaced; only the device address changes. Exchanging `tensor.data` for a host tensor would
reset autograd's gradient accumulators, and DDP would then silently stop averaging gradients.

torch is never imported here: the session passes the module that the training script has loaded.
"""

import gc
import time
import weakref
from typing import Any, Dict, Iterable, List

from . import _accelerator, _host_copy
from ._heap import living
from ._host_copy import Arena, Saved
from ._tensors import StateSize, registered, storage_of

RESTORE_TRIES = 3
RESTORE_WAIT_SECONDS = 0.5


class TorchState:
    """The registered PyTorch objects of one session."""

    def __init__(self, torch: Any, accelerator: Any = None) -> None:
        self._torch = torch
        self._accelerator = accelerator or _accelerator.Accelerator(torch)
        self._targets: List[Any] = []
        self._arena = Arena(torch, pinned=self._accelerator.pinned)
        self._saved: List[Saved] = []
        self._stated_bytes = 0
        self._elsewhere_bytes = 0  # allocated, but of no tensor that Python can find
        self._graphs: Any = None

    def add(self, target: Any) -> None:
        self._targets.append(target)

    def uses_accelerator(self) -> bool:
        return bool(self._accelerator.initialized())

    def size(self) -> StateSize:
        """Bytes of the registered state, each storage once, on whatever device it is now."""
        storages: Dict[int, int] = {}
        largest = 0
        for tensor in registered(self._torch, self._targets):
            try:
                storage = storage_of(tensor)
                storages[storage._cdata] = int(storage.nbytes())
                largest = max(largest, tensor.nelement() * tensor.element_size())
            except (RuntimeError, NotImplementedError, AttributeError):
                continue  # no plain storage (sparse, fake, a subclass of its own): not counted
        for saved in self._saved:
            storages[saved.storage._cdata] = saved.nbytes
        return StateSize(sum(storages.values()), largest)

    def synchronize(self) -> None:
        """Wait for the GPU, unless everything is off it."""
        if not self._saved and self._accelerator.initialized():
            self._accelerator.synchronize()

    def prepare(self) -> None:
        """Wait for the GPU. Raises RuntimeError where the state cannot leave it, before any of it does."""
        self.synchronize()
        if self._accelerator.initialized():
            if self._graphs is None:
                # Later ones are noted as they are captured.
                graph = getattr(self._torch.cuda, "CUDAGraph", None)
                self._graphs = weakref.WeakSet([] if graph is None else living(graph))
            self._accelerator.check_supported(self._graphs)

    def host_bytes(self) -> int:
        """Host memory that the next offload() takes beyond the arena. It refuses where it would take more."""
        self._stated_bytes = 0
        if not self._saved and self._accelerator.initialized():
            # Most often there is room, and no need to look at all objects now and in offload().
            found = self._accelerator.allocated_bytes() - self._elsewhere_bytes
            if self._arena.missing_bytes(found):
                self._stated_bytes = self._arena.missing_bytes(_total_bytes(self._plan()))
            if self._stated_bytes:
                # Garbage may be all that does not fit.
                gc.collect()
                self._stated_bytes = self._arena.missing_bytes(_total_bytes(self._plan()))
        return self._stated_bytes

    def offload(self) -> int:
        """Copy every storage on the GPU to the host, then free them all. Returns the bytes that stay.

        Not only registered state: a batch, an output or a loss still held by the training loop would keep
        its memory on the GPU, so every live tensor is found and moved. Nothing is freed before everything
        is copied, so an error leaves the GPU as it was.
        """
        if self._saved or not self._accelerator.initialized():
            return 0
        with self._torch.no_grad():
            plan = self._plan()
            total = _total_bytes(plan)
            missing = self._arena.missing_bytes(total)
            self._elsewhere_bytes = self._accelerator.allocated_bytes() - total
            if missing > self._stated_bytes:
                # Without the agent's word that there is room, the kernel could end the job.
                raise RuntimeError(
                    f"{missing >> 20} MiB of host memory needed, {self._stated_bytes >> 20} MiB announced"
                )
            self._arena.reserve(total)
            for saved in plan:
                for host, offset, length in self._arena.pieces(saved.position, saved.nbytes):
                    host.copy_(saved.view[offset : offset + length], non_blocking=True)
            self._accelerator.synchronize()
            for saved in plan:
                # From the first one on restore() has something to do, whatever happens to the next.
                self._saved.append(saved)
                saved.storage.resize_(0)
        return int(self._accelerator.release())

    @property
    def reads_offloaded(self) -> bool:
        """Whether this PyTorch lets `reading()` redirect what is read."""
        return _host_copy.dispatch_mode(self._torch) is not None

    def reading(self) -> Any:
        """Within the block offloaded tensors are read from the host copy."""
        return _host_copy.reading(self._torch, self._arena, self._saved)

    def _plan(self) -> List[Saved]:
        tensors = [*registered(self._torch, self._targets), *living(self._torch.Tensor)]
        plan: List[Saved] = []
        seen: Dict[int, Any] = {}
        position = 0
        for tensor in tensors:
            try:
                if not self._accelerator.owns(tensor):
                    continue
                storage = storage_of(tensor)
                nbytes = int(storage.nbytes())
                # Shared through CUDA IPC or wrapped around foreign memory it is not: not ours to free.
                resizable = getattr(storage, "resizable", lambda: True)
                if storage._cdata in seen or nbytes == 0 or not resizable():
                    continue
                if storage.data_ptr() == 0:  # (or raises)
                    continue  # a wrapper states a size and has no memory: the tensors within it are found
                view = self._torch.empty(0, dtype=self._torch.uint8, device=tensor.device).set_(storage)
            except (RuntimeError, NotImplementedError, AttributeError, TypeError):
                continue  # no plain storage: what it has stays, and is counted in what is left
            seen[storage._cdata] = storage
            plan.append(Saved(storage, view, nbytes, position))
            position += nbytes
        return plan

    def restore(self) -> None:
        """Take GPU memory again and copy everything back. Raises the last error after a few tries."""
        with self._torch.no_grad():
            for saved in self._saved:
                _resize_back(self._torch, saved)
                for host, offset, length in self._arena.pieces(saved.position, saved.nbytes):
                    saved.view[offset : offset + length].copy_(host, non_blocking=True)
        if self._saved:
            self._accelerator.synchronize()
            self._saved = []


def _total_bytes(plan: Iterable[Saved]) -> int:
    return sum(saved.nbytes for saved in plan)


def _resize_back(torch: Any, saved: Saved) -> None:
    for left in reversed(range(RESTORE_TRIES)):
        try:
            saved.storage.resize_(saved.nbytes)
            return
        except RuntimeError:
            # Out of memory: the job before may still be freeing the last of it.
            if left == 0:
                raise
            torch.cuda.empty_cache()
            time.sleep(RESTORE_WAIT_SECONDS)
