# SPDX-License-Identifier: GPL-2.0-or-later
"""Journals of every older controller are taken over; of `schemas/vN.sql` each stands for files that exist."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from controller.errors import JournalError
from controller.journal import Journal, JournalReader, schema
from controller.journal.verify import verify
from controller.model import GpuId, JobId

DUMPS = Path(__file__).parent / "schemas"


def restore(path: Path, version: int) -> None:
    connection = sqlite3.connect(path)
    connection.executescript((DUMPS / f"v{version}.sql").read_text(encoding="utf-8"))
    connection.close()


def test_there_is_a_dump_of_every_schema() -> None:
    """A migration comes with the dump of a journal with data from after it."""
    found = sorted(int(file.stem[1:]) for file in DUMPS.glob("v*.sql"))
    assert found == list(range(1, len(schema.MIGRATIONS) + 1))


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS) + 1))
def test_a_journal_of_every_schema_is_taken_over_with_its_data(tmp_path: Path, version: int) -> None:
    path = tmp_path / "journal.sqlite"
    restore(path, version)
    assert verify(path).problems == ()
    with Journal(path) as journal:
        assert journal.messages == []
        assert journal.last_heartbeat() == 1090.0
        assert journal.load_state("policy-state:gandiva") is None, "no policy reads it"
        assert journal.load_state("policy:gandiva") == ({"turn": 2} if version >= 3 else None)
        assert journal.notes("gandiva") == ({JobId(7): (1, 2.5, "n1")} if version >= 3 else {})
        (operation,) = journal.open_operations()
        assert (operation.job_id, operation.kind, operation.step) == (7, "suspend", "offload")
        assert list(journal.close_open_slices(1090.0)) == [7]
        totals = journal.totals()[JobId(7)]
        assert (totals.run_seconds, totals.gpu_seconds, totals.slices) == (50, 100, 2)
        assert (totals.moves, totals.suspends, totals.waited_seconds) == (1, 3, 30)
    rows = {row.record.id: row for row in JournalReader(path).jobs(now=2000.0)}
    assert rows[JobId(7)].record.name == "résnet 'x'"
    assert rows[JobId(8)].record.peak_memory_bytes == 2**33
    assert rows[JobId(8)].last_gpus == {GpuId("n1", 0)}
    assert len(JournalReader(path).events()) == 2
    (decision,) = JournalReader(path).decisions(JobId(7))
    assert decision.reason_code == ("turn-over" if version >= 5 else "other"), "older ones had none"
    found = verify(path)
    assert (found.problems, found.schema) == ((), len(schema.MIGRATIONS))


def test_a_reader_says_that_the_journal_is_older_than_it(tmp_path: Path) -> None:
    restore(tmp_path / "journal.sqlite", 3)
    with pytest.raises(JournalError, match=r"has schema 3, and this program reads \d+: start the new contr"):
        JournalReader(tmp_path / "journal.sqlite").jobs()


def test_a_reader_shows_the_jobs_of_a_newer_journal(tmp_path: Path) -> None:
    """A command on a login node that is upgraded after the controller."""
    path = tmp_path / "journal.sqlite"
    restore(path, len(schema.MIGRATIONS))
    before = JournalReader(path).jobs(now=2000.0)
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE jobs ADD COLUMN energy_joules REAL DEFAULT 5.0")
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    connection.close()
    assert JournalReader(path).jobs(now=2000.0) == before != []


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.sqlite"
    restore(path, 1)
    half = "ALTER TABLE jobs ADD COLUMN color TEXT; SELECT unheard_of(1)"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, half))
    with pytest.raises(JournalError, match="no such function"):
        Journal(path)
    assert list(tmp_path.glob("*.damaged*")) == []
    monkeypatch.undo()
    with Journal(path) as journal:
        assert journal.last_heartbeat() == 1090.0


def test_the_journal_of_a_newer_controller_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    restore(path, 1)
    newer = len(schema.MIGRATIONS) + 1
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO schema_version VALUES (?)", (newer,))
    connection.execute("ALTER TABLE jobs ADD COLUMN color TEXT")
    connection.commit()
    connection.close()
    words = rf"newer controller \(its schema is {newer}, this one knows {newer - 1}\)"
    with pytest.raises(JournalError, match=words):
        Journal(path)
    with pytest.raises(JournalError, match=words):
        verify(path)
    assert list(tmp_path.glob("*.damaged*")) == []
