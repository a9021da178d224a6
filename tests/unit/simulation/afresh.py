# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy that begins anew with every plan, and remembers only what its plans said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.model import ALL_CHANGED, Memory, Plan, Snapshot
from controller.policies.protocol import Policy


class Afresh:
    """Every plan is that of a policy which sees the snapshot and the memory for the first time."""

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        return self._make().plan(replace(snapshot, changed=ALL_CHANGED), memory)
