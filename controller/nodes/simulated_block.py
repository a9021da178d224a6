# SPDX-License-Identifier: GPL-2.0-or-later
"""What simulated nodes keep of a job."""

from dataclasses import dataclass

from controller.model import JobId
from controller.nodes.protocol import NodePhase


@dataclass(slots=True)
class Block:
    """A control block."""

    gpus: tuple[int, ...]
    phase: NodePhase = NodePhase.RUNNING
    beside: frozenset[JobId] = frozenset()
    """Jobs that may have memory on the same GPUs."""
    stopped: bool = False
    """At a step boundary, its state on the way to host memory."""
    off: bool = False
    """Its memory is off its GPUs, but its processes may still run."""

    @property
    def works(self) -> bool:
        """The job may use its GPUs."""
        return not self.stopped and self.phase is not NodePhase.YIELDED
