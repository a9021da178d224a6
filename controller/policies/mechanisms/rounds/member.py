# SPDX-License-Identifier: GPL-2.0-or-later
"""A job as rounds know it: what it is to have of each GPU type, and what it had."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from controller.model import Job, JobId, Note, Usage
from controller.policies.mechanisms.row import ASIDE, Standing

_FIELDS = 5
"""In a note, of each account."""


@dataclass(slots=True)
class Account:
    """Of one job with one GPU type."""

    fraction: float = 0.0
    """Of the time that the job is to run there, as last allocated."""
    uncounted: float = 0.0
    """Seconds on the type up to now that do not count: before the last reset, or beyond its fraction."""
    owed: float = 0.0
    """Seconds that earlier allocations gave it since the last reset."""
    deficit: float = 0.0
    """Seconds that it had less than it was to have, up to the last reset."""


@dataclass(slots=True, eq=False)
class Member:
    """One job. What is not observed is in its note."""

    job: Job
    usage: Usage = field(default_factory=Usage)
    types: tuple[str, ...] = ()
    """GPU types that it may run on."""
    standing: Standing = ASIDE
    hosted: str = ""
    """The type of the GPUs that it has, or that Slurm has given it."""
    assigned: str = ""
    """The type that it runs on in this round. Empty: none."""
    extra_from: float | None = None
    """In this round it runs beyond its fraction: its seconds on the type when it was given that."""
    extra_seconds: float = 0.0
    """What it had beyond its fractions in earlier rounds."""
    allocated: bool = False
    """An allocation counted it."""
    since: float = 0.0
    """When its fractions were taken over."""
    accounts: dict[str, Account] = field(default_factory=dict)
    noted: Note = None
    """Its note as it was told last."""

    @property
    def id(self) -> JobId:
        return self.job.id

    def account(self, gpu_type: str) -> Account:
        found = self.accounts.get(gpu_type)
        if found is None:
            found = self.accounts[gpu_type] = Account()
        return found

    def fraction(self, gpu_type: str) -> float:
        found = self.accounts.get(gpu_type)
        return 0.0 if found is None else found.fraction

    def seconds(self, gpu_type: str, now: float) -> float:
        """On GPUs of this type in all."""
        before = self.usage.seconds_by_type.get(gpu_type, 0.0)
        if self.usage.since is None or self.usage.gpu_type != gpu_type:
            return before
        return before + (now - self.usage.since)

    def received(self, gpu_type: str, now: float) -> float:
        """Seconds there since the last reset, those beyond its fraction not counted."""
        found = self.accounts.get(gpu_type)
        uncounted = 0.0 if found is None else found.uncounted
        if self.extra_from is not None and self.assigned == gpu_type:
            return max(0.0, self.extra_from - uncounted)
        return max(0.0, self.seconds(gpu_type, now) - uncounted)

    def settle_extra(self, now: float) -> None:
        """Its round is over: what it ran beyond its fraction is not counted."""
        if self.extra_from is not None:
            extra = self.seconds(self.assigned, now) - self.extra_from
            self.account(self.assigned).uncounted += extra
            self.extra_seconds += extra
        self.assigned, self.extra_from = "", None

    def accrue(self, now: float) -> None:
        """Another allocation follows, and counting goes on."""
        for account in self.accounts.values():
            account.owed += account.fraction * (now - self.since)
        self.since = now

    def reset(self, elapsed: float, now: float) -> None:
        """Begin to count anew; what it had too little or too much is its deficit."""
        for gpu_type in {*self.accounts, *self.types}:
            account, received = self.account(gpu_type), self.received(gpu_type, now)
            should = account.owed + account.fraction * min(elapsed, now - self.since)
            account.deficit += should - received
            account.owed = 0.0
            account.uncounted += received
        if self.extra_from is not None:
            self.extra_from = max(self.extra_from, self.accounts[self.assigned].uncounted)

    def note(self) -> Note:
        """What is to be remembered: JSON scalars."""
        said: list[Any] = [self.assigned, self.extra_from, self.extra_seconds, self.allocated, self.since]
        for gpu_type in sorted(self.accounts):
            one = self.accounts[gpu_type]
            said += (gpu_type, one.fraction, one.uncounted, one.owed, one.deficit)
        return tuple(said)

    def recall(self, note: Note) -> None:
        """Take over a note, which may be another policy's or damaged: then it counts as none."""
        if note is None or len(note) < _FIELDS or len(note) % _FIELDS:
            return
        assigned, extra_from, extra_seconds, allocated, since = note[:_FIELDS]
        rows = [note[i : i + _FIELDS] for i in range(_FIELDS, len(note), _FIELDS)]
        times = [extra_seconds, since, *(v for row in rows for v in row[1:])]
        if not all(_number(v) for v in times) or not (extra_from is None or _number(extra_from)):
            return
        if not all(isinstance(v, str) for v in (assigned, *(row[0] for row in rows))):
            return
        self.assigned, self.extra_from, self.extra_seconds = assigned, extra_from, extra_seconds
        self.allocated, self.since = bool(allocated), since
        self.accounts = {row[0]: Account(*map(float, row[1:])) for row in rows}
        self.noted = note


def _number(found: object) -> bool:
    return isinstance(found, int | float) and math.isfinite(found)
