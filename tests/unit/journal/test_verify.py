# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva journal verify` and `vacuum`."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.errors import JournalError
from controller.journal import JobRecord, Journal, JournalReader
from controller.journal.lock import JournalLock
from controller.journal.verify import verify
from controller.model import GpuId, JobId, Usage

ONE, TWO = JobId(1), JobId(2)
A0 = frozenset({GpuId("n1", 0)})
A01 = frozenset({GpuId("n1", 0), GpuId("n1", 1)})
DAY = 86400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        for job_id, gpus in ((ONE, A0), (TWO, A01)):
            journal.upsert_job(JobRecord(id=job_id, user="alice", gpus=len(gpus), submit_time=100.0))
            journal.open_slice(job_id, gpus, 110.0)
            journal.close_slice(job_id, 120.25, "its slice is over")
            journal.open_slice(job_id, gpus, 130.0)
            journal.begin_operation(job_id, "suspend", 140.0, gpus, "")
        journal.save_state("policy", [1])
        journal.save_note("gandiva", ONE, (1,))
        journal.heartbeat(5000.0)
    return path


BREACHES = [
    (
        "DROP INDEX open_slices; INSERT INTO slices VALUES (9, 1, 'n1:1', 1, 131, NULL, '')",
        "2 slices are open",
    ),
    ("UPDATE slices SET end = 100 WHERE job_id = 1 AND end IS NOT NULL", "ends before it begins"),
    ("UPDATE usage SET run_seconds = 3 WHERE job_id = 2", "job 2: its total of 3.000 s in 1 slices is less"),
    ("UPDATE usage SET gpu_seconds = 90 WHERE job_id = 2", "is more than the sum"),
    ("UPDATE usage SET slices = 0 WHERE job_id = 1", "in 0 slices is less"),
    ("UPDATE usage SET run_seconds = -1, slices = 5 WHERE job_id = 1", "totals are negative"),
    ("DELETE FROM usage WHERE job_id = 1", "has slices and no totals"),
    ("UPDATE slices SET gpus = 'n1:0 n1:0' WHERE job_id = 2", "counts 2 GPUs and names"),
    ("UPDATE slices SET gpus = 'nonsense' WHERE job_id = 1", "counts 1 GPUs and names 'nonsense'"),
    ("UPDATE jobs SET weight = 0 WHERE job_id = 1", "weight 0.0 make no sense"),
    ("UPDATE jobs SET end = 150 WHERE job_id = 1", "ended long ago"),
    ("INSERT INTO operations VALUES (9, 1, 'resume', 1, '{}', '', NULL, NULL, NULL, '')", "2 operations"),
    ("UPDATE state SET value = '{' WHERE key = 'policy'", "state policy: its value is no JSON"),
    ("UPDATE jobs SET request = x'00' WHERE job_id = 2", "jobs 2: its request is no JSON"),
    ("UPDATE notes SET note = '(1,)'", "notes 1: its note is no JSON"),
    ("UPDATE usage SET waited_seconds = -1 WHERE job_id = 1", "totals are negative"),
    ("ALTER TABLE jobs RENAME COLUMN weight TO heavy", "schema: jobs.weight is missing"),
]


def test_a_journal_that_is_in_order(path: Path) -> None:
    found = verify(path)
    assert found.problems == ()
    assert dict(found.rows) == {"jobs": 2, "slices": 4, "decisions": 0, "events": 0, "operations": 2}


@pytest.mark.parametrize(("statements", "words"), BREACHES, ids=[words for _, words in BREACHES])
def test_every_rule_is_checked(
    path: Path, statements: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(statements)
    connection.close()
    assert main(["journal", "verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert words in out and out.endswith("The journal is damaged.\n")


def test_old_slices_may_be_gone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("DELETE FROM slices WHERE end IS NOT NULL")
    connection.close()
    assert verify(path).problems == ()


def test_what_was_carried_over_into_a_new_file_is_in_order(path: Path) -> None:
    with Journal(path) as journal:
        journal.carry_over(JobId(3), Usage(seconds=500.0, gpu_seconds=1000.0, idle_since=5990.0), 6000.0)
        journal.open_slice(JobId(3), A01, 6000.0)
        journal.close_slice(JobId(3), 6010.0, "over")
    assert verify(path).problems == ()


def test_a_broken_page_is_found(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 4096)
    assert main(["journal", "verify", "--json", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0].startswith("the file: ")
    path.write_text("no database " * 1000)
    assert main(["journal", "verify", str(path)]) == 1
    assert "not a database" in capsys.readouterr().out


def test_it_works_while_a_controller_writes(path: Path) -> None:
    with Journal(path) as journal:
        journal.open_slice(JobId(3), A0, 150.0)
        journal.commit()
        assert verify(path).problems == ()
        journal.close_slice(JobId(3), 160.0, "over")
        journal.commit()
        assert verify(path).problems == ()


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "verify", str(tmp_path / "none")]) == 1
    assert "there is no journal" in capsys.readouterr().err


# -- vacuum ----------------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path, path: Path) -> Path:
    file = tmp_path / "gandiva.toml"
    file.write_text(f'[journal]\npath = "{path}"\nretention_days = 10.0\ndetail_days = 2.0\n')
    return file


def test_vacuum_deletes_what_is_old_and_gives_the_space_back(
    path: Path, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    with Journal(path) as journal:
        for _ in range(3000):
            journal.record_event(now - 3 * DAY, None, None, "old", "x" * 200)
        journal.record_event(now - DAY, None, None, "recent", "stays")
        journal.upsert_job(
            JobRecord(
                id=JobId(3), user="bob", gpus=1, submit_time=1.0, end_time=now - 11 * DAY, state="COMPLETED"
            )
        )
        journal.upsert_job(
            JobRecord(
                id=JobId(4), user="bob", gpus=1, submit_time=1.0, end_time=now - 9 * DAY, state="COMPLETED"
            )
        )
    before = path.stat().st_size
    assert main(["journal", "vacuum", "--config", str(settings)]) == 0
    assert path.stat().st_size < before / 4
    assert "rows deleted" in capsys.readouterr().out
    reader = JournalReader(path)
    assert [event.kind for event in reader.events()] == ["recent"]
    assert [row.record.id for row in reader.jobs()] == [1, 2, 4]
    assert [piece.end for piece in reader.slices(ONE)] == [None], "an open slice is never old"
    assert verify(path).problems == ()


def test_vacuum_is_refused_while_a_controller_leads(
    path: Path, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(path):
        assert main(["journal", "vacuum", "--config", str(settings)]) == 1
    assert "leads with the journal" in capsys.readouterr().err


def test_no_controller_begins_to_lead_during_a_vacuum(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from controller.journal import vacuum as module

    def look(_connection: sqlite3.Connection, _name: str) -> None:
        assert not JournalLock(path).take()
        raise sqlite3.OperationalError("seen")

    monkeypatch.setattr(module, "migrate", look)
    with pytest.raises(JournalError, match="seen"):
        module.vacuum(path, retention_days=1, detail_days=1)
    with Journal(path):
        pass


def test_vacuum_leaves_a_damaged_journal_alone(
    path: Path, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text("no database " * 1000)
    assert main(["journal", "vacuum", "--config", str(settings)]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert path.read_text().startswith("no database")
