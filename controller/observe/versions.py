# SPDX-License-Identifier: GPL-2.0-or-later
"""A mapping that changes, of which snapshots have what it was."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Versions(Generic[K, V]):
    """Copied when it is shown after a change, not at every change."""

    def __init__(self) -> None:
        self._entries: dict[K, V] = {}
        self._shown: Mapping[K, V] | None = None
        self.now: Mapping[K, V] = MappingProxyType(self._entries)
        """As it is at any time."""

    def put(self, key: K, value: V) -> None:
        """Another value."""
        self._entries[key] = value
        self._shown = None

    def pop(self, key: K) -> V | None:
        """Without this key from now on; returns its value."""
        if key not in self._entries:
            return None
        self._shown = None
        return self._entries.pop(key)

    def show(self) -> Mapping[K, V]:
        """As it is now, and stays."""
        if self._shown is None:
            self._shown = dict(self._entries)
        return self._shown
