# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import stat
from datetime import datetime, timezone
from pathlib import Path

import pytest

from controller.reports.report import account
from controller.reports.row import Row
from controller.reports.sacct import Accounting, CommandFailed, ask_sacct

from .test_words_about_jobs import job


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the head of PATH; `install` puts a program named sacct there."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def install(folder: Path, script: str) -> None:
    program = folder / "sacct"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_jobs_are_read(fake: Path) -> None:
    install(
        fake,
        "printf '%s\\n' '12|12|COMPLETED|0:0|2024-05-17T10:00:00|2024-05-17T09:00:00'"
        " '13|10_3|CANCELLED by 7|0:15|Unknown|2024-05-17T09:00:00'",
    )
    submitted, ended = (datetime(2024, 5, 17, hour, tzinfo=timezone.utc).timestamp() for hour in (9, 10))
    assert ask_sacct([12, 13]) == {
        12: Accounting("12", "COMPLETED", "0:0", ended, submitted),
        13: Accounting("10_3", "CANCELLED by 7", "0:15", None, submitted),
    }


def test_the_end_of_a_job_that_ended_suspended_is_that_of_its_own_steps(fake: Path) -> None:
    """The job's End is its last suspension (Slurm 24.11, 26.05)."""
    install(
        fake,
        f'echo "$*" >> {fake}/asked; case "$*" in *12.batch*) printf "%s\\n" '
        "'12.batch|2024-05-17T10:05:23' '12.extern|2024-05-17T10:05:24' '13.batch|Unknown' 'x|';; "
        "*) printf '%s\\n' '12|12|CANCELLED by 7|0:0|2024-05-17T10:00:59|2024-05-17T09:00:00'"
        " '13|13|CANCELLED by 7|0:0|2024-05-17T10:00:59|2024-05-17T09:00:00'"
        " '14|14|COMPLETED|0:0|2024-05-17T10:00:59|2024-05-17T09:00:00';; esac",
    )
    at = {
        name: datetime.fromisoformat(f"2024-05-17T{name}+00:00").timestamp()
        for name in ("10:00:59", "10:05:24")
    }
    unseen = job(job_id=12, state="UNKNOWN", end_time=at["10:05:24"] + 600)
    seen = job(job_id=14, state="COMPLETED", end_time=at["10:00:59"] + 0.5)
    known = account([unseen, job(job_id=13, state="SUSPENDED", end_time=None), seen])
    assert {i: one.end_time for i, one in known.items()} == {
        12: at["10:05:24"], 13: at["10:00:59"], 14: at["10:00:59"],
    }  # fmt: skip
    assert "-j 12.batch,12.extern,13.batch,13.extern" in (fake / "asked").read_text(), "14 was seen to end"
    row = Row(unseen, at["10:05:24"] + 700, known[12])
    assert (row.state, row.end_time) == ("CANCELLED by 7", at["10:05:24"])


def test_a_later_job_with_the_same_number_is_not_this_one(fake: Path) -> None:
    """A slurmctld that is killed gives the numbers of its last seconds out again."""
    install(fake, "echo '1|1|COMPLETED|0:0|2024-05-17T10:00:00|2024-05-17T09:00:00'")
    submitted = datetime(2024, 5, 17, 9, tzinfo=timezone.utc).timestamp()
    lost, known = (job(job_id=1, state="UNKNOWN", end_time=submitted + more) for more in (-1, 1))
    assert account([lost]) == {} and list(account([known])) == [1]


def test_what_is_asked(fake: Path) -> None:
    install(fake, f'echo "$*" > {fake}/asked')
    ask_sacct([1, 2])
    asked = (fake / "asked").read_text()
    assert "-j 1,2" in asked and "-n -P -X" in asked


def test_many_jobs_are_asked_for_in_parts(fake: Path) -> None:
    install(fake, f"echo x >> {fake}/calls")
    ask_sacct(list(range(1, 1202)))
    assert (fake / "calls").read_text() == "x\n" * 3


def test_lines_that_make_no_sense_are_left_out(fake: Path) -> None:
    install(fake, "printf '%s\\n' 'warning: something' '' 'a|b|c|d|e|f' '1|1|FAILED|1:0|junk|junk' '2|2|X'")
    assert ask_sacct([1]) == {1: Accounting("1", "FAILED", "1:0", None, None)}


def test_no_sacct(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake))
    with pytest.raises(CommandFailed, match="there is no sacct here"):
        ask_sacct([1])


def test_slurmdbd_is_down(fake: Path) -> None:
    install(fake, "echo 'sacct: error: Sending PersistInit msg: Connection refused' >&2; exit 1")
    with pytest.raises(CommandFailed, match=r"sacct failed: sacct: error: .*Connection refused"):
        ask_sacct([1])


def test_slurmdbd_hangs(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.reports.sacct.DEADLINE_SECONDS", 0.2)
    install(fake, "exec sleep 60")
    with pytest.raises(CommandFailed, match=r"within 0\.2 s"):
        ask_sacct([1])
