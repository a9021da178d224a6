# SPDX-License-Identifier: MIT
"""What is asked of CUDA, by way of PyTorch: its memory, its limit, and what must not be moved."""

import contextlib
import functools
import gc
import time
import weakref
from typing import Any, Dict, Iterable

from ._tensors import isinstance_of

COLLECT_SECONDS = 600.0
"""Where anything stays on the GPU, garbage is collected so long after the last time, and at once where more
stays than at the last suspend. It goes over all objects: 0.2 s in a process with Transformers."""

DEFAULT_POOL = (0, 0)
"""Id of the caching allocator's own pool. CUDA graphs and torch.cuda.MemPool have others."""

_limits: Dict[int, int] = {}
"""By GPU, how many bytes PyTorch was told last to take at most; 0: all there are."""


class Accelerator:
    """What is asked of CUDA; tests put a stand-in here that treats CPU tensors as the GPU's."""

    pinned = True

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._left_bytes = 0
        self._collect_at = 0.0

    def initialized(self) -> bool:
        return bool(self.torch.cuda.is_initialized())

    def owns(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda)

    def synchronize(self) -> None:
        for index in range(self.torch.cuda.device_count()):
            # Only devices this process has used: synchronizing another would create a context there.
            if self.torch.cuda.memory_reserved(index):
                self.torch.cuda.synchronize(index)

    def release_caches(self) -> None:
        clear = getattr(self.torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        self.torch.cuda.empty_cache()

    def release(self) -> int:
        """Free what PyTorch has kept of GPU memory. Returns the bytes that stay."""
        self.release_caches()
        left_bytes = self.left_bytes()
        if left_bytes > self._left_bytes or (left_bytes and time.monotonic() >= self._collect_at):
            # Garbage may have it where no tensor does.
            gc.collect()
            self._collect_at = time.monotonic() + COLLECT_SECONDS
            self.release_caches()
            left_bytes = self.left_bytes()
        self._left_bytes = left_bytes
        return left_bytes

    def left_bytes(self) -> int:
        return int(sum(map(self.torch.cuda.memory_reserved, range(self.torch.cuda.device_count()))))

    def allocated_bytes(self) -> int:
        return int(sum(map(self.torch.cuda.memory_allocated, range(self.torch.cuda.device_count()))))

    def check_supported(self, objects: Iterable[Any]) -> None:
        """Raise RuntimeError where moving storages would corrupt results silently.

        A CUDA graph holds GPU addresses, and these change. It is among the objects where it is from before
        watch_graphs(); noted at its capture later; where only C++ holds it, it is found by its memory pool.
        """
        graph = getattr(self.torch.cuda, "CUDAGraph", None)
        if graph is not None and (
            any(isinstance_of(candidate, graph) for candidate in objects) or _captured_graphs(graph)
        ):
            raise RuntimeError("CUDA graph; use --gandiva-suspend=transparent")
        if self._private_pools():
            # Pools of graphs that are gone stay until the caches are emptied.
            self.torch.cuda.empty_cache()
            if self._private_pools():
                raise RuntimeError("memory pool; use --gandiva-suspend=transparent")

    def _private_pools(self) -> bool:
        try:
            segments = self.torch.cuda.memory_snapshot()
        except RuntimeError:
            return False  # the allocator cudaMallocAsync has no pools
        return any(
            tuple(segment.get("segment_pool_id", DEFAULT_POOL)) != DEFAULT_POOL for segment in segments
        )


def watch_graphs(torch: Any) -> None:
    """Have CUDA graphs noted as they are captured. A second call changes nothing."""
    graph: Any = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
    begin = getattr(graph, "capture_begin", None)
    if begin is None or _captured_graphs(graph) is not None:
        return
    captured: Any = weakref.WeakSet()

    @functools.wraps(begin)
    def capture_begin(self: Any, *arguments: Any, **options: Any) -> Any:
        captured.add(self)
        return begin(self, *arguments, **options)

    capture_begin.gandiva_captured = captured  # type: ignore[attr-defined]
    graph.capture_begin = capture_begin


def limit_memory(torch: Any, limit_bytes: int) -> None:
    """Have PyTorch take at most this of each GPU that the process uses; 0: all of it. A second call changes
    nothing."""
    # No AttributeError from a torch that is just being imported, or is older than 1.8; no RuntimeError from
    # an allocator of the script's own.
    with contextlib.suppress(AttributeError, RuntimeError):
        cuda = torch.cuda
        if not (limit_bytes or _limits) or not cuda.is_initialized():
            return
        for index in range(cuda.device_count()):
            # Only devices this process has used: to limit another would create a context there.
            if _limits.get(index, 0) != limit_bytes and cuda.memory_reserved(index):
                total = cuda.get_device_properties(index).total_memory
                with cuda.device(index):  # PyTorch leaves the GPU it limits the current one
                    cuda.set_per_process_memory_fraction(min(1.0, (limit_bytes or total) / total), index)
                _limits[index] = limit_bytes


def _captured_graphs(graph: Any) -> Any:
    """The living graphs that were captured since watch_graphs(); None before it."""
    return getattr(getattr(graph, "capture_begin", None), "gandiva_captured", None)
