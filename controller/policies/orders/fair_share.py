# SPDX-License-Identifier: GPL-2.0-or-later
"""Weighted fair service: the job that had the least time on GPUs for its weight comes first (SPEC 1.3).

Source: Gandiva (OSDI'18) 4.1. A newcomer starts level with the peer that has had least.
"""

from collections.abc import Iterable

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Peer, Rank, numbers


class FairShare(Order):
    """Note: (service per weight received up to `seconds`, `seconds` on GPUs by then, the weight since)."""

    epoch_seconds = 0.0

    def __init__(self, slice_seconds: float = 60.0) -> None:
        """`slice_seconds`: the unit that people are told about."""
        self._slice_seconds = slice_seconds

    def read(self, note: Note) -> Note:
        found = numbers(note)
        return tuple(found) if len(found) == 3 and found[2] > 0 else None

    def enter(self, job: Job, usage: Usage, now: float, i: int, peers: Iterable[Peer]) -> Note:
        level = min((self.received(usage, note, now) for _, usage, note in peers), default=0.0)
        return (level, usage.ran(now), job.request.weight)

    @staticmethod
    def received(usage: Usage, note: Note, now: float) -> float:
        """Seconds on GPUs, divided by the weight at which they were had. Measured time: the delay of a
        suspend is charged to the job that caused it."""
        if note is None:
            return 0.0
        received, at_seconds, weight = note
        return float(received + max(0.0, usage.ran(now) - at_seconds) / weight)

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        return (round(self.received(usage, note, now), 6), job.submit_time)

    def seen(self, job: Job, usage: Usage, note: Note, now: float) -> Note:
        if note is not None and note[2] != job.request.weight:
            return (self.received(usage, note, now), usage.ran(now), job.request.weight)
        return note

    def words(self, job: Job, usage: Usage, note: Note, now: float) -> str:
        slices = self.received(usage, note, now) / self._slice_seconds
        return f"{slices:.2f} slices per weight received"
