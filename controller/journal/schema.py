# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of the journal, as a list of migrations: never change one, append another."""

import sqlite3
from contextlib import closing

from controller.errors import JournalError
from controller.journal.damage import Damaged

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE jobs (
        job_id INTEGER PRIMARY KEY,
        user TEXT NOT NULL,
        account TEXT NOT NULL,
        partition TEXT NOT NULL,
        name TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        weight REAL NOT NULL,
        submit REAL NOT NULL,
        start REAL,
        end REAL,
        state TEXT NOT NULL,
        request TEXT NOT NULL,
        moves INTEGER NOT NULL,
        suspends INTEGER NOT NULL,
        step_seconds REAL,
        exit_code INTEGER,
        peak_memory_bytes INTEGER
    );
    CREATE INDEX jobs_by_end ON jobs (end, submit);

    CREATE TABLE usage (
        job_id INTEGER PRIMARY KEY,
        run_seconds REAL NOT NULL,
        gpu_seconds REAL NOT NULL,
        slices INTEGER NOT NULL,
        gpus TEXT NOT NULL
    );

    CREATE TABLE slices (
        id INTEGER PRIMARY KEY,
        job_id INTEGER NOT NULL,
        gpus TEXT NOT NULL,
        gpu_count INTEGER NOT NULL,
        start REAL NOT NULL,
        end REAL,
        reason TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX slices_by_job ON slices (job_id, start);
    CREATE UNIQUE INDEX open_slices ON slices (job_id) WHERE end IS NULL;
    CREATE INDEX slices_by_end ON slices (end) WHERE end IS NOT NULL;

    CREATE TABLE decisions (
        id INTEGER PRIMARY KEY,
        time REAL NOT NULL,
        job_id INTEGER NOT NULL,
        action TEXT NOT NULL,
        reason TEXT NOT NULL,
        gpus TEXT NOT NULL
    );
    CREATE INDEX decisions_by_job ON decisions (job_id, id);
    CREATE INDEX decisions_by_time ON decisions (time);

    CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        time REAL NOT NULL,
        job_id INTEGER,
        node TEXT,
        kind TEXT NOT NULL,
        message TEXT NOT NULL
    );
    CREATE INDEX events_by_job ON events (job_id, id) WHERE job_id IS NOT NULL;
    CREATE INDEX events_by_time ON events (time);

    CREATE TABLE operations (
        op_id INTEGER PRIMARY KEY,
        job_id INTEGER NOT NULL,
        kind TEXT NOT NULL,
        begin REAL NOT NULL,
        detail TEXT NOT NULL,
        step TEXT NOT NULL DEFAULT '',
        step_time REAL,
        end REAL,
        outcome TEXT,
        error TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX open_operations ON operations (begin) WHERE end IS NULL;
    CREATE INDEX operations_by_end ON operations (end) WHERE end IS NOT NULL;

    CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    """,
    "ALTER TABLE jobs ADD COLUMN utilization_fraction REAL;",
    """
    ALTER TABLE usage ADD COLUMN waited_seconds REAL NOT NULL DEFAULT 0;
    ALTER TABLE usage ADD COLUMN idle_since REAL;
    UPDATE usage
        SET idle_since = (SELECT max(end) FROM slices WHERE slices.job_id = usage.job_id)
        WHERE job_id NOT IN (SELECT job_id FROM slices WHERE end IS NULL);
    UPDATE usage SET waited_seconds = max(0, coalesce(
        coalesce(idle_since, (SELECT start FROM slices WHERE slices.job_id = usage.job_id AND end IS NULL))
        - (SELECT start FROM jobs WHERE jobs.job_id = usage.job_id) - run_seconds, 0));

    CREATE TABLE notes (
        policy TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        note TEXT NOT NULL,
        PRIMARY KEY (policy, job_id)
    ) WITHOUT ROWID;
    DELETE FROM state WHERE key LIKE 'policy-state:%';
    """,
    "ALTER TABLE events ADD COLUMN gain REAL;",
    "ALTER TABLE decisions ADD COLUMN reason_code TEXT NOT NULL DEFAULT 'other';",
)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the file to the newest schema, each step in a transaction of its own.

    Raises JournalError where the file was written by a newer controller: it is left as it is. Raises Damaged
    where it is not what its version says.
    """
    connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
    version = version_of(connection)
    if version > len(MIGRATIONS):
        raise JournalError(
            f"the journal {path} was written by a newer controller (its schema is {version}, this one knows "
            f"{len(MIGRATIONS)}): install that version again, or move the file away to begin a new journal"
        )
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        with connection:
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{script};\nINSERT INTO schema_version VALUES ({number});"
            )
    if missing := missing_columns(connection):
        raise Damaged(f"it has no {missing[0]}")


def version_of(connection: sqlite3.Connection) -> int:
    """The schema's version in this file; 0: nothing is in it yet. Raises Damaged, sqlite3.Error."""
    (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    if version is None:
        return 0
    if not isinstance(version, int) or version < 1:
        raise Damaged(f"its schema version is {version!r}")
    return version


def missing_columns(connection: sqlite3.Connection) -> list[str]:
    """What the newest schema has and this file has not, as `table.column`."""
    with closing(sqlite3.connect(":memory:")) as model:
        for script in MIGRATIONS:
            model.executescript(script)
        return sorted(_columns(model) - _columns(connection))


def _columns(connection: sqlite3.Connection) -> set[str]:
    found = connection.execute(
        "SELECT tables.name || '.' || columns.name FROM sqlite_master AS tables "
        "JOIN pragma_table_info(tables.name) AS columns WHERE tables.type = 'table'"
    )
    return {name for (name,) in found}
