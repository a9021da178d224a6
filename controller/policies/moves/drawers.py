# SPDX-License-Identifier: GPL-2.0-or-later
"""Nodes filed by how many of their GPUs are free: the tightest that takes a job is found without a look at
every node."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from controller.model import GpuId, GpuSet

_Key = tuple[int, str]
"""Free GPUs of a node, its name."""


class Drawers:
    """Nodes without free GPUs are not in it."""

    def __init__(self, free: Mapping[str, list[GpuId]]) -> None:
        """`free`: by node, as `free_gpus` has them; it stays as it is."""
        self._free = {name: list(gpus) for name, gpus in free.items() if gpus}
        self._keys: list[_Key] = sorted((len(gpus), name) for name, gpus in self._free.items())

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, name: str) -> Sequence[GpuId]:
        """Free GPUs of a node."""
        return self._free.get(name, ())

    def fitting(self, least: int, most: int | None = None) -> Iterator[str]:
        """Nodes with at least so many free GPUs, and no more than `most`: the fewest first, then by name.
        Not to be asked on after `take`."""
        for at in range(bisect_left(self._keys, (least, "")), len(self._keys)):
            count, name = self._keys[at]
            if most is not None and count > most:
                return
            yield name

    def emptiest(self, least: int) -> Iterator[str]:
        """Nodes with at least so many free GPUs: the most first."""
        at = len(self._keys)
        while at and self._keys[at - 1][0] >= least:
            count = self._keys[at - 1][0]
            begin = bisect_left(self._keys, (count, ""))
            yield from (name for _, name in self._keys[begin:at])
            at = begin

    def take(self, name: str, gpus: int) -> GpuSet:
        """So many GPUs of this node, the first ones. They are free no more."""
        there = self._free[name]
        del self._keys[bisect_left(self._keys, (len(there), name))]
        taken = frozenset(there[:gpus])
        del there[:gpus]
        if there:
            insort(self._keys, (len(there), name))
        return taken

    def give(self, name: str, gpus: GpuSet) -> None:
        """They are free again."""
        there = self._free.setdefault(name, [])
        if there:
            del self._keys[bisect_left(self._keys, (len(there), name))]
        there[:] = sorted([*there, *gpus])
        insort(self._keys, (len(there), name))
