# SPDX-License-Identifier: GPL-2.0-or-later
"""Mappings that are cheap to change without changing them. A small one is copied; of a large one, many
versions share one large part, and each has a few changes on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from math import isqrt
from typing import Any, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_GONE: Any = object()
_LIMIT = 16
"""So many changes, and the square root of all entries, are carried on top before the large part is made anew:
each change copies those before it, and each new large part costs all entries."""
_SMALL = 128
"""Up to so many entries a copy costs less than the look into two parts that every reader has."""

Version: TypeAlias = "Small[K, V] | Layered[K, V]"
"""Frozen: nobody may change it. `with_changes` gives the next version in a time that does not grow with the
size."""


def versioned(entries: Mapping[K, V] | None = None) -> Version[K, V]:
    """A first version."""
    return _version(dict(entries or {}))


def _version(whole: dict[K, V]) -> Version[K, V]:
    """Of a dict that nobody else has."""
    return Small(whole) if len(whole) <= _SMALL else Layered(whole)


class Small(dict[K, V]):
    """Few entries."""

    __slots__ = ()

    def with_changes(self, put: Mapping[K, V], remove: Set[K] = frozenset()) -> Version[K, V]:
        """The version with `put` in it and without `remove`."""
        if not put and not remove:
            return self
        made = Small(self)
        for key in remove:
            made.pop(key, None)
        made.update(put)
        return made if len(made) <= _SMALL else Layered(made)

    def whole(self) -> dict[K, V]:
        """All of it as a dict of the caller's own."""
        return dict(self)


class Layered(Mapping[K, V]):
    """Many entries."""

    __slots__ = ("_base", "_limit", "_top")

    def __init__(self, whole: dict[K, V]) -> None:
        """`whole`: the large part. The caller does not change it any more."""
        self._base: Mapping[K, V] = whole
        self._top: dict[K, V] = {}
        """What differs: other values, new keys, and keys of the large part that are gone."""
        self._limit = _LIMIT + isqrt(len(whole))

    def with_changes(self, put: Mapping[K, V], remove: Set[K] = frozenset()) -> Version[K, V]:
        """The version with `put` in it and without `remove`."""
        if not put and not remove:
            return self
        if len(self._top) + max(len(put), len(remove)) > self._limit:
            # (In C: this happens within a decision, and the large part may be very large.)
            whole = self.whole()
            for key in remove - put.keys():
                whole.pop(key, None)
            whole.update(put)
            return _version(whole)
        base, top = self._base, dict(self._top)
        for key in remove:
            if key in base:
                top[key] = _GONE
            else:
                top.pop(key, None)
        top.update(put)
        made: Layered[K, V] = Layered.__new__(Layered)
        made._base, made._top, made._limit = base, top, self._limit
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
        base = self._base
        return len(base) + sum(-1 if value is _GONE else key not in base for key, value in self._top.items())

    def __repr__(self) -> str:
        return f"Layered({dict(self)!r})"
