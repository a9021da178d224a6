# SPDX-License-Identifier: GPL-2.0-or-later
"""A mapping that is cheap to change without changing it: a large part shared by many versions, and a few
changes on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_GONE: Any = object()
_LIMIT = 256
"""So many changes are carried on top before the large part is made anew."""


class Layered(Mapping[K, V]):
    """Frozen. `with_changes` gives the next version in a time that does not grow with the size."""

    __slots__ = ("_base", "_count", "_top")

    def __init__(self, base: Mapping[K, V] | None = None) -> None:
        self._base: Mapping[K, V] = dict(base or {})
        self._top: dict[K, V] = {}
        self._count = len(self._base)

    def with_changes(self, put: Mapping[K, V], remove: frozenset[K] | set[K] = frozenset()) -> Layered[K, V]:
        """The version with `put` in it and without `remove`."""
        if not put and not remove:
            return self
        made: Layered[K, V] = Layered.__new__(Layered)
        if len(self._top) + max(len(put), len(remove)) > _LIMIT:
            # (In C: this happens within a decision, and the large part may be very large.)
            whole = self.whole()
            for key in remove - put.keys():
                whole.pop(key, None)
            whole.update(put)
            made._base, made._top, made._count = whole, {}, len(whole)
            return made
        base, top, count = self._base, dict(self._top), self._count
        for key in remove:
            above = top.get(key)
            if key in base if above is None else above is not _GONE:
                count -= 1
                top[key] = _GONE
        for key, value in put.items():
            above = top.get(key)
            if above is _GONE or (above is None and key not in base):
                count += 1
            top[key] = value
        made._base, made._top, made._count = base, top, count
        return made

    def whole(self) -> dict[K, V]:
        """All of it as a dict of the caller's own."""
        whole = {**self._base, **self._top}
        for key, value in self._top.items():
            if value is _GONE:
                del whole[key]
        return whole

    def __getitem__(self, key: K) -> V:
        value = self._top.get(key)
        if value is None:
            return self._base[key]
        if value is _GONE:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        value = self._top.get(key)
        if value is None:
            return self._base.get(key, default)
        return default if value is _GONE else value

    def __contains__(self, key: object) -> bool:
        value = self._top.get(key)  # type: ignore[arg-type]
        if value is None:
            return key in self._base
        return value is not _GONE

    def __iter__(self) -> Iterator[K]:
        top = self._top
        if top:
            yield from [key for key in self._base if key not in top]
            yield from [key for key, value in top.items() if value is not _GONE]
        else:
            yield from self._base

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Layered({dict(self)!r})"
