# SPDX-License-Identifier: MIT
"""PyTorch state off the GPU and back, in place.

The unit is the *storage*, not the tensor: its bytes are copied to host memory, the storage is resized to
zero, and later resized back and refilled. Tensors, views, tied parameters, gradients, optimizer state and
autograd's own bookkeeping (DistributedDataParallel hangs its hooks there) keep their identity, because
none of them is replaced; only the device address changes. Exchanging `tensor.data` for a host tensor would
reset autograd's gradient accumulators, and DDP would then silently stop averaging gradients.

torch is never imported here: the session passes the module that the training script has loaded.
"""

import contextlib
import functools
import gc
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Tuple

from ._heap import living
from ._registry import StateSize

ARENA_CHUNK_BYTES = 256 * 2**20
"""Host memory is taken in chunks of this size: PyTorch rounds pinned allocations up to a power of two."""

RESTORE_TRIES = 3
RESTORE_WAIT_SECONDS = 0.5
MAX_DEPTH = 4
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

    def left_bytes(self) -> int:
        return sum(
            int(self.torch.cuda.memory_reserved(index)) for index in range(self.torch.cuda.device_count())
        )

    def allocated_bytes(self) -> int:
        return sum(
            int(self.torch.cuda.memory_allocated(index)) for index in range(self.torch.cuda.device_count())
        )

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


class Saved(NamedTuple):
    """One storage on the host: where its bytes lie in the arena."""

    storage: Any
    view: Any
    nbytes: int
    position: int


class Arena:
    """Host memory that is allocated once and reused at every offload; pinned where there is a GPU."""

    def __init__(self, torch: Any, pinned: bool) -> None:
        self._torch = torch
        self._pinned = pinned
        self._chunks: List[Any] = []

    def missing_bytes(self, nbytes: int) -> int:
        """What reserve() takes beyond what is there: whole chunks."""
        missing = -(-nbytes // ARENA_CHUNK_BYTES) - len(self._chunks)
        return max(0, missing) * ARENA_CHUNK_BYTES

    def reserve(self, nbytes: int) -> None:
        """Have at least this much; pageable memory where no more can be pinned."""
        while self.missing_bytes(nbytes):
            chunk = None
            if self._pinned:
                try:
                    chunk = self._chunk(pin_memory=True)
                except RuntimeError:
                    self._pinned = False
            if chunk is None:
                # Written to once: memory that was never touched is not there yet.
                chunk = self._chunk().fill_(0)
            self._chunks.append(chunk)

    def _chunk(self, **options: Any) -> Any:
        # The device by name: the script may have set another default device.
        return self._torch.empty(ARENA_CHUNK_BYTES, dtype=self._torch.uint8, device="cpu", **options)

    def pieces(self, position: int, nbytes: int) -> Iterator[Tuple[Any, int, int]]:
        """(host slice, offset in the storage, length) of the bytes at a position; chunks split them."""
        done = 0
        while done < nbytes:
            index, start = divmod(position + done, ARENA_CHUNK_BYTES)
            length = min(nbytes - done, ARENA_CHUNK_BYTES - start)
            yield self._chunks[index][start : start + length], done, length
            done += length


def isinstance_of(candidate: Any, kind: type) -> bool:
    """isinstance by the real type: lazy proxies run code, or import half the world, when asked nicely."""
    return issubclass(type(candidate), kind)


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


def is_torch_state(torch: Any, target: Any) -> bool:
    """Whether PyTorch tensors can be found in this object: module, optimizer, tensor, scaler, containers."""
    if isinstance(target, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)):
        return True
    if isinstance(target, (list, tuple, set, frozenset, dict)):
        return any(True for _ in _walk(torch, target, MAX_DEPTH))
    # A gradient scaler, for one: it has state, no to(), and keeps its tensors in plain attributes.
    return (
        callable(getattr(target, "state_dict", None))
        and callable(getattr(target, "load_state_dict", None))
        and (not callable(getattr(target, "to", None)) or any(True for _ in _walk(torch, target, MAX_DEPTH)))
    )


def _walk(torch: Any, target: Any, depth: int) -> Iterator[Any]:
    """Tensors in an object, its containers and, at the top, its attributes."""
    if isinstance_of(target, torch.Tensor):
        yield target
    elif isinstance(target, torch.nn.Module):
        yield from target.parameters()
        yield from target.buffers()
    elif isinstance(target, torch.optim.Optimizer):
        yield from _walk(torch, target.param_groups, depth)
        yield from _walk(torch, target.state, depth)
    elif depth > 0:
        if isinstance(target, dict):
            for value in list(target.values()):
                yield from _walk(torch, value, depth - 1)
        elif isinstance(target, (list, tuple, set, frozenset)):
            for value in list(target):
                yield from _walk(torch, value, depth - 1)
        elif depth == MAX_DEPTH and hasattr(target, "__dict__"):
            yield from _walk(torch, dict(vars(target)), depth - 1)


def _inner(tensor: Any) -> Iterator[Any]:
    """What a wrapper around other tensors (DTensor, say) is made of; a plain tensor itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if callable(flatten):
        for name in flatten()[0]:
            yield from _inner(getattr(tensor, name))
    else:
        yield tensor


def _sparse_parts(tensor: Any) -> Iterator[Any]:
    """The indices and values that a sparse tensor consists of."""
    for name in (
        "_indices",
        "_values",
        "crow_indices",
        "ccol_indices",
        "col_indices",
        "row_indices",
        "values",
    ):
        # Each layout has some of them, and raises for the others.
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
            yield getattr(tensor, name)()


def storage_of(tensor: Any) -> Any:
    """The untyped storage under a tensor, under the names it has had since PyTorch 1.10."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    storage = tensor.storage()
    for name in ("untyped", "_untyped"):
        if hasattr(storage, name):
            return getattr(storage, name)()
    return storage._storage


class TorchState:
    """The registered PyTorch objects of one session."""

    def __init__(self, torch: Any, accelerator: Any = None) -> None:
        self._torch = torch
        self._accelerator = Accelerator(torch) if accelerator is None else accelerator
        self._targets: List[Any] = []
        self._arena = Arena(torch, pinned=self._accelerator.pinned)
        self._saved: List[Saved] = []
        self._stated_bytes = 0
        self._elsewhere_bytes = 0  # allocated, but of no tensor that Python can find
        self._left_bytes = 0
        self._collect_at = 0.0
        self._graphs: Any = None

    def add(self, target: Any) -> None:
        self._targets.append(target)

    def uses_accelerator(self) -> bool:
        return bool(self._accelerator.initialized())

    def _registered(self) -> Iterator[Any]:
        for target in self._targets:
            for tensor in _walk(self._torch, target, MAX_DEPTH):
                yield from _inner(tensor)
                # Not None only where the loop steps before zero_grad(), or accumulates: kept bit for bit.
                gradient = tensor.grad if tensor.is_leaf else None
                if gradient is not None:
                    yield from _inner(gradient)

    def size(self) -> StateSize:
        """Bytes of the registered state, each storage once, on whatever device it is now."""
        storages: Dict[int, int] = {}
        largest = 0
        for tensor in self._registered():
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
        return self._release()

    def _release(self) -> int:
        """Free what PyTorch has kept of GPU memory. Returns the bytes that stay."""
        self._accelerator.release_caches()
        left_bytes = int(self._accelerator.left_bytes())
        if left_bytes > self._left_bytes or (left_bytes and time.monotonic() >= self._collect_at):
            # Garbage may have it where no tensor does.
            gc.collect()
            self._collect_at = time.monotonic() + COLLECT_SECONDS
            self._accelerator.release_caches()
            left_bytes = int(self._accelerator.left_bytes())
        self._left_bytes = left_bytes
        return left_bytes

    @property
    def reads_offloaded(self) -> bool:
        """Whether this PyTorch lets `reading()` redirect what is read."""
        return _dispatch_mode(self._torch) is not None

    def reading(self) -> Any:
        """Within the block operations on offloaded tensors get copies of the host's bytes: `state_dict()`,
        `item()` and `to("cpu")` give what they gave before, and the GPU is not touched. What is written to
        such a copy is lost."""
        mode = _dispatch_mode(self._torch)
        if not self._saved or mode is None:
            return contextlib.nullcontext()
        by_storage = {saved.storage._cdata: saved for saved in self._saved}
        return _reading(self._torch, mode, functools.partial(self._copy_of, by_storage))

    def _copy_of(self, by_storage: Mapping[int, Saved], value: Any) -> Any:
        """A tensor on the host with the content of this one where it is offloaded; else the value."""
        if not isinstance_of(value, self._torch.Tensor):
            return value
        try:
            saved = by_storage.get(storage_of(value)._cdata)
        except (RuntimeError, NotImplementedError):
            # No plain storage: it was not offloaded, unless it is made of tensors that were.
            if not any(storage_of(part)._cdata in by_storage for part in _sparse_parts(value)):
                return value
            saved = None
        else:
            if saved is None:
                return value
        if saved is None or value.is_quantized or value.is_nested:
            kind = "nested" if value.is_nested else "quantized" if value.is_quantized else value.layout
            raise TypeError(f"{kind} tensors of {value.dtype} cannot be read while they are off the GPU")
        size, count = value.element_size(), 0
        if value.numel():
            count = 1 + sum((value.shape[at] - 1) * value.stride(at) for at in range(value.dim()))
        raw = self._torch.empty(count * size, dtype=self._torch.uint8, device="cpu")
        begin = saved.position + value.storage_offset() * size
        for host, offset, length in self._arena.pieces(begin, count * size):
            raw[offset : offset + length].copy_(host)
        copy = raw.view(value.dtype).as_strided(value.shape, value.stride())
        # These are no bytes, but notes in the tensor.
        copy = copy.conj() if value.is_conj() else copy
        return self._torch._neg_view(copy) if value.is_neg() else copy

    def _plan(self) -> List[Saved]:
        tensors = [*self._registered(), *living(self._torch.Tensor)]
        plan: List[Saved] = []
        seen: Dict[int, Any] = {}
        position = 0
        for tensor in tensors:
            try:
                if not self._accelerator.owns(tensor):
                    continue
                storage = storage_of(tensor)
                nbytes = int(storage.nbytes())
                if storage._cdata in seen or nbytes == 0 or not _resizable(storage):
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


def _dispatch_mode(torch: Any) -> Any:
    """The class TorchDispatchMode; None in a PyTorch without it."""
    dispatch = getattr(getattr(torch, "utils", None), "_python_dispatch", None)
    return getattr(dispatch, "TorchDispatchMode", None)


def _reading(torch: Any, mode: Any, copy_of: Callable[[Any], Any]) -> Any:
    """A mode in which operations get `copy_of` their tensors. `detach()`, which `state_dict()` calls for all
    of them, gets none: so there is one copy at a time."""

    class Reading(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function is not torch.ops.aten.detach.default:
                args, kwargs = torch.utils._pytree.tree_map(copy_of, (args, kwargs))
            return function(*args, **kwargs)

    return Reading()


def _total_bytes(plan: Iterable[Saved]) -> int:
    return sum(saved.nbytes for saved in plan)


def _resizable(storage: Any) -> bool:
    # Shared through CUDA IPC or wrapped around foreign memory: not ours to free.
    resizable = getattr(storage, "resizable", None)
    return bool(resizable()) if callable(resizable) else True


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
