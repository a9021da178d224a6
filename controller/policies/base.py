# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy is.

A policy is a pure function from a snapshot to a plan: no I/O, no clock, no Slurm. Its memory between
calls is the `state` mapping it returned last (JSON-serialisable; empty on the first call and after a lost
journal), so that a saved snapshot and state replay to the same plan.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

from controller.model import Plan, Snapshot


class Policy(Protocol):
    """The one method every policy has."""

    @property
    def name(self) -> str:
        """As it stands in the settings file."""
        ...

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> Plan:
        """What every job should do until the next call. Must be deterministic."""
        ...


def start_failed(retry_at: float) -> str:
    """The reason of a job that Slurm did not start when it was released."""
    return f"start failed; retry at {time.strftime('%H:%M:%S', time.localtime(retry_at))}"


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts n2 before n10."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part)
