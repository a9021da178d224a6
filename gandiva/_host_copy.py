# SPDX-License-Identifier: MIT
"""The copy on the host of what is off the GPU: where it lies, and how tensors are read from it."""

import contextlib
import functools
from typing import Any, ContextManager, Iterable, Iterator, List, Mapping, NamedTuple, Tuple

from ._tensors import isinstance_of, sparse_parts, storage_of

CHUNK_BYTES = 256 * 2**20
"""Host memory is taken in chunks of this size: PyTorch rounds pinned allocations up to a power of two."""


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
        missing = -(-nbytes // CHUNK_BYTES) - len(self._chunks)
        return max(0, missing) * CHUNK_BYTES

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
        return self._torch.empty(CHUNK_BYTES, dtype=self._torch.uint8, device="cpu", **options)

    def pieces(self, position: int, nbytes: int) -> Iterator[Tuple[Any, int, int]]:
        """(host slice, offset in the storage, length) of the bytes at a position; chunks split them."""
        done = 0
        while done < nbytes:
            index, start = divmod(position + done, CHUNK_BYTES)
            length = min(nbytes - done, CHUNK_BYTES - start)
            yield self._chunks[index][start : start + length], done, length
            done += length


def dispatch_mode(torch: Any) -> Any:
    """The class TorchDispatchMode, with which `reading()` redirects; None in a PyTorch without it."""
    dispatch = getattr(getattr(torch, "utils", None), "_python_dispatch", None)
    return getattr(dispatch, "TorchDispatchMode", None)


def reading(torch: Any, arena: Arena, offloaded: Iterable[Saved]) -> ContextManager[Any]:
    """Within the block operations on offloaded tensors get copies of the host's bytes: `state_dict()`,
    `item()` and `to("cpu")` give what they gave before, and the GPU is not touched. What is written to
    such a copy is lost."""
    by_storage = {saved.storage._cdata: saved for saved in offloaded}
    mode: Any = dispatch_mode(torch)
    if not by_storage or mode is None:
        return contextlib.nullcontext()
    copy_of = functools.partial(_copy_of, torch, arena, by_storage)

    class Reading(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            # `state_dict()` calls `detach()` for all of them: so there is one copy at a time.
            if function is not torch.ops.aten.detach.default:
                args, kwargs = torch.utils._pytree.tree_map(copy_of, (args, kwargs))
            return function(*args, **kwargs)

    return Reading()


def _copy_of(torch: Any, arena: Arena, by_storage: Mapping[int, Saved], value: Any) -> Any:
    """A tensor on the host with the content of this one where it is offloaded; else the value."""
    if not isinstance_of(value, torch.Tensor):
        return value
    try:
        saved = by_storage.get(storage_of(value)._cdata)
    except (RuntimeError, NotImplementedError):
        # No plain storage: it was not offloaded, unless it is made of tensors that were.
        if not any(storage_of(part)._cdata in by_storage for part in sparse_parts(value)):
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
    raw = torch.empty(count * size, dtype=torch.uint8, device="cpu")
    begin = saved.position + value.storage_offset() * size
    for host, offset, length in arena.pieces(begin, count * size):
        raw[offset : offset + length].copy_(host)
    copy = raw.view(value.dtype).as_strided(value.shape, value.stride())
    # These are no bytes, but notes in the tensor.
    copy = copy.conj() if value.is_conj() else copy
    return torch._neg_view(copy) if value.is_neg() else copy
