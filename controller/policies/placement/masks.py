# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs of a node as the bits of an integer: bit i is the GPU with ordinal i."""

from collections.abc import Iterator

from controller.model import Node

_ALIGNED_UP_TO = 16
"""Larger "nodes" are pools of GPUs without a topology (counting placement in simulation)."""


def bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest
        mask ^= lowest


def sound_mask(node: Node) -> int:
    """GPUs that jobs may use which Slurm has bound to them: also on a node where it would start nothing (one
    that is being drained), but not where the agent does not answer, which shows no GPU as healthy."""
    mask = 0
    for gpu in node.gpus:
        if gpu.usable:
            mask |= 1 << gpu.id.ordinal
    return mask


def pick(free: int, count: int, size: int) -> int:
    """`count` of the free GPUs of a node with so many: an aligned block, which shares switches and bridges,
    where there is one; else the lowest."""
    block = (1 << count) - 1
    if 1 < count <= size <= _ALIGNED_UP_TO:
        for start in range(0, size - count + 1, count):
            if free >> start & block == block:
                return block << start
    first = (free & -free).bit_length() - 1
    if free >> first & block == block:
        return block << first
    rest = free
    for _ in range(count):
        rest &= rest - 1
    return free ^ rest
