# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever is found in place of the journal, a controller starts, says so once, and goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.errors import JournalError
from controller.journal import JobRecord, Journal, JournalReader
from controller.journal.verify import verify
from controller.model import GpuId, JobId

ONE = JobId(1)
A0 = frozenset({GpuId("n1", 0)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def fill(journal: Journal, jobs: int = 150) -> None:
    for number in range(1, jobs):
        journal.upsert_job(
            JobRecord(id=JobId(number), user="alice", gpus=1, submit_time=100.0, name="n" * 40)
        )
        journal.open_slice(JobId(number), A0, 110.0)
        journal.close_slice(JobId(number), 120.0, "its slice is over")
        journal.record_decision(120.0, JobId(number), "suspend", "its slice is over", A0)
    journal.heartbeat(120.0)
    journal.commit()


def aside(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.glob("*.damaged-*"))


def works(path: Path) -> list[str]:
    """Opens it, uses it, and says what was told."""
    with Journal(path) as journal:
        journal.upsert_job(JobRecord(id=JobId(9999), user="bob", gpus=1, submit_time=100.0))
        journal.open_slice(JobId(9999), A0, 200.0)
        journal.close_slice(JobId(9999), 210.0, "over")
        assert journal.totals()[JobId(9999)].run_seconds == 10
        told = list(journal.messages)
    assert verify(path).problems == ()
    return told


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def first_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(random.Random(1).randbytes(4096))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def cut_within_a_page(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096 + 100)


def text(path: Path) -> None:
    path.write_text("this is no database " * 1000)


def a_database_of_another_program(path: Path) -> None:
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE jobs (name TEXT)")
    other.execute("INSERT INTO jobs VALUES ('not ours')")
    other.commit()
    other.close()


def a_table_dropped(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("DROP TABLE slices")
    other.commit()
    other.close()


def a_strange_version(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("UPDATE schema_version SET version = 'one'")
    other.commit()
    other.close()


@pytest.mark.parametrize(
    "damage",
    [
        zeros,
        first_page,
        cut_in_half,
        cut_within_a_page,
        text,
        a_database_of_another_program,
        a_table_dropped,
        a_strange_version,
    ],
)
def test_what_is_damaged_is_set_aside_with_one_message(path: Path, damage: Callable[[Path], None]) -> None:
    with Journal(path) as journal:
        fill(journal)
    damage(path)
    (message,) = works(path)
    (name,) = aside(path)
    assert name in message and "from what Slurm and the nodes say" in message
    (event,) = JournalReader(path).events()
    assert (event.kind, event.message) == ("journal", message)
    with Journal(path) as journal:
        assert journal.messages == [], "and that was all"


def test_two_damaged_journals_within_a_second_are_both_kept(path: Path) -> None:
    for _ in range(3):
        path.write_text("no database " * 1000)
        Journal(path).close()
    assert len(aside(path)) == 3


def test_bytes_overwritten_anywhere_never_keep_a_controller_from_working(path: Path) -> None:
    """Where SQLite notices, the file is replaced; where it cannot (a name, a number), it is used."""
    with Journal(path) as journal:
        fill(journal)
    good = path.read_bytes()
    rng = random.Random(20261121)
    replaced = 0
    for _ in range(25):
        for part in ("", "-wal", "-shm"):
            path.with_name(path.name + part).unlink(missing_ok=True)
        raw = bytearray(good)
        for _ in range(rng.choice([1, 20, 400])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        path.write_bytes(raw)
        with Journal(path) as journal:
            journal.load_state("heartbeat"), journal.last_heartbeat(), journal.open_operations()
            journal.close_open_slices(130.0)
            journal.totals()
            journal.upsert_job(JobRecord(id=JobId(9999), user="bob", gpus=1, submit_time=100.0))
            journal.begin_operation(JobId(9999), "place", 1.0, A0, "")
            replaced += len(journal.messages)
        assert [row.record.user for row in JournalReader(path).jobs() if row.record.id == 9999] == ["bob"]
    assert replaced > 5


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from controller.journal import Journal
from tests.unit.journal.test_damage import fill
journal = Journal(Path(sys.argv[1]))
fill(journal)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_while_writing(path: Path) -> Path:
    """A journal whose writer died: all it wrote is in the write-ahead log. Returns that."""
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    log = path.with_name(path.name + "-wal")
    assert log.stat().st_size > 50_000
    return log


@pytest.mark.parametrize("where", ["header", "middle", "end", "cut", "all"])
def test_a_damaged_write_ahead_log_costs_what_was_in_it(path: Path, where: str) -> None:
    log = killed_while_writing(path)
    raw = bytearray(log.read_bytes())
    if where == "cut":
        del raw[len(raw) // 2 :]
    elif where == "all":
        raw[:] = random.Random(2).randbytes(len(raw))
    else:
        at = {"header": 0, "middle": len(raw) // 2, "end": len(raw) - 200}[where]
        raw[at : at + 100] = random.Random(3).randbytes(100)
    log.write_bytes(raw)
    works(path)


def test_an_undamaged_write_ahead_log_is_used(path: Path) -> None:
    killed_while_writing(path)
    assert works(path) == []
    assert len(JournalReader(path).jobs()) == 150


def test_an_empty_file_is_a_new_journal(path: Path) -> None:
    path.touch()
    assert works(path) == [] and aside(path) == []


# -- while it is used ------------------------------------------------------------------------------------


def test_damage_that_shows_while_it_is_used_costs_no_row_that_waits(path: Path) -> None:
    with Journal(path) as journal:
        fill(journal)
        journal.file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        zeros(path)
        journal.file.connection.execute("PRAGMA cache_size = 0")
        journal.upsert_job(JobRecord(id=ONE, user="carol", gpus=1, submit_time=100.0))
        journal.commit()
        (message,) = journal.messages
        assert "damaged" in message and journal.generation == 1
        (row,) = JournalReader(path).jobs()
        assert row.record.user == "carol"
        journal.commit()
        assert journal.generation == 1
    assert len(aside(path)) == 1


def test_a_journal_that_is_removed_is_begun_anew(path: Path) -> None:
    with Journal(path) as journal:
        fill(journal)
        path.unlink()
        journal.upsert_job(JobRecord(id=ONE, user="carol", gpus=1, submit_time=100.0))
        journal.commit()
        (message,) = journal.messages
        assert "was removed" in message and journal.generation == 1
    (row,) = JournalReader(path).jobs()
    assert row.record.user == "carol"


def test_what_is_no_json_counts_as_not_there(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Journal(path) as journal:
        journal.save_state("policy", {"turn": 1})
        journal.begin_operation(ONE, "suspend", 1.0, A0, "")
        journal.save_note("gandiva", ONE, (1,))
        journal.save_note("gandiva", JobId(2), (2,))
        journal.heartbeat(5.0)
    other = sqlite3.connect(path)
    other.execute("UPDATE state SET value = '{\"turn\":' WHERE key = 'policy'")
    other.execute("UPDATE state SET value = '[1]' WHERE key = 'heartbeat'")
    other.execute("UPDATE operations SET detail = 'x'")
    other.execute("UPDATE notes SET note = '(1,)' WHERE job_id = 1")
    other.commit()
    other.close()
    with Journal(path) as journal:
        assert journal.load_state("policy") is None
        assert journal.notes("gandiva") == {JobId(2): (2,)}
        assert journal.last_heartbeat() is None
        (operation,) = journal.open_operations()
        assert operation.kind == "suspend"
    assert "state policy" in caplog.text


def test_a_damaged_journal_that_cannot_be_moved_away_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("no database " * 1000)

    def refuse(*_arguments: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(JournalError, match="cannot be moved away: Permission denied"):
        Journal(path)


def test_the_check_at_the_start_is_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(path) as journal:
        fill(journal, jobs=2000)
    monkeypatch.setattr("controller.journal.damage.CHECK_SECONDS", -1.0)
    with caplog.at_level("INFO"), Journal(path) as journal:
        assert journal.messages == []
        assert journal.last_heartbeat() == 120
    assert "no damage seen in" in caplog.text


def test_places_that_make_no_sense_are_left_out_and_a_controller_starts(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One byte that has changed, which no check of SQLite's minds, must not keep the controller from starting
    ever again."""
    one, two = JobId(1), JobId(2)
    with Journal(path) as journal:
        for job_id in (one, two):
            journal.open_slice(job_id, frozenset({GpuId("n1", int(job_id))}), 10.0)
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE slices SET gpus = 'n1:q' WHERE job_id = 1")
    with Journal(path) as journal:
        assert journal.close_open_slices(20.0) == {one: frozenset(), two: frozenset({GpuId("n1", 2)})}
    assert "job 1: no GPUs: 'n1:q'" in caplog.text
