# SPDX-License-Identifier: GPL-2.0-or-later
"""Data classes that cost little to define, and frozen ones whose objects cost little to make.

`dataclass` here is the standard library's for those who use it, and for mypy. Two things are done otherwise:

* The standard library compiles up to six methods of each class at import: 0.4 ms a class, a sixth of what
  starting `gandiva simulate` took. Here `__init__`, `__eq__` and `__hash__` are compiled at their first call,
  which for many never comes, and the other methods are the same functions for all classes.
* Assignment is what a frozen class forbids, so its `__init__` sets each field by a call, and these take
  longer than all else. Here it turns the new object into one of an open twin class, assigns, and turns it
  back: a third of the time for a job with its 28 fields. Nobody else ever sees the twin.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False) -> Any:
        """All fields must be plain parameters, with or without a default or a factory of one: raises
        TypeError for others. Nothing can be derived from a frozen class."""
        if cls is None:
            return lambda cls: _made(cls, frozen, slots)
        return _made(cls, frozen, slots)


def _made(cls: Any, frozen: bool, slots: bool) -> Any:
    own = vars(cls)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    if not all(f.init and f.repr and f.compare and f.hash is None and not f.kw_only for f in fields(made)):
        raise TypeError(f"{cls.__name__}: a field that is no plain parameter")
    _compiled_later(made, "__init__", _init, frozen)
    if "__repr__" not in own:
        made.__repr__ = _repr
    if "__eq__" not in own:
        _compiled_later(made, "__eq__", _eq, frozen)
        if not frozen:
            made.__hash__ = None
        elif "__hash__" not in own:
            _compiled_later(made, "__hash__", _hash, frozen)
    if frozen:
        made.__setattr__, made.__delattr__, made.__reduce__ = _no_change, _no_change, _reduce
        made.__init_subclass__ = classmethod(_no_subclass)
    return made


def _compiled_later(
    cls: Any, name: str, text: Callable[[Any, bool], tuple[list[str], dict[str, Any]]], frozen: bool
) -> None:
    """Gives the class a method that puts the compiled one into its place when it is called first. (By two
    threads at once: then it is compiled twice.)"""

    def first(self: Any, /, *arguments: Any, **named: Any) -> Any:
        lines, scope = text(cls, frozen)
        made: dict[str, Any] = {}
        lines = [f"def make_({', '.join(scope)}):", *(f"    {line}" for line in lines), f"    return {name}"]
        # (As the standard library makes its own.)
        exec("\n".join(lines), vars(sys.modules[cls.__module__]), made)
        method = made["make_"](**scope)
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        if name == "__init__":
            method.__annotations__ = {f.name: f.type for f in fields(cls)} | {"return": None}
        setattr(cls, name, method)
        return method(self, *arguments, **named)

    first.__name__, first.__qualname__ = name, f"{cls.__qualname__}.{name}"
    setattr(cls, name, first)


def _init(cls: Any, frozen: bool) -> tuple[list[str], dict[str, Any]]:
    described = fields(cls)
    scope: dict[str, Any] = {"missing_": MISSING}
    parameters, assigned = [], {}
    for f in described:
        assigned[f.name] = f.name
        if f.default_factory is not MISSING:
            scope[f"{f.name}_factory_"] = f.default_factory
            parameters.append(f"{f.name}=missing_")
            assigned[f.name] = f"{f.name}_factory_() if {f.name} is missing_ else {f.name}"
        elif f.default is not MISSING:
            scope[f"{f.name}_default_"] = f.default
            parameters.append(f"{f.name}={f.name}_default_")
        else:
            parameters.append(f.name)
    lines = [f"self.{name} = {value}" for name, value in assigned.items()]
    if frozen and len(described) < 4:  # (where turning it costs more than the calls)
        scope["set_"] = object.__setattr__
        lines = [f"set_(self, {name!r}, {value})" for name, value in assigned.items()]
    elif frozen:
        # A subclass without fields of its own has the same layout in memory: objects change to it and back.
        scope |= {"set_": object.__setattr__, "cls_": cls, "twin_": _twin(cls)}
        lines = ["set_(self, '__class__', twin_)", *lines, "self.__class__ = cls_"]
    header = f"def __init__({', '.join(['self', *parameters])}):"
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    return [header, *(f"    {line}" for line in lines or ["pass"])], scope


def _twin(cls: type) -> type:
    opened = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(cls.__name__, (cls,), opened, twin=True)


def _values(cls: Any, of: str) -> str:
    return "(" + "".join(f"{of}.{f.name}, " for f in fields(cls)) + ")"


def _eq(cls: Any, _frozen: bool) -> tuple[list[str], dict[str, Any]]:
    return [
        "def __eq__(self, other):",
        "    if other.__class__ is self.__class__:",
        f"        return {_values(cls, 'self')} == {_values(cls, 'other')}",
        "    return NotImplemented",
    ], {}


def _hash(cls: Any, _frozen: bool) -> tuple[list[str], dict[str, Any]]:
    return ["def __hash__(self):", f"    return hash({_values(cls, 'self')})"], {}


def _repr(self: Any) -> str:
    values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
    return f"{self.__class__.__qualname__}({values})"


def _reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
    return self.__class__, tuple(getattr(self, f.name) for f in fields(self))


def _no_change(self: Any, name: str, _value: object = None) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r} of a {self.__class__.__name__}")


def _no_subclass(cls: type, twin: bool = False) -> None:
    if not twin:
        raise TypeError(f"{cls.__name__}: nothing can be derived from a frozen data class made here")
