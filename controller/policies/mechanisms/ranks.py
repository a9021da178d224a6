# SPDX-License-Identifier: GPL-2.0-or-later
"""Keys and notes of jobs, by an order: the one part that speaks to it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from controller.model import JobId, Note, Usage
from controller.model.timers import TINY
from controller.policies.mechanisms.row import Key, Row
from controller.policies.orders.order import Order, Peer, Rank


class Ranks:
    """An order, what it remembers beyond jobs, and the notes that a plan changes."""

    def __init__(self, order: Order) -> None:
        self._given = order
        self.reset({})
        self.begin_plan(0.0)

    def reset(self, common: Mapping[str, Any]) -> None:
        """Begin anew with this memory."""
        self.common = common
        """What the order remembers beyond jobs."""
        self.order = self._given.recall(common)

    def begin_plan(self, now: float) -> None:
        """All that follows happens at this time."""
        self._now, self._numbers = now, count(1)
        self.notes: dict[JobId, Note] = {}
        """Those that this plan changes. None: to be forgotten."""
        self.learned = False
        """The memory beyond jobs has changed."""

    def _note(self, row: Row, note: Note) -> bool:
        """Whether this is news."""
        if note == row.note:
            return False
        row.note = self.notes[row.id] = note
        return True

    # -- jobs that come and go ------------------------------------------------------------------------

    def read(self, note: Note) -> Note:
        """A note out of the journal."""
        return None if note is None else self.order.read(note)

    def begin(self, row: Row, peers: Iterable[Row]) -> None:
        """Give a job that came among these its note."""
        self._note(row, self.order.enter(row.job, row.usage, self._now, next(self._numbers), _peers(peers)))

    def seen(self, row: Row) -> None:
        """The job was observed to differ from what was known."""
        if row.note is not None:
            self._note(row, self.order.seen(row.job, row.usage, row.note, self._now))

    def ended(self, job_id: JobId, usage: Usage) -> None:
        """A job has left the cluster."""
        self.notes[job_id] = None
        common = self.order.ended(self.common, usage, self._now)
        if common is not self.common:
            self.common, self.learned = common, True

    def recall(self) -> bool:
        """Whether the order is another one by what it has learned: then all keys are others."""
        order = self.order.recall(self.common)
        changed = order is not self.order
        self.order = order
        return changed

    # -- places ---------------------------------------------------------------------------------------

    def key(self, row: Row) -> Key:
        """Higher classes first, then jobs whose start did not fail, then by shares, then by the order."""
        return _key(row, self.order.rank(row.job, row.usage, row.note, self._now))

    def rekey(self, rows: Sequence[Row]) -> None:
        """Give rows that take turns on the same GPUs their keys."""
        for row, rank in zip(rows, self.order.ranks(_peers(rows), self._now), strict=True):
            row.key = _key(row, rank)

    def turned(self, rows: Sequence[Row]) -> None:
        """A slice is over for rows that take turns on the same GPUs."""
        for row, note in zip(rows, self.order.turned(_peers(rows), self._now), strict=True):
            self._note(row, note)

    def words(self, row: Row, usage: Usage | None = None) -> str:
        """What the order says of the job's place. `usage`: as it is once the plan is carried out."""
        return self.order.words(row.job, usage or row.usage, row.note, self._now)

    # -- what changes by itself, and by plans ---------------------------------------------------------

    def polled(self, row: Row) -> bool:
        """Whether the job's time has to be asked for with each plan."""
        return self.order.polled and row.usage.since is not None

    def until(self, row: Row) -> float:
        """When note or key change by themselves."""
        return self.order.until(row.job, row.usage, row.note, self._now)

    def advance(self, row: Row) -> None:
        """Change the note if its time has come."""
        if self.until(row) > self._now + TINY:
            return
        note = self.order.advance(row.job, row.usage, row.note, self._now, next(self._numbers))
        if not self._note(row, note):
            raise ValueError(f"the time of job {row.id} has come (until), and nothing changes (advance)")

    def unsettled(self, row: Row) -> bool:
        """Whether the job runs and was advanced, and was not settled since."""
        return row.usage.since is not None and self.order.unsettled(row.note)

    def settle(self, row: Row, usage: Usage | None = None) -> None:
        """The plan starts or stops the job, or decides that it goes on after it was advanced; with this
        usage, where that is another."""
        note = self.order.settle(row.job, usage or row.usage, row.note, self._now, next(self._numbers))
        self._note(row, note)


def _peers(rows: Iterable[Row]) -> list[Peer]:
    return [(row.job, row.usage, row.note) for row in rows]


def _key(row: Row, rank: Rank) -> Key:
    return (-row.job.priority_class, row.job.behind, row.job.share_rank, *rank, row.id)
