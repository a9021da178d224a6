# SPDX-License-Identifier: GPL-2.0-or-later
"""Kinds of GPUs, as an allocation knows them: a GPU type, and for gangs that are slower or faster on several
nodes than on few, the same type scattered (SPEC 3.3, placement sensitivity). For such a gang the type itself
means as few nodes as its size allows. Both kinds have the same GPUs."""

from collections.abc import Iterable
from functools import lru_cache

_SCATTERED = " scattered"
"""No GPU type of Slurm has a space in its name."""


def scattered(gpu_type: str) -> str:
    """The kind of this type on more nodes than a gang needs."""
    return gpu_type + _SCATTERED


@lru_cache(1024)
def is_scattered(kind: str) -> bool:
    return kind.endswith(_SCATTERED)


@lru_cache(1024)
def type_of_kind(kind: str) -> str:
    """The GPU type."""
    return kind.removesuffix(_SCATTERED)


def kinds(gpu_types: Iterable[str]) -> set[str]:
    """All of these types."""
    return {kind for gpu_type in gpu_types for kind in (gpu_type, scattered(gpu_type))}
