# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk that is full costs what cannot be written, and never a job its GPUs."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.errors import JournalError
from controller.journal import Journal, JournalReader
from controller.journal.file import JournalFile
from controller.journal.store import Store
from controller.journal.verify import verify
from controller.model import GpuId, JobId

ONE, TWO = JobId(1), JobId(2)
A0 = frozenset({GpuId("n1", 0)})
MANY = frozenset(GpuId("n1", ordinal) for ordinal in range(10_000))
"""Names of about 100 kB."""


class Disk:
    """A file system of half a megabyte."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.sqlite"
        self._filler = folder / "filler"

    def fill(self) -> None:
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while True:
                os.write(descriptor, b"x" * 4096)
        except OSError:
            os.close(descriptor)

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system here; the live tests do")
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


KILLED = """
import os, signal, sys
from pathlib import Path
from controller.journal import JobRecord, Journal
from controller.model import GpuId, JobId
journal = Journal(Path(sys.argv[1]))
journal.upsert_job(JobRecord(id=JobId(1), user="alice", gpus=1, submit_time=100.0))
journal.open_slice(JobId(1), frozenset({GpuId("n1", 0)}), 110.0)
journal.save_state("policy", {"turn": 3})
journal.begin_operation(JobId(1), "suspend", 115.0, frozenset(), "")
journal.heartbeat(120.0)
journal.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(disk: Disk) -> None:
    """A controller was killed in the middle of its work, and then the disk was full."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(disk.path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    disk.fill()


def work(journal: Journal, job_id: JobId, start: float) -> None:
    """What a switch writes. None of it may fail."""
    operation = journal.begin_operation(job_id, "resume", start, A0, "x" * 5000)
    journal.step_operation(operation, "claim", start)
    journal.open_slice(job_id, A0, start)
    journal.close_slice(job_id, start + 10, "its slice is over")
    journal.end_operation(operation, "done", start + 10)


def test_a_controller_starts_on_a_full_disk_knows_what_was_and_writes_when_there_is_room(disk: Disk) -> None:
    killed(disk)
    with Journal(disk.path) as journal:
        assert journal.load_state("policy") == {"turn": 3}
        assert [operation.op_id for operation in journal.open_operations()] == [1]
        assert list(journal.close_open_slices(120.0)) == [1]
        for number in range(20):
            work(journal, TWO, 200.0 + 20 * number)
        with pytest.raises(JournalError, match=r"full|I/O error"):
            journal.commit()
        disk.free()
        journal.commit()
        assert journal.totals()[TWO].run_seconds == 200
        assert journal.messages == []
    assert verify(disk.path).problems == ()
    assert [row.record.user for row in JournalReader(disk.path).jobs()] == ["alice"]


def test_where_even_the_index_of_the_log_has_no_room_the_old_file_is_read(disk: Disk) -> None:
    killed(disk)
    disk.path.with_name("journal.sqlite-shm").unlink()
    disk.fill()
    with Journal(disk.path) as journal:
        assert journal.load_state("policy") == {"turn": 3}
        work(journal, TWO, 200.0)
        with pytest.raises(JournalError):
            journal.commit()
        assert journal.load_state("policy") == {"turn": 3}, "still"
        disk.free()
        journal.commit()
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            sqlite3.connect(f"file:{disk.path}?mode=ro", uri=True).execute("DELETE FROM jobs")
    assert JournalReader(disk.path).slices(TWO) != []


def test_a_damaged_journal_on_a_full_disk_is_replaced_when_there_is_room(disk: Disk) -> None:
    disk.path.write_bytes(b"no database " * 1000)
    disk.fill()
    with Journal(disk.path) as journal:
        assert len(journal.messages) == 1
        assert journal.last_heartbeat() is None
        work(journal, TWO, 200.0)
        with pytest.raises(JournalError):
            journal.commit()
        disk.free()
        journal.commit()
        assert len(journal.messages) == 1
    assert [piece.end for piece in JournalReader(disk.path).slices(TWO)] == [210.0]
    assert verify(disk.path).problems == ()


def test_what_a_controller_before_left_open_ends_when_its_journal_can_be_read_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(disk)
    connect = JournalFile._connect

    def unreadable(self: JournalFile, *, exclusive: bool = False) -> sqlite3.Connection:
        if (disk.path.parent / "filler").exists():
            raise sqlite3.OperationalError("disk I/O error")
        return connect(self, exclusive=exclusive)

    monkeypatch.setattr(JournalFile, "_connect", unreadable)
    with Journal(disk.path) as journal:
        assert journal.open_operations() == []
        work(journal, ONE, 200.0)
        with pytest.raises(JournalError, match="disk"):
            journal.commit()
        disk.free()
        journal.commit()
        assert journal.open_operations() == []
    pieces = JournalReader(disk.path).slices(ONE)
    assert [(piece.start, piece.end) for piece in pieces] == [(110, 120), (200, 210)]
    assert verify(disk.path).problems == ()


def test_an_operation_is_begun_on_a_full_disk_and_recorded_later(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        pages = journal.file.connection.execute("PRAGMA page_count").fetchone()[0]
        journal.file.connection.execute(f"PRAGMA max_page_count = {pages}")
        journal.begin_operation(ONE, "suspend", 1, MANY, "its slice is over")
        journal.step_operation(1, "pause", 2)
        with pytest.raises(JournalError, match="free space"):
            journal.commit()
        journal.file.connection.execute("PRAGMA max_page_count = 100000")
        journal.commit()
        (operation,) = journal.open_operations()
        assert (operation.op_id, operation.step) == (1, "pause")


def test_memory_is_bounded_even_when_only_accounting_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.journal.store.MAX_QUEUED", 100)

    def refuse(_store: Store) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "_write_queue", refuse)
    with Journal(tmp_path / "journal.sqlite") as journal:
        for number in range(2000):
            journal.open_slice(JobId(number), A0, 1.0)
            assert len(journal.queue) <= 300
            with pytest.raises(JournalError):
                journal.commit()
        assert journal.queue[-1][1][-1] == 1999, "the newest is kept"


def test_a_journal_removed_from_a_full_disk_is_begun_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"

    def refuse(_file: JournalFile, **_options: bool) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    with Journal(path) as journal:
        with monkeypatch.context() as full:
            full.setattr(JournalFile, "_connect", refuse)
            path.unlink()
            work(journal, ONE, 200.0)
            with pytest.raises(JournalError, match="free space"):
                journal.commit()
        journal.commit()
        assert journal.generation == 1
        assert journal.totals()[ONE].run_seconds == 10
    assert [piece.end for piece in JournalReader(path).slices(ONE)] == [210.0]


def test_of_values_that_wait_only_the_newest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.journal.store.MAX_QUEUED", 50)
    with Journal(tmp_path / "journal.sqlite") as journal:
        for turn in range(200):
            journal.save_note("gandiva", ONE, (turn,))
            journal.save_note("gandiva", TWO, None if turn % 2 else (turn,))
            journal.save_state("policy:gandiva", turn)
        assert len(journal.queue) <= 60
        assert journal.notes("gandiva") == {ONE: (199,)}
        assert journal.load_state("policy:gandiva") == 199
