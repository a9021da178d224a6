# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy is: a pure function from a snapshot to a plan. No I/O, no clock, no Slurm.

Its memory between calls is what its plans returned, JSON, kept in the journal; so a saved snapshot and memory
replay to the same plan.
"""

from typing import Protocol

from controller.errors import GandivaError
from controller.model import Memory, Plan, Snapshot


class Policy(Protocol):
    """The one method every policy has. Deterministic."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """What should be different from what the snapshot shows. `memory` is to be read where everything
        changed; else the policy may keep what it knows."""


class PolicyError(GandivaError):
    """A policy failed. The last plan stays in force; the next one is made from nothing."""
