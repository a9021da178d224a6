# SPDX-License-Identifier: MIT
"""Finds the tensors in what a script registers, and the storages under them."""

import contextlib
from typing import Any, Iterable, Iterator, NamedTuple

CONTAINERS = (list, tuple, set, frozenset, dict)
MAX_DEPTH = 4


class StateSize(NamedTuple):
    """How much state is registered, for policies that look at a model's skew (Tiresias, section 3)."""

    total_bytes: int
    largest_tensor_bytes: int


def isinstance_of(candidate: Any, kind: type) -> bool:
    """isinstance by the real type: lazy proxies run code, or import half the world, when asked nicely."""
    return issubclass(type(candidate), kind)


def is_torch_state(torch: Any, target: Any) -> bool:
    """Whether PyTorch tensors can be found in this object: module, optimizer, tensor, scaler, containers."""
    if isinstance(target, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)):
        return True
    if isinstance(target, CONTAINERS):
        return any(True for _ in _walk(torch, target, MAX_DEPTH))
    # A gradient scaler, for one: it has state, no to(), and keeps its tensors in plain attributes.
    return (
        callable(getattr(target, "state_dict", None))
        and callable(getattr(target, "load_state_dict", None))
        and (not callable(getattr(target, "to", None)) or any(True for _ in _walk(torch, target, MAX_DEPTH)))
    )


def registered(torch: Any, targets: Iterable[Any]) -> Iterator[Any]:
    """The tensors in these objects and their gradients, wrappers taken apart."""
    for target in targets:
        for tensor in _walk(torch, target, MAX_DEPTH):
            yield from _inner(tensor)
            # Not None only where the loop steps before zero_grad(), or accumulates: kept bit for bit.
            gradient = tensor.grad if tensor.is_leaf else None
            if gradient is not None:
                yield from _inner(gradient)


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
        if isinstance(target, CONTAINERS):
            for value in list(target.values() if isinstance(target, dict) else target):
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


def sparse_parts(tensor: Any) -> Iterator[Any]:
    """The indices and values that a sparse tensor consists of."""
    compressed = ("crow_indices", "ccol_indices", "col_indices", "row_indices", "values")
    for name in ("_indices", "_values", *compressed):
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
