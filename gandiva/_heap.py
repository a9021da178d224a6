# SPDX-License-Identifier: MIT
"""Finds tensors among all objects of the process, and looks at each object once."""

import gc
import itertools
import operator
import sys
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple


class Heap:
    """All living objects of some kinds.

    A process that has imported Transformers has 350,000 objects. What was looked at is set aside with
    gc.freeze(), which also leaves it out of gc.get_objects(): the next find() looks at what came to be
    since. A collection that comes to old objects begins with gc.unfreeze(), so it frees what it would have
    freed. Objects that the script has frozen are looked at as well.
    """

    def __init__(self, *kinds: type) -> None:
        """`kinds`: classes whose objects can have weak references; subclasses count, too."""
        self._kinds = kinds
        self._found: Dict[int, Any] = {}
        self._mark: Optional[_Mark] = None

    def find(self) -> List[Any]:
        """The objects, each once."""
        if not any(map(operator.is_, gc.get_objects(), itertools.repeat(self._mark))):
            # Not ours alone, what is frozen: nobody has looked at it.
            gc.unfreeze()
        objects = _set_aside()
        wanted = _Wanted(self._kinds)
        for new in itertools.compress(objects, map(wanted.__getitem__, map(type, objects))):
            self._found[id(new)] = weakref.ref(new)
        del objects
        # Frozen from now on is only what is frozen after this.
        self._mark = _Mark()
        living = [(key, reference()) for key, reference in self._found.items()]
        self._found = {key: self._found[key] for key, found in living if found is not None}
        return [found for _, found in living if found is not None]


class _Mark:
    """Tracked by garbage collection, as every object with attributes."""


class _Wanted(Dict[type, bool]):
    """By type, whether it is wanted. By the real type: lazy proxies run code when asked for their class."""

    def __init__(self, kinds: Tuple[type, ...]) -> None:
        super().__init__()
        self._kinds = kinds

    def __missing__(self, kind: type) -> bool:
        self[kind] = found = issubclass(kind, self._kinds)
        return found


def _set_aside() -> List[Any]:
    """All objects that are not frozen; then they are, unless other threads run without a GIL."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return gc.get_objects()
    if _thaw not in gc.callbacks:
        gc.callbacks.append(_thaw)
    # Both calls by one call: between two lines of Python another thread could make an object that is frozen
    # and was not looked at.
    calls: Iterator[Iterator[Any]] = iter((iter(gc.get_objects, None), iter(gc.freeze, 0)))
    objects, _ = map(next, calls)
    return objects  # type: ignore[no-any-return]


def _thaw(phase: str, info: Dict[str, int]) -> None:
    # Without a third threshold (Python 3.14.0) each collection of generation 1 comes to old objects.
    if phase == "start" and info["generation"] >= (2 if gc.get_threshold()[2] else 1):
        gc.unfreeze()
