# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy and a move are: pure functions of what they are given. No I/O, no clock, no Slurm.

A policy's memory between calls is what its plans returned, JSON, kept in the journal; so a saved snapshot and
memory replay to the same plan.
"""

from __future__ import annotations

from typing import Protocol

from controller.errors import GandivaError
from controller.model import Memory, Plan, Snapshot
from controller.policies.placement.draft import Draft


class Policy(Protocol):
    """The one method every policy has. Deterministic."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """What should be different from what the snapshot shows. `memory` is to be read where everything
        changed; else the policy may keep what it knows."""
        ...


class Move(Protocol):
    """A change of where jobs are, beside whom, or how large, proposed after the mechanism decided.

    It never stops a job that the mechanism runs, and starts a waiting one only beside such a job or on what
    the move freed.
    """

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        """Change the draft (`put`), and say why (`say`)."""
        ...


class PolicyError(GandivaError):
    """A policy failed. The last plan stays in force; the next one is made from nothing."""
