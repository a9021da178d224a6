# SPDX-License-Identifier: GPL-2.0-or-later
"""What belongs to what, found both ways: GPUs by job and jobs by GPU, nodes by job and jobs by node."""

from collections.abc import Iterable, Iterator, KeysView, Set
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Index(Generic[K, V]):
    """Keys with their values. Iterating gives the keys that have any."""

    def __init__(self) -> None:
        self._values: dict[K, Set[V]] = {}
        self._keys: dict[V, set[K]] = {}

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def of(self, key: K) -> Set[V]:
        """Its values."""
        return self._values.get(key, frozenset())

    @property
    def values(self) -> KeysView[V]:
        """Those that any key has."""
        return self._keys.keys()

    def having(self, value: V) -> Set[K]:
        """The keys with this value, as they are until the next change."""
        return self._keys.get(value, frozenset())

    def having_any(self, values: Iterable[V]) -> set[K]:
        """The keys with any of these."""
        return {key for value in values for key in self._keys.get(value, ())}

    def put(self, key: K, values: Set[V] = frozenset()) -> bool:
        """It has these from now on, and no others. Whether that is news."""
        before = self._values.pop(key, frozenset())
        if values:
            self._values[key] = values
        if values == before:
            return False
        for value in before - values:
            self._keys[value].discard(key)
            if not self._keys[value]:
                del self._keys[value]
        for value in values - before:
            self._keys.setdefault(value, set()).add(key)
        return True
