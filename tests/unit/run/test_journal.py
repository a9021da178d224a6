# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the journal of a study is, and what other hosts find in the study's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.errors import JournalError
from controller.journal import Journal, JournalReader
from controller.journal.lock import JournalLock
from controller.run import journal as module
from controller.run.journal import study_journal

from .conftest import eventually


class Place:
    """A study's folder, and one of its supervisor's host."""

    def __init__(self, folder: Path) -> None:
        self.copy, self.here = folder / "lr" / "journal.sqlite", folder / "run" / "journal.sqlite"
        for file in (self.copy, self.here):
            file.parent.mkdir()

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        lock = JournalLock(self.copy)
        assert lock.take()
        with study_journal(self.here, self.copy, lock) as journal:
            yield journal

    def write(self, path: Path, event: str, heartbeat: float | None) -> None:
        """A journal as a supervisor leaves it that is killed, or as the copy is."""
        with Journal(path) as journal:
            record(journal, event)
            if heartbeat is not None:
                journal.save_state("heartbeat", heartbeat)
            journal.commit()
            files = {file: file.read_bytes() for file in path.parent.iterdir()}
        if path == self.here:
            for file, data in files.items():
                file.write_bytes(data)

    def copied(self) -> list[str]:
        return kinds(JournalReader(self.copy, still=True))

    def in_folder(self) -> list[str]:
        return sorted(file.name for file in self.copy.parent.iterdir())


def record(journal: Journal, event: str) -> None:
    journal.record_event(1.0, None, None, event, "")


def kinds(reader: JournalReader) -> list[str]:
    return [event.kind for event in reader.events()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_folder_has_a_copy_from_the_begin_to_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of SQLite's besides: hosts share no memory, and some file systems no locks."""
    for name in ("FIRST_COPY_SECONDS", "COPY_SECONDS"):
        monkeypatch.setattr(module, name, 0.01)
    with place.journal() as journal:
        assert place.copied() == []
        for event in ("first", "second"):
            record(journal, event)
            journal.commit()
            eventually("a copy", lambda event=event: event in place.copied())  # type: ignore[misc]
        assert {*place.in_folder()} <= {"journal.sqlite", "journal.sqlite.lock", ".journal.sqlite.new"}
        record(journal, "last")
    assert place.copied() == ["first", "second", "last"]
    assert place.in_folder() == ["journal.sqlite", "journal.sqlite.lock"]
    assert place.copy.read_bytes()[18:20] == b"\1\1", "no WAL, for whoever opens it otherwise"


def test_a_copy_is_replaced_and_never_written(place: Place) -> None:
    """Who reads the old one reads it to its end."""
    with place.journal() as journal:
        old = place.copy.open("rb")
        before = place.copy.read_bytes()
        record(journal, "later")
    assert old.read() == before != place.copy.read_bytes()
    old.close()


def test_the_last_copy_is_there_before_another_supervisor_may_begin(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    write_copy = module.write_copy

    def write(here: Path, copy: Path) -> None:
        taken.append(JournalLock(copy).take())
        write_copy(here, copy)

    monkeypatch.setattr(module, "write_copy", write)
    with place.journal():
        pass
    assert taken == [False, False]


@pytest.mark.parametrize(
    ("here", "copy", "first"),
    [
        (200.0, 100.0, ["here"]),
        (100.0, 100.0, ["here"]),
        (100.0, 200.0, ["copy"]),
        (None, 200.0, ["copy"]),
        (None, None, ["here"]),
    ],
)
def test_what_is_newer_counts(place: Place, here: float | None, copy: float | None, first: list[str]) -> None:
    """After `kill -9` that is what is here, unless another host has gone on with the study since."""
    place.write(place.here, "here", here)
    place.write(place.copy, "copy", copy)
    with place.journal():
        assert kinds(JournalReader(place.here)) == first


def test_another_host_goes_on_with_the_copy(place: Place) -> None:
    place.write(place.copy, "copy", None)
    with place.journal():
        assert kinds(JournalReader(place.here)) == ["copy"]


@pytest.mark.parametrize("wal", [b"", b"old"])
def test_what_was_cut_off_here_does_not_count(place: Place, wal: bytes) -> None:
    place.write(place.copy, "copy", 100.0)
    place.here.write_bytes(place.copy.read_bytes()[:5000])
    place.here.with_name("journal.sqlite-wal").write_bytes(wal)
    with place.journal() as journal:
        assert kinds(JournalReader(place.here)) == ["copy"] and journal.messages == []


def test_without_a_copy_it_is_a_new_study(place: Place) -> None:
    """Its folder was removed, and the supervisor before that killed."""
    place.write(place.here, "here", 100.0)
    with place.journal():
        assert kinds(JournalReader(place.here)) == []


def test_a_last_copy_that_cannot_be_written_is_told_and_nothing_is_lost(place: Place) -> None:
    block = place.copy.with_name(".journal.sqlite.new")
    why = r"cannot write .*lr/journal.sqlite, a copy of the journal, by way of .*run/journal.copy: "
    with pytest.raises(JournalError, match=why), place.journal() as journal:
        block.mkdir()
        record(journal, "last")
        journal.save_state("heartbeat", 5.0)
    assert JournalLock(place.copy).take(), "given back"
    block.rmdir()
    with place.journal():
        assert place.copied() == ["last"]


def test_it_goes_on_where_a_copy_cannot_be_written(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_COPY_SECONDS", 0.01)
    block = place.copy.with_name(".journal.sqlite.new")
    with place.journal() as journal:
        monkeypatch.setattr("shutil.copyfile", lambda *_: block.read_bytes())
        record(journal, "kept")
        eventually("a complaint", lambda: "cannot write" in caplog.text)
        monkeypatch.undo()
    assert place.copied() == ["kept"]
