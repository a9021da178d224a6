# SPDX-License-Identifier: GPL-2.0-or-later
"""The allocation in force, and what the ones before it still owe. An allocation changes the fractions of all
jobs at once, so they are one table: nothing is done job by job when another one is taken over."""

from __future__ import annotations

import base64
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat

from controller.model import JobId
from controller.policies.allocations.allocation import Jobs
from controller.policies.allocations.table import FractionTable
from controller.policies.recalled import recalled

ALONE = JobId(0)
"""In the place of a partner: none."""
Slot: TypeAlias = tuple[str, JobId]
"""A GPU type, or a kind of it, and the job beside which the time there is."""
Table: TypeAlias = NDArray[np.float64]
"""A row for jobs that run together, and a column for each type."""


@dataclass
class _Remembered:
    types: tuple[str, ...]
    jobs: list[int | tuple[int, ...]]
    fractions: str
    owed: str
    since: FiniteFloat
    uncounted: list[int]


class InForce:
    """What each job is to have of each slot."""

    def __init__(self, raw: object) -> None:
        """`raw`: as `remembered` gave it, or damaged. Then it is empty."""
        self.types: tuple[str, ...] = ()
        self.rows: dict[Jobs, int] = {}
        """Of what was taken last, and of jobs that are not in that: what they had before."""
        self._fractions: Table = np.zeros((0, 0))
        self._owed: Table = np.zeros((0, 0))
        """Seconds that earlier fractions gave since the last reset."""
        self._since = 0.0
        self._uncounted: set[JobId] = set()
        """Jobs that have fractions, and that no allocation has counted yet."""
        with suppress(ValueError):
            self._recall(recalled(raw, cast(Any, _Remembered), None))
        self._derive()

    def _derive(self) -> None:
        self.partners: dict[JobId, list[JobId]] = {}
        """Jobs beside which each may have time."""
        for one, other in (jobs for jobs in self.rows if len(jobs) == 2):
            self.partners.setdefault(one, []).append(other)
            self.partners.setdefault(other, []).append(one)
        self._listed: list[list[float]] = self._fractions.tolist()
        self._alone: list[Slot] = [(name, ALONE) for name in self.types]
        # Hundredths are said, and that less than one is not none.
        self._said = np.rint(100.0 * self._fractions) + (self._fractions > 0)
        self._remembered: dict[str, Any] | None = None

    # -- who has what ---------------------------------------------------------------------------------

    def counts(self, job_id: JobId) -> bool:
        """Whether an allocation has counted the job."""
        return (job_id,) in self.rows and job_id not in self._uncounted

    def row(self, jobs: Jobs) -> dict[str, float]:
        """The fractions of jobs that run together, where they have any."""
        both = zip(self.types, self._listed[self.rows[jobs]], strict=True)
        return {name: fraction for name, fraction in both if fraction}

    def of(self, job_id: JobId) -> dict[Slot, float]:
        """The fractions of a job, where it has any."""
        rows = [(self._slots(other), self._listed[self.rows[jobs]]) for other, jobs in self._with(job_id)]
        return {slot: part for slots, row in rows for slot, part in zip(slots, row, strict=True) if part}

    def due(self, elapsed_seconds: float, now: float) -> Callable[[JobId], dict[Slot, float]]:
        """Seconds that a job was to have since the last reset, which was so long ago. A pair that has nothing
        any more is forgotten."""
        elapsed = min(elapsed_seconds, now - self._since)
        seconds: list[list[float]] = (self._owed + self._fractions * elapsed).tolist()

        def of(job_id: JobId) -> dict[Slot, float]:
            found: dict[Slot, float] = {}
            for other, jobs in self._with(job_id):
                kept = self.types if other == ALONE else self.row(jobs)
                for slot, part in zip(self._slots(other), seconds[self.rows[jobs]], strict=True):
                    if part and slot[0] in kept:
                        found[slot] = part
            return found

        return of

    def _slots(self, other: JobId) -> list[Slot]:
        """Beside this job, or alone, by type."""
        return [(name, other) for name in self.types] if other != ALONE else self._alone

    def _with(self, job_id: JobId) -> list[tuple[JobId, Jobs]]:
        """Beside whom it may have time, and whose row says so."""
        if (job_id,) not in self.rows:
            return []
        others = self.partners.get(job_id, ())
        return [(ALONE, (job_id,)), *((i, (min(i, job_id), max(i, job_id))) for i in others)]

    # -- other fractions ------------------------------------------------------------------------------

    def reset(self, now: float) -> None:
        """Begin to count anew what is owed."""
        self._owed, self._since = np.zeros_like(self._owed), now

    def take(
        self, table: FractionTable, now: float, present: Container[JobId], *, counted: bool = True
    ) -> set[JobId]:
        """These are the fractions from now on. `present`: all jobs. `counted`: by an allocation. Returns jobs
        about which something else is said."""
        owed = self._owed + self._fractions * (now - self._since)
        spare = [name for number, name in enumerate(self.types) if owed[:, number].any()]
        types = (*table.types, *(name for name in spare if name not in table.types))
        as_before = types == self.types
        fresh = np.array(table.fractions, float).reshape(len(table.jobs), len(table.types))
        fresh, owed = _by_types(fresh, table.types, types), _by_types(owed, self.types, types)
        before, said = _by_types(self._fractions, self.types, types), self._said
        new = dict(zip(table.jobs, range(len(table.jobs)), strict=True))
        gone = self.rows.keys() - new.keys()
        kept = [jobs for jobs in sorted(gone) if all(i in present and (i,) not in new for i in jobs)]
        jobs = [*table.jobs, *kept]
        place = np.fromiter(map(self.rows.get, jobs, repeat(-1)), int, len(jobs))
        known = place >= 0
        self._owed = np.zeros((len(jobs), len(types)))
        self._owed[known] = owed[place[known]]
        self._fractions = np.vstack([fresh, before[place[len(fresh) :]]])
        self.types, self.rows = types, dict(zip(jobs, range(len(jobs)), strict=True))
        uncounted = {i for i in self._uncounted if (i,) in self.rows and not (counted and (i,) in new)}
        self._uncounted = uncounted if counted else uncounted | {each[0] for each in table.jobs}
        self._since = now
        self._derive()
        other = np.ones(len(jobs), bool)
        if as_before:
            other[known] = (self._said[known] != said[place[known]]).any(axis=1)
        changed = (*(jobs[n] for n in np.flatnonzero(other).tolist()), *gone.difference(kept))
        return {i for each in changed for i in each}

    # -- memory ---------------------------------------------------------------------------------------

    def remembered(self) -> Mapping[str, Any]:
        """JSON."""
        if self._remembered is None:
            self._remembered = {
                "types": list(self.types),
                "jobs": [jobs[0] if len(jobs) == 1 else list(jobs) for jobs in self.rows],
                "fractions": base64.b64encode(self._fractions.tobytes()).decode(),
                "owed": base64.b64encode(self._owed.tobytes()).decode(),
                "since": self._since,
                "uncounted": sorted(self._uncounted),
            }
        return self._remembered

    def _recall(self, found: _Remembered | None) -> None:
        """Raises ValueError."""
        if found is None:
            return
        jobs = [tuple(map(JobId, [each] if isinstance(each, int) else each)) for each in found.jobs]
        shape = len(jobs), len(found.types)
        fractions, owed = _unpacked(found.fractions, shape), _unpacked(found.owed, shape)
        if ((fractions < 0) | (fractions > 1)).any() or len(set(jobs)) < len(jobs):
            raise ValueError("no fractions")
        self.types, self.rows = found.types, dict(zip(jobs, range(len(jobs)), strict=True))
        self._fractions, self._owed, self._since = fractions, owed, found.since
        self._uncounted = set(map(JobId, found.uncounted))


def _by_types(table: Table, had: Sequence[str], types: Sequence[str]) -> Table:
    """With columns of other types."""
    if tuple(had) == tuple(types):
        return table
    found = np.zeros((len(table), len(types)))
    for number, name in enumerate(types):
        if name in had:
            found[:, number] = table[:, had.index(name)]
    return found


def _unpacked(text: str, shape: tuple[int, int]) -> Table:
    """Raises ValueError."""
    found = np.frombuffer(base64.b64decode(text, validate=True)).reshape(shape)
    if not np.isfinite(found).all():
        raise ValueError("not finite")
    return found
