# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from controller.errors import GandivaError
from controller.run.folder import StudyFolder, Supervisor, living

HERE = Supervisor(host=os.uname().nodename, pid=os.getpid(), socket="/run/user/7/g", started=1.5e9)


def test_the_files_of_a_study() -> None:
    study = StudyFolder(Path("lr"))
    assert [str(path) for path in (study.trials, study.journal, study.log, study.asked, study.note)] == [
        *("lr/trials", "lr/journal.sqlite", "lr/log", "lr/asked", "lr/supervisor.json")
    ]


def test_a_note_is_written_read_replaced_and_removed(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    assert study.supervisor() is None
    study.remove_note()
    study.write_note(HERE)
    assert study.supervisor() == HERE
    first = study.note.open()
    study.write_note(HERE.model_copy(update={"pid": 77}))
    assert study.supervisor() == HERE.model_copy(update={"pid": 77})
    assert Supervisor.model_validate_json(first.read()) == HERE, "renamed into its place"
    first.close()
    study.remove_note()
    assert study.supervisor() is None and list(tmp_path.iterdir()) == []


def test_only_its_user_reads_a_note(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        StudyFolder(tmp_path).write_note(HERE)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()] == [0o600]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "file: Invalid JSON"),
        ("[]", "file: "),
        ("{}", "host: "),
        (HERE.model_dump_json().replace(str(HERE.pid), "0"), "pid: "),
        (HERE.model_dump_json().replace(str(HERE.pid), str(1 << 40)), "pid: "),
    ],
    ids=["empty", "list", "nothing", "group", "large"],
)
def test_a_broken_note_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    study = StudyFolder(tmp_path)
    study.note.write_text(text)
    with pytest.raises(GandivaError, match=re.escape(f"{study.note} does not say who") + rf".*\({wrong}"):
        study.supervisor()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    study.note.mkdir()
    for use in (study.supervisor, study.remove_note, lambda: study.write_note(HERE)):
        with pytest.raises(GandivaError, match=re.escape(f"{study.note}: ")):
            use()


def test_a_supervisor_lives_on_this_host_only() -> None:
    assert living(HERE)
    assert not living(HERE.model_copy(update={"host": "elsewhere"}))
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(60)
    assert not living(HERE.model_copy(update={"pid": child.pid}))


def test_a_process_of_another_user_is_not_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the number of one that is gone: the note is this user's own."""

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not living(HERE)
