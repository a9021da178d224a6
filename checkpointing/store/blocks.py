# SPDX-License-Identifier: MIT
"""Tensors that are spread over ranks, as fully_shard() makes them (DTensor), in blocks.

Each rank writes its block, with the shape of the whole tensor and the block's place in it. Meshes and
placements are not written: the live tensor says which elements a rank is to have, and these are looked for in
the blocks. So ranks of another number, or of another mesh, find theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Block:
    """One rank's part of a tensor. `shape`: of the whole. `offset`: the place of its first element there."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    tensor: Any


def is_spread(value: Any) -> bool:
    """Whether it says which part of a tensor this rank has, as DTensor does for torch's own checkpoints."""
    return hasattr(value, "__create_chunk_list__")


def block_of(value: Any) -> Block:
    """This rank's block; a plain tensor is one. Raises ValueError for what is none, as a sum not yet made."""
    if not is_spread(value):
        return Block(tuple(value.shape), (0,) * value.dim(), value)
    (chunk,) = value.__create_chunk_list__()
    return checked(Block(tuple(value.shape), tuple(chunk.offsets), value.to_local()))


def checked(block: Block) -> Block:
    """Raises ValueError where the block is not within the whole."""
    shape, sizes, offset = block.shape, tuple(block.tensor.shape), block.offset
    if not len(shape) == len(sizes) == len(offset) or any(
        not 0 <= offset[n] <= shape[n] - sizes[n] for n in range(len(shape))
    ):
        raise ValueError(f"a block of shape {sizes} at {offset} is none of a tensor of shape {shape}")
    return block


def spread_only(value: Any) -> Any:
    """What of a state has blocks or tensors that are spread, by key or number; None where nothing has."""
    if is_spread(value) or isinstance(value, Block):
        return value
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return None
    found = {key: spread_only(item) for key, item in items}
    return {key: item for key, item in found.items() if item is not None} or None


def live_state(part: Any) -> Any:
    """What `part.load_state_dict()` is going to fill: parameters stand for state that an optimizer lacks."""
    state = part.state_dict()
    groups = getattr(part, "param_groups", None)
    if groups is None:
        return state
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in groups for parameter in group["params"]]
    stand_ins = {numbers[n]: parameter for n, parameter in enumerate(parameters)}
    return {**state, "state": {**stand_ins, **state["state"]}}


def joined(torch: Any, states: list[Any], live: Any, place: str) -> Any:
    """The first state, with this rank's part of each tensor that is spread, from the blocks of all states.

    `live`: where these tensors are in this process. Raises ValueError where the blocks do not fit them.
    """
    first = states[0]
    if isinstance(first, Block):
        return _filled(torch, [state for state in states if isinstance(state, Block)], live, place)
    if isinstance(first, dict):
        return {key: _joined_at(torch, key, states, live, place) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_joined_at(torch, n, states, live, place) for n in range(len(first)))
    if torch.is_tensor(first) and is_spread(live) and first.shape == live.shape:
        raise ValueError(f"{place} is no block of a tensor that is spread over ranks, as it is here")
    return first


def _joined_at(torch: Any, key: Any, states: list[Any], live: Any, place: str) -> Any:
    there = [_at(state, key) for state in states]
    inner = (
        live if torch.is_tensor(live) else _at(live, key)
    )  # A parameter stands for all that an optimizer keeps.
    return joined(torch, [there[0], *(one for one in there[1:] if one is not None)], inner, f"{place}.{key}")


def _at(state: Any, key: Any) -> Any:
    if isinstance(state, Mapping):
        return state.get(key)
    inside = isinstance(state, (list, tuple)) and isinstance(key, int) and key < len(state)
    return state[key] if inside else None


def _filled(torch: Any, blocks: list[Block], live: Any, place: str) -> Any:
    if not torch.is_tensor(live):
        raise ValueError(f"{place} is spread over ranks, and there is no tensor here that it belongs to")
    dtype = blocks[0].tensor.dtype
    for block in blocks:
        if block.shape != tuple(live.shape) or block.tensor.dtype != dtype:
            raise ValueError(
                f"{place} has blocks of {block.tensor.dtype} of a tensor of shape {block.shape}, others of "
                f"{dtype}, and the shape {tuple(live.shape)} here"
            )
    with torch.no_grad():
        filled = torch.empty_like(live, dtype=dtype)
        wanted = block_of(filled)
        local = wanted.tensor
        missing = torch.ones(local.shape, dtype=torch.bool)
        for block in blocks:
            common = _common(wanted, block)
            if all(begin < end for begin, end in common):
                _narrowed(local, wanted.offset, common).copy_(_narrowed(block.tensor, block.offset, common))
                _narrowed(missing, wanted.offset, common).fill_(False)
    if missing.any():
        raise ValueError(f"{place}: {int(missing.sum())} elements of this rank's part are in no block")
    return filled


def _common(one: Block, other: Block) -> list[tuple[int, int]]:
    """Where the elements of both begin and end in each dimension of the whole."""
    return [
        (
            max(one.offset[n], other.offset[n]),
            min(one.offset[n] + one.tensor.shape[n], other.offset[n] + other.tensor.shape[n]),
        )
        for n in range(len(one.shape))
    ]


def _narrowed(tensor: Any, offset: tuple[int, ...], places: list[tuple[int, int]]) -> Any:
    for n, (begin, end) in enumerate(places):
        tensor = tensor.narrow(n, begin - offset[n], end - begin)
    return tensor
