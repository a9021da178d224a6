# SPDX-License-Identifier: GPL-2.0-or-later
"""A job as rounds know it: what it had of each GPU type, alone or beside another job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from pydantic import FiniteFloat

from controller.model import JobId, Note
from controller.model.value import empty
from controller.policies.allocations.allocation import AllocationJob
from controller.policies.mechanisms.rounds.in_force import ALONE, Slot
from controller.policies.mechanisms.rounds.kinds import scattered, type_of_kind
from controller.policies.mechanisms.row import Row
from controller.policies.recalled import recalled

_HEAD, _FIELDS = 5, 4
"""In a note: values of the job, and of each account."""
_Noted: TypeAlias = tuple[
    tuple[str, FiniteFloat, FiniteFloat, int, bool], tuple[tuple[str, int, FiniteFloat, FiniteFloat], ...]
]


@dataclass(slots=True)
class Account:
    """Of one job with one slot."""

    uncounted: float = 0.0
    """Seconds on the type up to now that do not count: before the last reset, beyond its fraction, or in
    another slot of the type."""
    deficit: float = 0.0
    """Seconds that it had less than it was to have, up to the last reset."""


@dataclass(slots=True, eq=False)
class Member(Row):
    """One job. What is not observed is in its note."""

    gpus: int = 0
    """Of its gang."""
    types: tuple[str, ...] = ()
    """GPU types, and kinds of them, that it may run on."""
    bound: bool = False
    """Off its GPUs it can go on there alone."""
    rates: Mapping[str, float] = field(default_factory=empty)
    """Samples per second, alone, by the types that it may run on."""
    hosted: str = ""
    """The kind of the GPUs that it has, or that Slurm has given it."""
    assigned: str = ""
    """The type that it runs on in this round. Empty: none."""
    beside: JobId = ALONE
    """The job that it shares GPUs with in this round."""
    extra: bool = False
    """In this round it runs beyond its fractions."""
    mark: float = 0.0
    """Its seconds on the type when it was given this round."""
    extra_seconds: float = 0.0
    """What it had beyond its fractions in earlier rounds."""
    accounts: dict[Slot, Account] = field(default_factory=dict)
    stated: AllocationJob | None = None
    """What allocations are given of it, but for how far it is. None: as it was before something changed."""

    def account(self, slot: Slot) -> Account:
        """A new one where it has none."""
        found = self.accounts.get(slot)
        if found is None:
            found = self.accounts[slot] = Account()
        return found

    def seconds(self, gpu_type: str, now: float) -> float:
        """On GPUs of this type in all, whatever their kind."""
        gpu_type = type_of_kind(gpu_type)
        before = self.usage.seconds_by_type.get(gpu_type, 0.0)
        if self.usage.since is None or self.usage.gpu_type != gpu_type:
            return before
        return before + (now - self.usage.since)

    @property
    def had(self) -> Collection[str]:
        """The types that it has run on."""
        usage = self.usage
        return usage.seconds_by_type if usage.since is None else {*usage.seconds_by_type, usage.gpu_type}

    def received(self, slot: Slot, now: float) -> float:
        """Seconds there since the last reset, those beyond its fraction not counted."""
        found = self.accounts.get(slot)
        uncounted = 0.0 if found is None else found.uncounted
        return max(0.0, self._countable(slot, now) - uncounted)

    def _countable(self, slot: Slot, now: float) -> float:
        """Seconds on the type, without those of this round where it is for another slot."""
        elsewhere = self._shares_type(slot) and (self.extra or slot != (self.assigned, self.beside))
        return self.mark if elsewhere else self.seconds(slot[0], now)

    def _shares_type(self, slot: Slot) -> bool:
        """Whether it is of the type of this round."""
        return bool(self.assigned) and type_of_kind(slot[0]) == type_of_kind(self.assigned)

    def _kinds_of(self, gpu_type: str) -> list[str]:
        """Those that it distinguishes."""
        other = scattered(gpu_type)
        return [gpu_type, other] if other in self.types else [gpu_type]

    # -- rounds ---------------------------------------------------------------------------------------

    def assign(self, gpu_type: str, beside: JobId, extra: bool, now: float) -> None:
        """It has this round there."""
        self.assigned, self.beside, self.extra = gpu_type, beside, extra
        self.mark = self.seconds(gpu_type, now)

    def settle(self, now: float) -> bool:
        """Its round is over: what it ran there is not counted but in the slot that it was for. False: it had
        none."""
        had = bool(self.assigned) or self.extra
        if had:
            ran, slot = self.seconds(self.assigned, now) - self.mark, (self.assigned, self.beside)
            for kind in self._kinds_of(type_of_kind(self.assigned)):
                self.account((kind, ALONE))
            for other, account in self.accounts.items():
                if self._shares_type(other) and (self.extra or other != slot):
                    account.uncounted += ran
            self.extra_seconds += ran if self.extra else 0.0
        self.assigned, self.beside, self.extra, self.mark = "", ALONE, False, 0.0
        return had

    def lose_partner(self, now: float) -> None:
        """The job that it shared GPUs with is gone: what it runs until the end of the round is beyond its
        fractions."""
        gpu_type = self.assigned
        self.settle(now)
        self.assign(gpu_type, ALONE, True, now)

    # -- allocations ----------------------------------------------------------------------------------

    def open(self, slots: Iterable[Slot], now: float) -> None:
        """It is to have time there. Seconds in a slot that shares its type with others count from now on."""
        for slot in slots:
            shares = slot[1] != ALONE or scattered(type_of_kind(slot[0])) in self.types
            if shares and slot not in self.accounts:
                self.accounts[slot] = Account(self._countable(slot, now))

    def reset(self, due: Mapping[Slot, float], now: float) -> None:
        """Begin to count anew; what it had too little or too much is its deficit. `due`: seconds that it was
        to have. A pair that is not in it is forgotten."""
        for slot in [s for s in self.accounts if s[1] != ALONE and s not in due]:
            del self.accounts[slot]
        for gpu_type in self.had:
            for kind in self._kinds_of(gpu_type):
                self.account((kind, ALONE))
        for slot in due:
            self.account(slot)
        for slot, account in self.accounts.items():
            received = max(0.0, self._countable(slot, now) - account.uncounted)
            account.deficit += due.get(slot, 0.0) - received
            account.uncounted += received
        if self.extra:
            self.mark = max(self.mark, self.account((self.assigned, ALONE)).uncounted)

    # -- memory ---------------------------------------------------------------------------------------

    def remembered(self) -> Note:
        """JSON scalars."""
        said: list[Any] = [self.assigned, self.mark, self.extra_seconds, int(self.beside), self.extra]
        for slot in sorted(self.accounts):
            one = self.accounts[slot]
            said += (slot[0], int(slot[1]), one.uncounted, one.deficit)
        return tuple(said)

    def recall(self, note: Note) -> None:
        """Take over a note, which may be another policy's or damaged: then it counts as none."""
        known = note or ()
        rows = tuple(known[i : i + _FIELDS] for i in range(_HEAD, len(known), _FIELDS))
        found: _Noted | None = recalled((known[:_HEAD], rows), cast(Any, _Noted), None)
        if found is not None:
            (self.assigned, self.mark, self.extra_seconds, beside, self.extra), accounts = found
            self.beside, self.note = JobId(beside), note
            self.accounts = {(name, JobId(job_id)): Account(*rest) for name, job_id, *rest in accounts}
