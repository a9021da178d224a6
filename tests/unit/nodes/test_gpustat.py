# SPDX-License-Identifier: GPL-2.0-or-later
"""Owner files of GPUs."""

from __future__ import annotations

import fcntl
import resource
from pathlib import Path

import pytest

from controller.agent import gpustat
from controller.agent.gpustat import OwnerFiles

ONE, TWO = "GPU-aaaa-1", "GPU-aaaa-2"


def names(folder: Path) -> list[str]:
    """What a dashboard finds."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_claim_and_release(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path / "gpustat")
    files.claim([ONE, TWO], 7, 2001)
    assert (tmp_path / "gpustat" / ONE).read_text() == "7 2001\n"
    assert (tmp_path / "gpustat" / ONE).stat().st_mode & 0o777 == 0o644
    files.claim([TWO], 8, 2002)
    files.release([ONE, TWO], 7)
    assert names(tmp_path / "gpustat") == [TWO]


def test_sweep_clears_what_gone_jobs_held_and_nothing_of_others(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path)
    files.claim([ONE], 7, 2001)
    (tmp_path / TWO).write_text("99 2001\n")
    files.sweep({7})
    assert names(tmp_path) == [ONE, TWO]
    files.sweep(set())
    assert names(tmp_path) == [TWO]


def test_names_that_are_no_uuid_are_never_paths(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path / "gpustat")
    files.claim(["../escape", "/etc/passwd", ""], 7, 2001)
    assert not (tmp_path / "gpustat").exists() and not (tmp_path / "escape").exists()


def test_jobs_that_share_a_gpu_both_stand_there(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path)
    files.claim([ONE], 7, 2001)
    files.claim([ONE], 8, 2002)
    assert (tmp_path / ONE).read_text() == "7 2001\n8 2002\n"
    files.release([ONE], 8)
    assert (tmp_path / ONE).read_text() == "7 2001\n", "the one that stays has it still"
    files.claim([ONE], 8, 2002)
    files.release([ONE], 7)
    assert (tmp_path / ONE).read_text() == "8 2002\n"
    files.sweep(())
    assert names(tmp_path) == []


def test_a_job_that_moves_leaves_its_old_gpu(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path)
    files.claim([ONE], 7, 2001)
    files.claim([TWO], 7, 2001)
    assert names(tmp_path) == [TWO]


def test_the_next_agent_takes_away_what_a_killed_one_left(tmp_path: Path) -> None:
    OwnerFiles(tmp_path).claim([ONE, TWO], 7, 2001)
    (tmp_path / "GPU-ordinary").write_text("7 2001\n")
    agent = OwnerFiles(tmp_path)
    agent.sweep({7})
    assert (tmp_path / ONE).read_text() == "7 2001\n"
    agent.sweep(set())
    assert names(tmp_path) == ["GPU-ordinary"], "whatever the job's number: it is not ours"


def test_a_file_that_somebody_else_wrote_since_stays(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path)
    files.claim([ONE], 7, 2001)
    (tmp_path / ONE).write_text("99 2002\n")
    files.release([ONE], 7)
    assert (tmp_path / ONE).read_text() == "99 2002\n"


def test_a_damaged_record_or_an_unwritable_folder_is_no_error(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path / "gpustat")
    files.claim([ONE], 7, 2001)
    for damage in (b"{", b"[1]", b'{"x": 3}', b"\xff"):
        (tmp_path / "gpustat" / ".gandiva").write_bytes(damage)
        files.claim([TWO], 8, 2002)
        assert (tmp_path / "gpustat" / TWO).read_text() == "8 2002\n"
        files.release([TWO], 8)
    (tmp_path / "file").touch()
    OwnerFiles(tmp_path / "file" / "below").claim([ONE], 7, 2001)


def test_an_agent_that_hangs_with_the_record_keeps_no_switch_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpustat, "LOCK_SECONDS", 0.05)
    files = OwnerFiles(tmp_path)
    with (tmp_path / ".gandiva").open("w") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        files.claim([ONE], 7, 2001)
        assert names(tmp_path) == [] and "keeps it locked" in caplog.text
    files.claim([ONE], 7, 2001)
    assert names(tmp_path) == [ONE]


def test_a_disk_that_takes_nothing_costs_the_files_and_no_verb(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """These files inform: a job that is back on its GPUs must not be taken for one that could not return."""
    files = OwnerFiles(tmp_path)
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        files.claim([ONE], 7, 2001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == []
    assert f"cannot write file {tmp_path}/.gandiva" in caplog.text
    files.claim([ONE], 7, 2001)
    assert (tmp_path / ONE).read_text() == "7 2001\n"
