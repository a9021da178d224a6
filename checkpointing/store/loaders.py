# SPDX-License-Identifier: MIT
"""Random numbers that PyTorch's data loaders draw when they are begun.

`iter(loader)` takes a seed from the generator of the whole process, unless the loader has one of its own. A
job that goes on in the middle of an epoch begins its loader once more than an undisturbed one, and all random
numbers after that would be others. So the generators are put back when the loader gives its first batch: what
was drawn for its second beginning does not count.

It is a second beginning where as many batches are left as were when the state was saved. Otherwise the script
begins an epoch, perhaps with a seed of its own, and nothing is done. A loader that does not know its length
must have been begun from the very state that was restored.
"""

from __future__ import annotations

import functools
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
    """What to do at the first batch, with `open_now()` of the save."""

    were_open: list[int | None]
    put_back: Callable[[], None]
    generator_state: Any


_again: list[_Again] = []
"""At most one: until a loader is asked for its first batch."""


def watch() -> None:
    """Note from now on which loaders are open. A second call changes nothing."""
    kind = getattr(sys.modules.get(_MODULE), "_BaseDataLoaderIter", None)
    give = getattr(kind, "__next__", None)
    if kind is None or give is None or hasattr(give, "gandiva_watched"):
        return

    @functools.wraps(give)
    def watched(self: Any) -> Any:
        # Before the first one: a sampler may say how many are left.
        length = _open[self] if self in _open else _length(self)
        again = _again.pop() if _again else None
        if again is not None and _is_second(self, _left(self, length), again):
            again.put_back()
        try:
            batch = give(self)
        except StopIteration:
            _open.pop(self, None)
            if again is not None and 0 in again.were_open:
                # It gave nothing, whatever length it said.
                again.put_back()
            raise
        _open[self] = length
        return batch

    watched.gandiva_watched = True  # type: ignore[attr-defined]
    kind.__next__ = watched


def open_now() -> list[int | None]:
    """Of each loader that is open, how many batches are left; None where it does not know."""
    # Before the first batch after a restore it is as it was.
    before = _again[0].were_open if _again else []
    return [*before, *(_left(iterator, length) for iterator, length in list(_open.items()))]


def go_on(were_open: list[int | None], put_back: Callable[[], None], generator_state: Any) -> None:
    """The state was restored in which `open_now()` was so. `put_back` gives the generators their states;
    `generator_state` is that of PyTorch's."""
    _again[:] = [_Again(were_open, put_back, generator_state)] if were_open else []


def _is_second(iterator: Any, left: int | None, again: _Again) -> bool:
    if left is not None or None not in again.were_open:
        return left in again.were_open
    torch = sys.modules["torch"]
    generator = torch.Generator()
    generator.set_state(again.generator_state)
    drawn = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)
    return bool(drawn.item() == getattr(iterator, "_base_seed", None))


def _left(iterator: Any, length: int | None) -> int | None:
    return None if length is None else max(0, length - int(iterator._num_yielded))


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except Exception:  # whatever the script's sampler raises
        return None
