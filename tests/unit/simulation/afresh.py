# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy that begins anew with every plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.model import ALL_CHANGED, Memory, Plan, Snapshot
from controller.policies.protocol import Policy


class Afresh:
    """Every plan is that of a policy which sees the snapshot and the memory for the first time."""

    def __init__(self, make: Callable[[], Policy], remembered: Callable[[], Memory] | None = None) -> None:
        """`remembered`: what the journal has, in place of what the controller remembers."""
        self._make, self._remembered = make, remembered

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        memory = memory if self._remembered is None else self._remembered()
        return self._make().plan(replace(snapshot, changed=ALL_CHANGED), memory)
