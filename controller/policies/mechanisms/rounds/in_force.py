# SPDX-License-Identifier: GPL-2.0-or-later
"""The allocation in force, and what the ones before it still owe. An allocation changes the fractions of all
jobs at once, so they are one table: nothing is done job by job when another one is taken over."""

import base64
from array import array
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from math import isfinite
from operator import add, mul
from typing import Any, TypeAlias, cast

from pydantic import FiniteFloat

from controller.model import JobId
from controller.policies.allocations.allocation import Jobs
from controller.policies.allocations.table import FractionTable, Row, in_rows
from controller.policies.recalled import recalled

ALONE = JobId(0)
"""In the place of a partner: none."""
Slot: TypeAlias = tuple[str, JobId]
"""A GPU type, or a kind of it, and the job beside which the time there is."""


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
        self.table = FractionTable()
        """What was taken last. Jobs that are not in that have what they had before."""
        self._owed: dict[Jobs, Row] = {}
        """Seconds that earlier fractions gave since the last reset, by the table's rows."""
        self._since = 0.0
        self._uncounted: set[JobId] = set()
        """Jobs that have fractions, and that no allocation has counted yet."""
        with suppress(ValueError):
            self._recall(recalled(raw, cast(Any, _Remembered), None))
        self._derive()

    def _derive(self) -> None:
        self._slots = [(name, ALONE) for name in self.table.types]
        self.partners: dict[JobId, list[JobId]] = {}
        """Jobs beside which each may have time."""
        for one, other in (jobs for jobs in self.table.rows if len(jobs) == 2):
            self.partners.setdefault(one, []).append(other)
            self.partners.setdefault(other, []).append(one)
        self._flat = list(chain.from_iterable(self.table.rows.values()))
        self._said = _as_said(self.table, self._flat)
        self._remembered: dict[str, Any] | None = None

    # -- who has what ---------------------------------------------------------------------------------

    def counts(self, job_id: JobId) -> bool:
        """Whether an allocation has counted the job."""
        return (job_id,) in self.table.rows and job_id not in self._uncounted

    def of(self, job_id: JobId) -> dict[Slot, float]:
        """The fractions of a job, where it has any."""
        return {slot: fraction for slot, fraction, _ in self._entries(job_id) if fraction}

    def due(self, job_id: JobId, elapsed_seconds: float, now: float) -> dict[Slot, float]:
        """Seconds that it was to have since the last reset, which was so long ago. A pair that has nothing
        any more is forgotten."""
        elapsed = min(elapsed_seconds, now - self._since)
        return {
            slot: owed + fraction * elapsed
            for slot, fraction, owed in self._entries(job_id)
            if fraction or owed
        }

    def _entries(self, job_id: JobId) -> Iterable[tuple[Slot, float, float]]:
        """Its slots, with their fractions and what is owed."""
        alone = (job_id,)
        if alone not in self.table.rows:
            return ()
        found = zip(self._slots, self.table.rows[alone], self._owed[alone], strict=True)
        if job_id not in self.partners:
            return found
        beside = ((other, _pair(job_id, other)) for other in self.partners[job_id])
        return chain(
            found,
            (
                ((name, other), fraction, owed)
                for other, pair in beside
                for name, fraction, owed in zip(
                    self.table.types, self.table.rows[pair], self._owed[pair], strict=True
                )
                if fraction
            ),
        )

    # -- other fractions ------------------------------------------------------------------------------

    def reset(self, now: float) -> None:
        """Begin to count anew what is owed."""
        self._owed = dict.fromkeys(self.table.rows, (0.0,) * len(self.table.types))
        self._since = now

    def take(
        self, table: FractionTable, now: float, present: Container[JobId], *, counted: bool = True
    ) -> set[JobId]:
        """These are the fractions from now on. `present`: all jobs. `counted`: by an allocation. Returns jobs
        about which something else is said."""
        before, said, owed = self.table, self._said, self._accrued(now)
        if table.types != before.types:
            names = enumerate(before.types)
            spare = [t for i, t in names if t not in table.types and any(row[i] for row in owed.values())]
            types = (*table.types, *spare)
            owed = _by_types(owed, before.types, types)
            table = FractionTable(types, _by_types(table.rows, table.types, types))
        types, rows = table.types, before.rows
        if types != before.types:
            rows = _by_types(rows, before.types, types)
        gone = rows.keys() - table.rows.keys()
        kept = {
            jobs: rows[jobs]
            for jobs in sorted(gone)
            if all(job_id in present and (job_id,) not in table.rows for job_id in jobs)
        }
        self.table, none = FractionTable(types, {**table.rows, **kept}), (0.0,) * len(types)
        self._owed = dict(zip(self.table.rows, map(owed.get, self.table.rows, repeat(none)), strict=True))
        found = {i for i in self._uncounted if (i,) in (kept if counted else self.table.rows)}
        self._uncounted = found if counted else found | {jobs[0] for jobs in table.rows}
        self._since = now
        self._derive()
        if types != before.types:
            return {job_id for jobs in self.table.rows for job_id in jobs}
        both = zip(self._said.items(), map(said.get, self._said), strict=True)
        differ = [jobs for (jobs, reads), before_it in both if reads != before_it]
        return {job_id for jobs in (*differ, *gone) for job_id in jobs}

    def _accrued(self, now: float) -> dict[Jobs, Row]:
        """What is owed now."""
        grown = map(mul, self._flat, repeat(now - self._since))
        flat = map(add, chain.from_iterable(self._owed.values()), grown)
        return dict(zip(self.table.rows, in_rows(flat, self.table.types), strict=False))

    # -- memory ---------------------------------------------------------------------------------------

    def remembered(self) -> Mapping[str, Any]:
        """JSON."""
        if self._remembered is None:
            self._remembered = {
                "types": list(self.table.types),
                "jobs": [jobs[0] if len(jobs) == 1 else list(jobs) for jobs in self.table.rows],
                "fractions": _packed(self._flat),
                "owed": _packed(chain.from_iterable(self._owed.values())),
                "since": self._since,
                "uncounted": sorted(self._uncounted),
            }
        return self._remembered

    def _recall(self, found: _Remembered | None) -> None:
        """Raises ValueError."""
        if found is None:
            return
        jobs = [tuple(map(JobId, [j] if isinstance(j, int) else j)) for j in found.jobs]
        fractions, owed = _unpacked(found.fractions), _unpacked(found.owed)
        if not 0.0 <= min(fractions, default=0.0) <= max(fractions, default=0.0) <= 1.0:
            raise ValueError("no fractions")
        rows = dict(zip(jobs, in_rows(fractions, found.types), strict=True))
        self._owed = dict(zip(jobs, in_rows(owed, found.types), strict=True))
        self.table, self._since = FractionTable(found.types, rows), found.since
        self._uncounted = set(map(JobId, found.uncounted))


def _pair(one: JobId, other: JobId) -> Jobs:
    return (one, other) if one < other else (other, one)


def _as_said(table: FractionTable, flat: list[float]) -> dict[Jobs, tuple[int, ...]]:
    """What is said of each row: hundredths, and less than one is not none."""
    read = {fraction: bool(fraction) + round(100.0 * fraction) for fraction in set(flat)}
    rows = in_rows(map(read.__getitem__, flat), table.types)
    return dict(zip(table.rows, rows, strict=False))


def _by_types(rows: Mapping[Jobs, Row], had: tuple[str, ...], types: tuple[str, ...]) -> dict[Jobs, Row]:
    """Rows of other types."""
    places = [had.index(name) if name in had else None for name in types]
    return {jobs: tuple(0.0 if p is None else row[p] for p in places) for jobs, row in rows.items()}


def _packed(flat: Iterable[float]) -> str:
    return base64.b64encode(array("d", flat).tobytes()).decode()


def _unpacked(text: str) -> list[float]:
    """Raises ValueError."""
    flat = array("d")
    flat.frombytes(base64.b64decode(text, validate=True))
    if not isfinite(sum(flat)):
        raise ValueError("not finite")
    return flat.tolist()
