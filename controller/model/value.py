# SPDX-License-Identifier: GPL-2.0-or-later
"""The one decorator of the domain's values: frozen, slotted, compared by content."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar, overload

from typing_extensions import dataclass_transform

T = TypeVar("T")


def empty() -> Mapping[Any, Any]:
    """A mapping without items that stays so, for `field(default_factory=empty)`."""
    return MappingProxyType({})


@overload
def value(cls: type[T], /) -> type[T]: ...


@overload
def value(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[Any] | None = None, /, *, kw_only: bool = False) -> Any:
    """A frozen, slotted data class. Wide types are `kw_only`: a new field never shifts the others."""

    def decorate(plain: type[T]) -> type[T]:
        # Methods that all share: a frozen data class has each of them compiled, which takes twice as long.
        made = dataclass(slots=True, kw_only=kw_only, init=False)(plain)
        names = [each.name for each in fields(made)]  # type: ignore[arg-type]
        content: Callable[[T], Any] = attrgetter(*names)
        stores = [getattr(made, name).__set__ for name in names]

        def state(self: T) -> list[Any]:
            return [getattr(self, name) for name in names]

        def restore(self: T, state: list[Any]) -> None:
            for store, item in zip(stores, state, strict=True):
                store(self, item)

        shared = {"__init__": _init(made), "__hash__": lambda self: hash(content(self))}
        shared |= {"__getstate__": state, "__setstate__": restore}
        for name, method in {**shared, "__setattr__": _refuse, "__delattr__": _refuse}.items():
            setattr(made, name, method)
        return made

    return decorate if cls is None else decorate(cls)


def _refuse(self: object, name: str, *_new: object) -> None:
    raise FrozenInstanceError(f"{name} of a {type(self).__name__} cannot be changed")


def _init(made: type[Any]) -> Callable[..., None]:
    """As a data class would have it, but it stores into the slots: that of a frozen data class looks each of
    them up by its name."""
    scope: dict[str, Any] = {"MISSING": MISSING}
    arguments: dict[bool, list[str]] = {False: [], True: []}
    lines = []
    for each in (each for each in fields(made) if each.init):
        name = each.name
        scope |= {f"_set_{name}": getattr(made, name).__set__, f"_default_{name}": each.default}
        stored = name
        if each.default_factory is not MISSING:
            scope[f"_make_{name}"] = each.default_factory
            stored = f"_make_{name}() if {name} is MISSING else {name}"
        needed = each.default is MISSING and each.default_factory is MISSING
        arguments[bool(each.kw_only)].append(name if needed else f"{name}=_default_{name}")
        lines.append(f" _set_{name}(self, {stored})")
    if hasattr(made, "__post_init__"):
        lines.append(" self.__post_init__()")
    keywords = ["*", *arguments[True]] if arguments[True] else []
    text = "\n".join([f"def __init__({', '.join(['self', *arguments[False], *keywords])}):", *lines, " pass"])
    exec(text, scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init
