# SPDX-License-Identifier: GPL-2.0-or-later
"""Frozen data classes that are made as quickly as others.

Assignment is what a frozen data class forbids, so its `__init__` sets each field by a call, and these take
longer than all else. The `__init__` made here turns the new object into one of an open twin class, assigns,
and turns it back: a third of the time for a job with its 28 fields. Nobody else ever sees the twin.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quickly_made(cls: type[T]) -> type[T]:
    """Decorates `@dataclass(frozen=True, slots=True)` classes of four fields or more. All fields must be
    parameters with plain defaults: raises TypeError for others."""
    described = fields(cls)  # type: ignore[arg-type]
    if hasattr(cls, "__post_init__") or any(
        not f.init or f.kw_only or f.default_factory is not MISSING for f in described
    ):
        raise TypeError(
            f"{cls.__name__}: fields with a factory, or that are no parameters, are not supported"
        )
    # A subclass without fields of its own has the same layout in memory: objects can change to it and back.
    opened = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    scope: dict[str, Any] = {
        "set_": object.__setattr__,
        "cls_": cls,
        "twin_": type(cls.__name__, (cls,), opened),
    }
    scope |= {f"{f.name}_default_": f.default for f in described}
    parameters = [f.name if f.default is MISSING else f"{f.name}={f.name}_default_" for f in described]
    lines = [
        f"def make_({', '.join(scope)}):",
        f"    def __init__(self, {', '.join(parameters)}):",
        "        set_(self, '__class__', twin_)",
        *(f"        self.{f.name} = {f.name}" for f in described),
        "        self.__class__ = cls_",
        "    return __init__",
    ]
    made: dict[str, Any] = {}
    # (As `dataclass` makes its own.)
    exec("\n".join(lines), vars(sys.modules[cls.__module__]), made)
    init = made["make_"](**scope)
    init.__annotations__ = cls.__init__.__annotations__
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = init  # type: ignore[method-assign]
    return cls
