# SPDX-License-Identifier: GPL-2.0-or-later
"""Weighted fair service: the job that had the least time on GPUs for its weight comes first (SPEC 1.3).

Source: Gandiva (OSDI'18) 4.1. A newcomer starts level with the peer that has had least. The jobs of a search
take each other's turns: see `searches`.
"""

from collections.abc import Iterable, Sequence

from controller.model import Job, Note, Usage
from controller.policies.orders.order import Order, Peer, Rank, numbers
from controller.policies.orders.searches import Trial, by_search, level, own_after, places, search_of


class FairShare(Order):
    """Note: (service per weight received up to `seconds`, `seconds` on GPUs by then, the weight since). Of a
    job of a search also: (service per priority received by then, the priority since)."""

    epoch_seconds = 0.0

    def __init__(self, slice_seconds: float = 60.0) -> None:
        """`slice_seconds`: the unit that people are told about, and how far apart places of a search are."""
        self._slice_seconds = slice_seconds

    def read(self, note: Note) -> Note:
        found = numbers(note)
        return tuple(found) if len(found) in (3, 5) and min(found[2::2]) > 0 else None

    def enter(self, job: Job, usage: Usage, now: float, i: int, peers: Iterable[Peer]) -> Note:
        among = list(peers)
        received = min((self.received(usage, note, now) for _, usage, note in among), default=0.0)
        search = search_of(job)
        own = [_own(usage, note, now) for peer, usage, note in among if search_of(peer) == search]
        return _note(job, usage, now, received, min(own, default=0.0))

    @staticmethod
    def received(usage: Usage, note: Note, now: float) -> float:
        """Seconds on GPUs, divided by the weight at which they were had. Measured time: the delay of a
        suspend is charged to the job that caused it."""
        if note is None:
            return 0.0
        return float(note[0] + max(0.0, usage.ran(now) - note[1]) / note[2])

    def rank(self, job: Job, usage: Usage, note: Note, now: float) -> Rank:
        return _rank(self.received(usage, note, now), job.submit_time)

    def ranks(self, peers: Sequence[Peer], now: float) -> list[Rank]:
        found = super().ranks(peers, now)
        for trials in self._searches(peers, now):
            for index, received, arrival in places(trials, self._slice_seconds):
                found[index] = _rank(received, arrival)
        return found

    def turned(self, peers: Sequence[Peer], now: float) -> list[Note]:
        notes = super().turned(peers, now)
        for trials in self._searches(peers, now):
            received = level(trials)
            for trial, own in zip(trials, own_after(trials), strict=True):
                job, usage, _ = peers[trial.index]
                notes[trial.index] = _note(job, usage, now, received, own)
        return notes

    def _searches(self, peers: Sequence[Peer], now: float) -> list[list[Trial]]:
        return by_search(
            Trial(index, job, self.received(usage, note, now), note[2], _own(usage, note, now))
            for index, (job, usage, note) in enumerate(peers)
            if job.request.search is not None and note is not None
        )

    def seen(self, job: Job, usage: Usage, note: Note, now: float) -> Note:
        if note is None or note[2::2] == _weights(job):
            return note
        return _note(job, usage, now, self.received(usage, note, now), _own(usage, note, now))

    def words(self, job: Job, usage: Usage, note: Note, now: float) -> str:
        slices = self.received(usage, note, now) / self._slice_seconds
        words = f"{slices:.2f} slices per weight received"
        if job.request.search is None:
            return words
        search = job.request.search
        how = "exclusive in" if search.exclusive else f"priority {search.priority:g} in"
        return f"{words} by the jobs of its search; {how} search {search.name}"


def _weights(job: Job) -> tuple[float, ...]:
    """Its weight, and of a job of a search its priority."""
    search = job.request.search
    return (job.request.weight,) if search is None else (job.request.weight, search.priority)


def _note(job: Job, usage: Usage, now: float, received: float, own: float) -> Note:
    ran, search = usage.ran(now), job.request.search
    note = (received, ran, job.request.weight)
    return note if search is None else (*note, own, search.priority)


def _own(usage: Usage, note: Note, now: float) -> float:
    """Seconds on GPUs, divided by the priority at which they were had."""
    if note is None or len(note) < 5:
        return 0.0
    return float(note[3] + max(0.0, usage.ran(now) - note[1]) / note[4])


def _rank(received: float, arrival: float) -> Rank:
    return (round(received, 6), arrival)
