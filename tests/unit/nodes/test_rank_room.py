# SPDX-License-Identifier: GPL-2.0-or-later
"""The file system that the rank files of one job have to themselves."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import subprocess
from pathlib import Path

import pytest

from controller.agent import rank_room
from controller.agent.control_block import ControlBlock, ControlBlocks, JobState
from controller.agent.deadline import Deadline
from controller.agent.rank_room import ROOM_BYTES, ROOM_INODES
from controller.nodes import installed
from gandiva import layout
from gandiva.layout import Verb

USER = 4321


@pytest.fixture
def blocks(mountable: Path) -> ControlBlocks:
    """On a file system as small as that of a node, in proportion."""
    run_dir = mountable / "run"
    run_dir.mkdir()
    options = "size=1m,nr_inodes=200"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "test", str(run_dir)], check=True, timeout=60)
    return ControlBlocks(run_dir)


def made(blocks: ControlBlocks, job_id: int) -> ControlBlock:
    block = blocks.block(job_id)
    block.create(USER)
    return block


def fill(folder: Path) -> None:
    """All bytes and all inodes there are."""
    with pytest.raises(OSError) as full, (folder / "0").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            assert file.tell() < 64 << 20, "there is no end of it"
    assert full.value.errno == errno.ENOSPC
    with pytest.raises(OSError) as full:
        for number in range(1, 100_000):
            (folder / str(number)).mkdir()
    assert full.value.errno == errno.ENOSPC


def test_who_fills_their_own_fills_nobody_elses(blocks: ControlBlocks) -> None:
    mallorys, other = made(blocks, 1), made(blocks, 2)
    fill(mallorys.ranks)
    for block in (other, mallorys, made(blocks, 3)):
        sequence = block.write_command(Verb.PAUSE, 7)
        assert block.read_command() == (Verb.PAUSE, sequence, 7, 0, 0)
        block.write_visible([1])
        block.save_state(JobState(job_id=block.job_id, uid=USER))
        with block.locked(Deadline(60.0)):
            pass
    for block in (other, blocks.block(3)):
        with (block.ranks / "0").open("wb") as rank:
            os.posix_fallocate(rank.fileno(), 0, layout.RECORD_BYTES)
    mallorys.clear_ranks(USER)
    assert list(mallorys.ranks.iterdir()) == []


def test_it_is_the_users_and_as_large_as_said(blocks: ControlBlocks) -> None:
    ranks = made(blocks, 1).ranks
    found, size = ranks.stat(), os.statvfs(ranks)
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (USER, 0o700)
    assert (size.f_blocks * size.f_frsize, size.f_files) == (ROOM_BYTES, ROOM_INODES)
    assert size.f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC) == 14


def test_the_next_run_finds_nothing_of_the_last(blocks: ControlBlocks) -> None:
    block = made(blocks, 1)
    block.clear_ranks(USER)
    assert rank_room.mounted(block.ranks) == 1
    with (block.ranks / "0").open("wb") as still_open:
        block.clear_ranks(USER)
        still_open.write(b"to nobody")
    assert rank_room.mounted(block.ranks) == 1
    assert list(block.ranks.iterdir()) == [] and block.uid() == USER
    block.create(USER + 1)
    assert rank_room.mounted(block.ranks) == 1 and block.uid() == USER + 1


def test_what_a_user_mounted_over_it_goes_with_it(blocks: ControlBlocks) -> None:
    block = made(blocks, 1)
    subprocess.run(["mount", "-t", "tmpfs", "over", str(block.ranks)], check=True, timeout=60)
    block.clear_ranks(USER)
    assert rank_room.mounted(block.ranks) == 1


@pytest.mark.parametrize("how", ["removed", "by an agent that was killed", "by an epilog that was"])
def test_nothing_stays_mounted(blocks: ControlBlocks, how: str) -> None:
    block = made(blocks, 1)
    (block.ranks / "0").touch()
    if how == "removed":
        block.remove()
    else:
        name = ".trash-1-1-0" if how == "by an agent that was killed" else ".gone.1.4711"
        block.path.rename(blocks.run_dir / name)
        blocks.empty(blocks.trash())
    assert list(blocks.run_dir.iterdir()) == []
    assert f"{blocks.run_dir}/" not in installed.MOUNTS.read_text()


def test_a_folder_from_before_becomes_one_at_the_next_run(
    blocks: ControlBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(rank_room, "_mount", lambda *_: "not permitted")
        block = made(blocks, 1)
    (block.ranks / "0").touch()
    block.create(USER)
    assert [path.name for path in block.ranks.iterdir()] == ["0"], "sessions may be using it"
    block.clear_ranks(USER)
    assert rank_room.mounted(block.ranks) == 1 and list(block.ranks.iterdir()) == []


def test_where_nothing_can_be_mounted_the_job_runs_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rank_room, "run", lambda command, _: f"{command[0]}: permission denied")
    block = ControlBlocks(tmp_path).block(1)
    block.create(os.getuid())
    assert block.uid() == os.getuid() and stat.S_IMODE(block.ranks.stat().st_mode) == 0o700
    assert "mount: permission denied" in caplog.text and str(block.ranks) in caplog.text
    assert rank_room.examine(tmp_path) == "mount: permission denied"
    block.remove()
    assert list(tmp_path.iterdir()) == []


def test_beside_trials_it_is_a_folder_and_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rank_room, "run", lambda command, _: pytest.fail(f"{command}"))
    block = ControlBlocks(tmp_path, apart=False).block(1)
    block.create(os.getuid())
    (block.ranks / "0").touch()
    block.clear_ranks(os.getuid())
    assert block.uid() == os.getuid() and stat.S_IMODE(block.ranks.stat().st_mode) == 0o700
    assert list(block.ranks.iterdir()) == []
    block.remove()
    assert list(tmp_path.iterdir()) == [] and caplog.text == ""


def test_a_mount_that_is_not_seen_here_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that has no part in what process 1 mounts."""
    commands: list[str] = []

    def run(command: list[str], _seconds: float) -> str:
        commands.append(" ".join(command[:3]))
        return ""

    monkeypatch.setattr(rank_room, "_elsewhere", lambda: ("nsenter", "--"))
    monkeypatch.setattr(rank_room, "run", run)
    assert "cut off" in rank_room.examine(tmp_path)
    assert commands == ["nsenter -- mount", "nsenter -- umount"]


def test_mount_points_with_odd_names_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a b\\c" / "ranks"
    escaped = str(odd).replace("\\", "\\134").replace(" ", "\\040")
    lines = (f"{number} 1 0:{number} / {point} rw - tmpfs x rw" for number, point in
             zip(itertools.count(20), ["/", escaped, f"{escaped}x", escaped], strict=False))  # fmt: skip
    (tmp_path / "mountinfo").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(rank_room, "mounts", lambda: installed.mounts(tmp_path / "mountinfo"))
    assert (rank_room.mounted(odd), rank_room.mounted(odd.parent)) == (2, 0)
