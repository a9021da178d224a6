# SPDX-License-Identifier: GPL-2.0-or-later
"""Control blocks of simulated nodes."""

from __future__ import annotations

from collections.abc import Iterable
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
    map_refused: bool = False
    """Its driver has refused to move it."""
    stopped: bool = False
    """At a step boundary, its state on the way to host memory."""
    off: bool = False
    """Its memory is off its GPUs, but its processes may still run."""

    @property
    def works(self) -> bool:
        """The job may use its GPUs."""
        return not self.stopped and self.phase is not NodePhase.YIELDED


class Blocks(dict[JobId, Block]):
    """The control blocks of one node, and which of them name which GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._naming: dict[int, set[JobId]] = {}

    def add(self, job_id: JobId, block: Block) -> None:
        """One more, or another one for the job."""
        self.pop(job_id, None)
        self[job_id] = block
        for ordinal in block.gpus:
            self._naming.setdefault(ordinal, set()).add(job_id)

    def pop(self, job_id: JobId, default: None = None) -> Block | None:  # type: ignore[override]
        block = super().pop(job_id, None)
        if block is not None:
            for ordinal in block.gpus:
                self._naming[ordinal].discard(job_id)
        return block

    def move(self, job_id: JobId, gpus: tuple[int, ...]) -> None:
        """It names these GPUs from now on."""
        block = self[job_id]
        if block.gpus != gpus:
            self.pop(job_id)
            block.gpus = gpus
            self.add(job_id, block)

    def clear(self) -> None:
        super().clear()
        self._naming.clear()

    def others(self, job_id: JobId, gpus: Iterable[int]) -> list[JobId]:
        """Jobs but this one whose blocks name any of these GPUs, in the order of their ids."""
        found: set[JobId] = set()
        for ordinal in gpus:
            found.update(self._naming.get(ordinal, ()))
        found.discard(job_id)
        return sorted(found)
