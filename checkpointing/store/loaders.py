# SPDX-License-Identifier: MIT
"""Random numbers that PyTorch's data loaders draw when they are begun.

`iter(loader)` takes a seed from the generator of the whole process, unless the loader has one of its own. A
job that goes on in the middle of an epoch begins its loader once more than an undisturbed one, and all random
numbers after that would be others. So the generators are put back when the loader gives its first batch: what
was drawn for its second beginning does not count. Where it had given its last batch, what is begun is the
next epoch, and that counts.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MODULE = "torch.utils.data.dataloader"
_open: Any = weakref.WeakKeyDictionary()
"""Iterators of loaders that have given a batch and have not ended, with how many batches they had to give."""


@dataclass(frozen=True)
class _Again:
    """What to do at the first batch. `ended`: the loader had given its last one."""

    put_back: Callable[[], None]
    ended: bool


_again: list[_Again] = []
"""At most one."""


def watch() -> None:
    """Note from now on which loaders are open. A second call changes nothing."""
    kind = getattr(sys.modules.get(_MODULE), "_BaseDataLoaderIter", None)
    give = getattr(kind, "__next__", None)
    if kind is None or give is None or hasattr(give, "gandiva_watched"):
        return

    @functools.wraps(give)
    def watched(self: Any) -> Any:
        again = _again.pop() if _again else None
        if again is not None and not again.ended:
            again.put_back()
        # Before the first one: a sampler may say how many are left.
        length = _open.get(self) or _length(self)
        try:
            batch = give(self)
        except StopIteration:
            _open.pop(self, None)
            if again is not None and again.ended:
                again.put_back()
            raise
        _open[self] = length
        return batch

    watched.gandiva_watched = True  # type: ignore[attr-defined]
    kind.__next__ = watched


def open_now() -> list[bool]:
    """Of each loader that is open, whether it has given its last batch, as far as it knows its length."""
    _again.clear()
    return [iterator._num_yielded >= length for iterator, length in list(_open.items())]


def go_on(were_open: list[bool], put_back: Callable[[], None]) -> None:
    """The state was restored in which `open_now()` was so. `put_back` gives the generators their states."""
    _again[:] = [_Again(put_back, all(were_open))] if were_open else []


def _length(iterator: Any) -> float:
    try:
        return float(len(iterator))
    except (TypeError, NotImplementedError):
        return math.inf
