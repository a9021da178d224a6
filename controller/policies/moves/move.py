# SPDX-License-Identifier: GPL-2.0-or-later
"""What a move is: a change of where jobs are, beside whom, or how large, proposed after the mechanism
decided.

A move never stops a job that the mechanism runs, and starts a waiting one only beside such a job or on what
the move freed.
"""

from typing import Protocol

from controller.model import Snapshot
from controller.policies.placement.draft import Draft


class Move(Protocol):
    """One kind of move. Pure: all it knows is in the snapshot and the draft."""

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        """Change the draft (`put`), and say why (`say`)."""
        ...
