# SPDX-License-Identifier: GPL-2.0-or-later
"""One leader at a time, and none too few."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from controller.errors import JournalError
from controller.journal import Journal
from controller.journal.lock import JournalLock

HOLDER = """
import sys, time
from pathlib import Path
from controller.journal.lock import JournalLock
lock = JournalLock(Path(sys.argv[1]))
assert lock.take()
print("has it", flush=True)
time.sleep(60)
"""


def test_the_second_waits_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first, second = JournalLock(path), JournalLock(path)
    assert first.take() and first.take(), "taking it twice changes nothing"
    assert not second.take()
    assert second.holder == str(os.getpid())
    first.release()
    assert second.take() and second.is_ours() and not first.is_ours()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_free_the_moment_its_holder_is_gone_and_not_while_it_is_stopped(
    tmp_path: Path, how: signal.Signals
) -> None:
    path = tmp_path / "journal.sqlite"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"has it\n"
    mine = JournalLock(path)
    os.kill(process.pid, signal.SIGSTOP)
    assert not mine.take() and mine.holder == str(process.pid)
    os.kill(process.pid, signal.SIGCONT)
    process.send_signal(how)
    process.wait(timeout=60)
    assert mine.take()
    process.stdout.close()


@pytest.mark.parametrize("left", ["dead", "", "9" * 19, "word"])
def test_the_number_of_an_earlier_holder_is_not_told(tmp_path: Path, left: str) -> None:
    """On a disk that cannot be written any more the next holder's cannot take its place."""
    path = tmp_path / "journal.sqlite"
    if left == "dead":
        gone = subprocess.Popen(["true"])
        gone.wait(timeout=60)
        left = str(gone.pid)
    first, second = JournalLock(path), JournalLock(path)
    assert first.take()
    first.path.write_text(f"{left}\n")
    assert not second.take() and second.holder == "unknown"


def test_who_lets_go_takes_its_number_away(tmp_path: Path) -> None:
    lock = JournalLock(tmp_path / "journal.sqlite")
    assert lock.take()
    lock.release()
    assert lock.path.read_text() == ""


def test_a_lock_file_that_was_removed_is_no_lock_any_more(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first, second = JournalLock(path), JournalLock(path)
    assert first.take()
    first.path.unlink()
    assert not first.is_ours()
    assert second.take() and second.is_ours() and not first.is_ours()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "journal.sqlite.lock").symlink_to(victim)
    with pytest.raises(JournalError, match="cannot open the journal"):
        JournalLock(tmp_path / "journal.sqlite").take()
    assert victim.read_text() == "precious"


def test_a_journal_takes_over_a_lock_and_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    lock = JournalLock(path)
    assert lock.take()
    with Journal(path, lock=lock):
        assert not JournalLock(path).take()
    assert JournalLock(path).take()


def test_a_lock_file_removed_between_opening_and_locking_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = JournalLock(tmp_path / "journal.sqlite")
    opened, calls = JournalLock._open, []

    def removed_once(self: JournalLock) -> IO[str]:
        file = opened(self)
        calls.append(file)
        if len(calls) == 1:
            self.path.unlink()
        return file

    monkeypatch.setattr(JournalLock, "_open", removed_once)
    assert lock.take() and lock.is_ours() and len(calls) == 2


def test_a_file_system_without_locks_is_not_taken_for_another_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a standby would wait for ever for a controller that is not there."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("controller.journal.lock.fcntl.flock", no_locks)
    with pytest.raises(JournalError, match=r"cannot lock .*No locks available.*local disk"):
        JournalLock(tmp_path / "journal.sqlite").take()
