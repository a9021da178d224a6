# SPDX-License-Identifier: GPL-2.0-or-later
"""Is a journal what it should be? Only reads, in one transaction: a controller may go on writing."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from controller.errors import JournalError
from controller.journal.damage import garbled, is_damage
from controller.journal.reader import open_read_only, require_journal
from controller.journal.records import parse_gpus
from controller.journal.schema import MIGRATIONS, missing_columns, version_of

MAX_PROBLEMS = 20
"""Of each kind; one broken page can make thousands."""
_ROUNDING_SECONDS = 1e-3
_LATE_SECONDS = 600
"""The end of a job is known before the last operation on it has ended."""
_TABLES = ("jobs", "slices", "decisions", "events", "operations")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found."""

    path: Path
    size_bytes: int
    schema: int
    rows: tuple[tuple[str, int], ...]
    """Table, rows in it; nothing where it could not be read."""
    problems: tuple[str, ...]
    """One sentence each; empty: all is well."""


def verify(path: Path) -> Verdict:
    """Check the file itself, its schema, and what must hold between its rows.

    Raises JournalError where it cannot be opened or was written by a newer controller. Reads the whole file.
    """
    size_bytes = require_journal(path)
    try:
        with closing(open_read_only(path, busy_seconds=5.0)) as connection, garbled():
            return _verdict(connection, path, size_bytes)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise JournalError(f"cannot read the journal {path}: {error}") from error
        return Verdict(path, size_bytes, 0, (), (f"the file: {error}",))


def _verdict(connection: sqlite3.Connection, path: Path, size_bytes: int) -> Verdict:
    connection.execute("BEGIN")
    problems = [f"the file: {row[0]}" for row in connection.execute("PRAGMA integrity_check(20)")]
    problems = [] if problems == ["the file: ok"] else problems
    schema = version_of(connection)
    if schema > len(MIGRATIONS):
        raise JournalError(
            f"the journal {path} was written by a newer controller (its schema is {schema}, this one "
            f"knows {len(MIGRATIONS)}): verify it with that version"
        )
    # An older one is in order: the next start of a controller brings it up to date.
    if schema == len(MIGRATIONS):
        problems += [f"schema: {name} is missing" for name in missing_columns(connection)]
        if not problems:
            rules: list[Iterator[str]] = [_totals(connection), _gpus(connection)]
            rules += [_json(connection, table, *columns) for table, columns in _TEXTS.items()]
            for words, query in _BREACHES.items():
                problems += [words.format(*row) for row in islice(connection.execute(query), MAX_PROBLEMS)]
            for rule in rules:
                problems += islice(rule, MAX_PROBLEMS)
    return Verdict(path, size_bytes, schema, _counts(connection), tuple(problems))


def _counts(connection: sqlite3.Connection) -> tuple[tuple[str, int], ...]:
    found = []
    for table in _TABLES:
        with suppress(sqlite3.Error):
            (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            found.append((table, count))
    return tuple(found)


# -- rules ----------------------------------------------------------------------------------------------


def _totals(connection: sqlite3.Connection) -> Iterator[str]:
    """What a job has used is the sum of its slices; at least that, where old slices were deleted."""
    found = connection.execute(
        """
        SELECT job_id, run_seconds, gpu_seconds, usage.slices,
            coalesce(n, 0), coalesce(run, 0), coalesce(gpu, 0)
        FROM usage LEFT JOIN (
            SELECT job_id, count(*) AS n, sum(end - start) AS run, sum((end - start) * gpu_count) AS gpu
            FROM slices NOT INDEXED WHERE end IS NOT NULL GROUP BY job_id
        ) USING (job_id)
        """
    )
    for job_id, run, gpu, counted, n, run_sum, gpu_sum in found:
        slack = _ROUNDING_SECONDS * max(1, n)
        if n > counted or run_sum > run + slack or gpu_sum > gpu + slack * 64:
            words = "less"
        elif n == counted and (run > run_sum + slack or gpu > gpu_sum + slack * 64):
            words = "more"
        else:
            continue
        yield (
            f"job {job_id}: its total of {run:.3f} s in {counted} slices is {words} than the sum of its "
            f"slices, {run_sum:.3f} s in {n}"
        )


def _gpus(connection: sqlite3.Connection) -> Iterator[str]:
    """Slices name as many GPUs as they count, each once."""
    for number, job_id, names, count in connection.execute("SELECT id, job_id, gpus, gpu_count FROM slices"):
        try:
            gpus = parse_gpus(names)
        except ValueError:
            gpus = ()
        if len(set(gpus)) != count or len(gpus) != count:
            yield f"job {job_id}: slice {number} counts {count} GPUs and names {names[:200]!r}"


def _json(connection: sqlite3.Connection, table: str, key: str, column: str) -> Iterator[str]:
    for name, text in connection.execute(f"SELECT {key}, {column} FROM {table}"):
        try:
            json.loads(text)
        except (ValueError, TypeError, RecursionError):
            yield f"{table} {name}: its {column} is no JSON"


_TEXTS = {"state": ("key", "value"), "notes": ("job_id", "note")}
_TEXTS |= {"jobs": ("job_id", "request"), "operations": ("op_id", "detail")}
"""Columns of JSON, by table, behind one that names the row."""
_BREACHES = {
    "job {0}: {1} slices are open at once": (
        "SELECT job_id, count(*) FROM slices NOT INDEXED WHERE end IS NULL "
        "GROUP BY job_id HAVING count(*) > 1"
    ),
    "job {0}: slice {1} ends before it begins ({2} to {3}), or is on no GPU": (
        "SELECT job_id, id, start, end FROM slices NOT INDEXED WHERE end < start OR gpu_count < 1"
    ),
    "job {0}: has slices and no totals": (
        "SELECT DISTINCT job_id FROM slices WHERE job_id NOT IN (SELECT job_id FROM usage)"
    ),
    "job {0}: its totals are negative ({1} s, {2} GPU-seconds, {3} s waited, {4} slices)": (
        "SELECT job_id, run_seconds, gpu_seconds, waited_seconds, slices FROM usage "
        "WHERE run_seconds < 0 OR gpu_seconds < 0 OR waited_seconds < 0 OR slices < 0"
    ),
    "job {0}: {1} GPUs, weight {2} make no sense": (
        "SELECT job_id, gpus, weight FROM jobs WHERE gpus < 1 OR weight <= 0"
    ),
    "job {0}: ended long ago, and a slice of it is open": (
        "SELECT jobs.job_id FROM jobs JOIN slices ON slices.job_id = jobs.job_id "
        "WHERE slices.end IS NULL AND jobs.end < "
        f"(SELECT max(CAST(value AS REAL)) FROM state WHERE key = 'heartbeat') - {_LATE_SECONDS}"
    ),
    "job {0}: {1} operations are under way at once": (
        "SELECT job_id, count(*) FROM operations NOT INDEXED WHERE end IS NULL GROUP BY job_id "
        "HAVING count(*) > 1"
    ),
}
"""What is said of each row that a query finds."""
