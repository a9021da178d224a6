# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import JournalError
from controller.journal import JobFilter, JobRecord, Journal, JournalReader, gpu_names, parse_gpus
from controller.model import GpuId, JobId

ONE = JobId(1)
TWO = JobId(2)
A0 = frozenset({GpuId("n1", 0)})
A01 = frozenset({GpuId("n1", 0), GpuId("n1", 1)})
DAY = 86400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def record(job_id: JobId = ONE, **changes: Any) -> JobRecord:
    return JobRecord(**{"id": job_id, "user": "alice", "gpus": 1, "submit_time": 100.0, **changes})


def only(path: Path, now: float = 1000.0, which: JobFilter | None = None) -> Any:
    (row,) = JournalReader(path).jobs(which, now=now)
    return row


# -- accounting --------------------------------------------------------------------------------


def test_slices_add_up_to_run_and_gpu_seconds(path: Path) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record(gpus=2))
        journal.open_slice(ONE, A01, 110)
        journal.close_slice(ONE, 120, "slice over")
        journal.open_slice(ONE, A01, 150)
        journal.close_slice(ONE, 155, "ended")
        totals = journal.totals()[ONE]
        assert (totals.run_seconds, totals.gpu_seconds, totals.slices) == (15, 30, 2)
    row = only(path)
    assert (row.run_seconds, row.gpu_seconds, row.slices, row.on_gpus) == (15, 30, 2, False)


def test_an_open_slice_counts_in_reports_up_to_now_but_not_in_totals(path: Path) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record(gpus=2))
        journal.open_slice(ONE, A01, 900)
        assert journal.totals()[ONE].gpu_seconds == 0
        row = only(path, now=1000)
    assert (row.run_seconds, row.gpu_seconds, row.slices, row.on_gpus) == (100, 200, 1, True)
    assert row.last_gpus == A01


def test_opening_a_second_slice_ends_the_first(path: Path) -> None:
    elsewhere = frozenset({GpuId("n2", 3)})
    with Journal(path) as journal:
        journal.upsert_job(record())
        journal.open_slice(ONE, A0, 100)
        journal.open_slice(ONE, elsewhere, 130)
        journal.close_slice(ONE, 140, "ended")
    first, second = JournalReader(path).slices(ONE)
    assert (first.start, first.end, first.gpus) == (100, 130, A0)
    assert (second.start, second.end, second.gpus, second.reason) == (130, 140, elsewhere, "ended")
    assert only(path).last_gpus == elsewhere


def test_closing_what_is_not_open_changes_nothing(path: Path) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record())
        journal.close_slice(ONE, 500, "ended")
        assert journal.totals()[ONE].slices == 0


def test_a_clock_set_back_never_makes_time_negative(path: Path) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record())
        journal.open_slice(ONE, A0, 200)
        journal.close_slice(ONE, 150, "slice over")
        assert journal.totals()[ONE].run_seconds == 0
    (piece,) = JournalReader(path).slices(ONE)
    assert (piece.start, piece.end) == (200, 200)


def test_after_a_crash_open_slices_end_at_the_last_heartbeat(path: Path) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record())
        journal.open_slice(ONE, A0, 200)
        journal.heartbeat(230)
    with Journal(path) as journal:
        heartbeat = journal.last_heartbeat()
        assert heartbeat == 230
        assert journal.close_open_slices(heartbeat) == {ONE: A0}
        assert journal.totals()[ONE].run_seconds == 30
        assert journal.close_open_slices(999) == {}


@given(
    st.lists(
        st.tuples(st.sampled_from(["open", "close"]), st.integers(1, 3), st.integers(0, 50)), max_size=40
    )
)
def test_totals_always_equal_the_sum_of_closed_slices(steps: list[tuple[str, int, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "j") as journal:
        now = 0.0
        for what, job, wait in steps:
            now += wait
            if what == "open":
                journal.open_slice(JobId(job), A01, now)
            else:
                journal.close_slice(JobId(job), now, "x")
        journal.commit()
        totals, reader = journal.totals(), JournalReader(journal.path)
        for job_id, total in totals.items():
            closed = [s for s in reader.slices(job_id, 1000) if s.end is not None]
            assert total.slices == len(closed)
            assert total.gpu_seconds == sum(2 * (s.end - s.start) for s in closed if s.end is not None)


# -- jobs --------------------------------------------------------------------------------------


def test_a_later_record_changes_what_it_names_and_keeps_the_rest(path: Path) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record(start_time=120.0, step_seconds=0.5, state="RUNNING"))
        journal.upsert_job(
            record(submit_time=300.0, start_time=310.0, moves=2, state="COMPLETED", end_time=400.0)
        )
        journal.upsert_job(record(moves=1, state="COMPLETED", end_time=390.0))
    kept = only(path).record
    assert (kept.submit_time, kept.start_time) == (100, 120), "a requeue must not hide the first submission"
    assert (kept.step_seconds, kept.moves, kept.state, kept.end_time) == (0.5, 2, "COMPLETED", 400)


@pytest.mark.parametrize(
    ("which", "found"),
    [
        (JobFilter(), [1, 2, 3]),
        (JobFilter(job_ids=(2, 77)), [2]),
        (JobFilter(users=("bob",)), [2, 3]),
        (JobFilter(users=("bob",), states=("COMPLETED",)), [2]),
        (JobFilter(accounts=("physics",)), [3]),
        (JobFilter(partitions=("gpu",)), [1, 2, 3]),
        (JobFilter(start=250), [1, 3]),
        (JobFilter(end=150), [1]),
        (JobFilter(limit=2), [2, 3]),
        (JobFilter(limit=0), []),
        (JobFilter(users=("' OR 1=1 --",)), []),
    ],
)
def test_filters(path: Path, which: JobFilter, found: list[int]) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record(ONE, partition="gpu"))
        ended = {"submit_time": 200.0, "end_time": 240.0, "state": "COMPLETED"}
        journal.upsert_job(record(TWO, user="bob", partition="gpu", **ended))
        journal.upsert_job(
            record(JobId(3), user="bob", partition="gpu", account="physics", submit_time=260.0)
        )
    assert [row.record.id for row in JournalReader(path).jobs(which)] == found


def test_hostile_text_is_stored_bounded_and_does_no_harm(path: Path) -> None:
    name = "'; DROP TABLE jobs; --\0\udcff" + "x" * 10_000
    with Journal(path) as journal:
        journal.upsert_job(record(name=name))
        journal.record_decision(1, ONE, "wait", name, A0)
    kept = only(path).record.name
    assert kept.startswith("'; DROP TABLE jobs; --") and len(kept) == 2000 and "\0" not in kept


# -- decisions and events ----------------------------------------------------------------------


def test_a_decision_repeated_at_every_turn_is_recorded_once(path: Path) -> None:
    with Journal(path) as journal:
        for turn in range(5):
            journal.record_decision(turn, ONE, "wait", "no free GPU", frozenset())
        journal.record_decision(5, ONE, "start", "a GPU became free", A0)
        journal.record_decision(6, ONE, "wait", "no free GPU", frozenset())
    decisions = JournalReader(path).decisions(ONE)
    assert [(d.time, d.action, d.gpus) for d in decisions] == [
        (0, "wait", frozenset()),
        (5, "start", A0),
        (6, "wait", frozenset()),
    ]


def test_the_last_reason_is_part_of_the_job(path: Path) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record())
        journal.record_decision(1, ONE, "wait", "first", A0)
        journal.record_decision(2, ONE, "start", "second", A0)
    assert only(path).reason == "second"


def test_events_of_one_job_and_of_all(path: Path) -> None:
    with Journal(path) as journal:
        journal.record_event(1, None, "n1", "node_lost", "no answer")
        journal.record_event(2, ONE, "n1", "suspend_failed", "rank 1 did not stop")
    reader = JournalReader(path)
    assert [e.kind for e in reader.events()] == ["node_lost", "suspend_failed"]
    assert [e.message for e in reader.events(ONE)] == ["rank 1 did not stop"]
    assert [e.kind for e in reader.events(limit=1)] == ["suspend_failed"], "the newest are kept"


# -- operations and state ----------------------------------------------------------------------


def test_open_operations_are_found_again_with_their_last_step(path: Path) -> None:
    with Journal(path) as journal:
        journal.begin_operation(ONE, "suspend", 10, A0, "its slice is over")
        journal.begin_operation(TWO, "start", 11, A0, "free")
        journal.step_operation(1, "yielded", 12)
        journal.end_operation(2, "done", 13)
    with Journal(path) as journal:
        (found,) = journal.open_operations()
    assert (found.op_id, found.job_id, found.kind, found.step) == (1, ONE, "suspend", "yielded")


def test_operation_ids_are_never_used_twice(path: Path) -> None:
    with Journal(path) as journal:
        first = journal.begin_operation(ONE, "suspend", 1, A0, "")
        second = journal.begin_operation(ONE, "suspend", 1, A0, "")
    with Journal(path) as journal:
        assert first < second < journal.begin_operation(ONE, "suspend", 1, A0, "")


KILLED = """
import os, signal, sys
from pathlib import Path
from controller.journal import Journal
from controller.model import JobId
journal = Journal(Path(sys.argv[1]))
journal.save_state("ledger", {"1": 2.5})
journal.begin_operation(JobId(1), "suspend", 10, frozenset(), "")
journal.save_state("never", "committed")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_begun_survives_kill_9(path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    with Journal(path) as journal:
        assert [op.op_id for op in journal.open_operations()] == [1]
        assert journal.load_state("ledger") == {"1": 2.5}
        assert journal.load_state("never") is None


def test_state_is_replaced(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_state("policy", {"turn": 1})
        journal.save_state("policy", {"turn": 2})
        assert journal.load_state("policy") == {"turn": 2}
        assert journal.load_state("unknown") is None


# -- trouble -----------------------------------------------------------------------------------


def test_a_second_controller_is_refused(path: Path) -> None:
    with Journal(path), pytest.raises(JournalError, match=rf"another controller \(pid {os.getpid()}\)"):
        Journal(path)
    Journal(path).close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"nowhere/j\.sqlite: No such file .*journal\.path"):
        Journal(tmp_path / "nowhere" / "j.sqlite")


def test_a_damaged_file_is_set_aside_and_a_new_one_begun(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with Journal(path) as journal:
        (message,) = journal.messages
        assert "damaged" in message and "new one begun" in message
        journal.upsert_job(record())
    assert only(path).record.user == "alice"
    (aside,) = path.parent.glob("journal.sqlite.damaged-*")
    assert aside.read_bytes().startswith(b"this is no database")


def test_damage_inside_the_file_is_found(path: Path) -> None:
    with Journal(path) as journal:
        for number in range(2000):
            journal.record_event(number, None, None, "kind", "x" * 50)
    raw = bytearray(path.read_bytes())
    raw[8192:16384] = os.urandom(8192)
    path.write_bytes(raw)
    with Journal(path) as journal:
        assert len(journal.messages) == 1


def fill_up(journal: Journal) -> None:
    """SQLite's own page limit stands in for a full file system: the same error, SQLITE_FULL."""
    pages = journal.file.connection.execute("PRAGMA page_count").fetchone()[0]
    journal.file.connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_named_and_nothing_is_lost_once_there_is_room(path: Path) -> None:
    with Journal(path) as journal:
        fill_up(journal)
        journal.upsert_job(record(name="x" * 2000))
        for number in range(500):
            journal.record_event(number, ONE, None, "kind", "x" * 500)
        with pytest.raises(JournalError, match="free space"):
            journal.commit()
        journal.file.connection.execute("PRAGMA max_page_count = 100000")
        journal.commit()
    assert len(JournalReader(path).events(ONE, 1000)) == 500
    assert only(path).record.id == ONE


def test_a_locked_file_is_reported_and_written_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.journal.file.BUSY_SECONDS", 0.01)
    with Journal(path) as journal:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        journal.upsert_job(record())
        with pytest.raises(JournalError, match="locked"):
            journal.commit()
        other.execute("ROLLBACK")
        other.close()
        journal.commit()
        assert only(path).record.id == ONE


def test_a_row_that_cannot_be_stored_does_not_hold_up_the_others(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(path) as journal:
        journal.upsert_job(record(JobId(2**70)))
        journal.upsert_job(record())
        journal.commit()
    assert only(path).record.id == ONE
    assert "cannot be stored" in caplog.text


def test_memory_stays_bounded_while_the_disk_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.journal.store.MAX_QUEUED", 300)
    with Journal(path) as journal:
        journal.open_slice(ONE, A0, 1)
        for turn in range(1000):
            journal.record_event(turn, None, None, "kind", "message")
            journal.heartbeat(float(turn))
        assert len(journal.queue) <= 300
        journal.close_slice(ONE, 11, "ended")
        assert journal.totals()[ONE].run_seconds == 10, "accounting is never shed"
        assert journal.last_heartbeat() == 999


def test_migrations_are_applied_one_by_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from controller.journal import schema

    Journal(path).close()
    later = (*schema.MIGRATIONS, "ALTER TABLE jobs ADD COLUMN color TEXT")
    monkeypatch.setattr(schema, "MIGRATIONS", later)
    for _ in range(2):
        Journal(path).close()
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(jobs)")]
        versions = [row[0] for row in connection.execute("SELECT version FROM schema_version")]
    connection.close()
    assert columns.count("color") == 1
    assert versions == list(range(1, len(later) + 1))


def test_reading_without_a_journal(path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        JournalReader(path).jobs()


# -- retention ---------------------------------------------------------------------------------


def test_old_details_go_before_old_jobs_and_living_jobs_stay(path: Path) -> None:
    with Journal(path, retention_days=10, detail_days=2) as journal:
        journal.upsert_job(record(ONE, end_time=1 * DAY, submit_time=0.0, state="COMPLETED"))
        journal.upsert_job(record(TWO, submit_time=0.0))
        for job_id in (ONE, TWO):
            journal.save_note("gandiva", job_id, (1,))
            journal.open_slice(job_id, A0, 10)
            journal.close_slice(job_id, 20, "over")
            journal.record_decision(10, job_id, "start", "free", A0)
        journal.record_event(10, TWO, None, "kind", "old")
        journal.open_slice(TWO, A0, 30)
        journal.heartbeat(5 * DAY)
        journal.commit()
        reader = JournalReader(path)
        assert [row.record.id for row in reader.jobs()] == [1, 2]
        assert reader.decisions(TWO) == [] and reader.events() == []
        assert [s.end for s in reader.slices(TWO)] == [None], "the open slice stays"
        journal.heartbeat(20 * DAY)
        journal.commit()
        (row,) = reader.jobs(now=40.0)
        assert (row.record.id, row.run_seconds, row.slices) == (TWO, 20, 2), "totals outlive their details"
        noted = journal.read("SELECT job_id FROM notes")
        assert noted == [(TWO,)], "notes go with their job"


# -- names -------------------------------------------------------------------------------------


def test_gpu_names_round_trip() -> None:
    gpus = frozenset({GpuId("n10", 3), GpuId("n-1.site", 0)})
    assert frozenset(parse_gpus(gpu_names(gpus))) == gpus
    assert parse_gpus("") == ()
