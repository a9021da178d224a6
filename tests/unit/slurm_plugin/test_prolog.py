# SPDX-License-Identifier: GPL-2.0-or-later
"""Prolog and epilog: control blocks made and removed, never a failure, nothing followed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.agent import rank_room
from controller.nodes import installed
from tests.unit.mounts import mountable, unmount_below

__all__ = ["mountable"]

SOURCES = Path(__file__).parents[3] / "slurm_plugin"
OPTION = "SPANK__SLURM_SPANK_OPTION_gandiva_"
ASKED = {OPTION + "gandiva": "(null)"}
USER = 4321


class Node:
    """A node's Slurm configuration folder and run folder."""

    def __init__(self, root: Path) -> None:
        self.etc = root / "etc"
        self.run_dir = root / "run" / "gandiva"
        self.wrapper: list[str] = []
        (root / "run").mkdir()
        for name in ("prolog.d", "epilog.d"):
            shutil.copytree(SOURCES / name, self.etc / name)
        (self.etc / "gandiva").mkdir()
        self.settings(f"GANDIVA_RUN_DIR={self.run_dir}")

    def settings(self, *lines: str) -> None:
        (self.etc / "gandiva/gandiva.env").write_text("# comment\n" + "\n".join(lines) + "\n")

    def _run(self, kind: str, env: dict[str, str]) -> str:
        done = subprocess.run(
            [*self.wrapper, str(self.etc / f"{kind}.d/50-gandiva.sh")],
            env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(USER), **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, "a failure would drain the node: " + done.stderr
        assert done.stdout == ""
        return done.stderr

    def prolog(self, **env: str) -> str:
        """Run it for a job with GPUs; returns what it complained of."""
        return self._run("prolog", {"SLURM_JOB_GPUS": "0,1", "SLURM_JOB_GID": "4322", **env})

    def epilog(self, **env: str) -> str:
        return self._run("epilog", env)

    @property
    def block(self) -> Path:
        return self.run_dir / "7"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("control blocks are root's: run as root")
    tmp_path.chmod(0o755)
    yield Node(tmp_path)
    unmount_below(tmp_path)


def test_the_block_is_the_documented_one(node: Node) -> None:
    assert node.prolog(**ASKED) == ""
    assert sorted(path.name for path in node.block.iterdir()) == ["command", "ranks"]
    state = node.block.stat()
    assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (0, 0o755)
    ranks = (node.block / "ranks").stat()
    assert (ranks.st_uid, ranks.st_gid, stat.S_IMODE(ranks.st_mode)) == (USER, 4322, 0o700)
    command = node.block / "command"
    assert (command.stat().st_uid, stat.S_IMODE(command.stat().st_mode)) == (0, 0o644)
    assert command.read_bytes() == b"GNDC\x01\x00\x00\x00" + bytes(4088)


@pytest.mark.usefixtures("mountable")
def test_ranks_are_a_file_system_with_the_agents_limits(node: Node) -> None:
    node.prolog(**ASKED)
    ranks = node.block / "ranks"
    found = os.statvfs(ranks)
    assert rank_room.mounted(ranks) == 1
    assert (found.f_blocks * found.f_frsize, found.f_files) == (rank_room.ROOM_BYTES, rank_room.ROOM_INODES)
    assert found.f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC) == 14
    node.prolog(**ASKED)
    assert rank_room.mounted(ranks) == 1, "again: nothing to do"
    assert node.epilog() == ""
    assert str(node.run_dir) not in installed.MOUNTS.read_text()
    assert list(node.run_dir.iterdir()) == []


def test_where_nothing_can_be_mounted_ranks_are_a_folder(node: Node) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    node.wrapper = ["setpriv", "--bounding-set=-sys_admin"]
    assert "can fill the one of all jobs" in node.prolog(**ASKED)
    ranks = node.block / "ranks"
    found = ranks.stat()
    assert rank_room.mounted(ranks) == 0
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (USER, 4322, 0o700)
    (ranks / "0").write_text("x")
    assert node.epilog() == ""
    assert list(node.run_dir.iterdir()) == []


def test_what_the_agent_made_stays(node: Node) -> None:
    (node.block / "ranks").mkdir(parents=True)
    (node.block / "ranks/0").write_bytes(b"x")
    (node.block / "command").write_bytes(b"agent")
    (node.block / "visible").write_text("1\n")
    assert node.prolog(**ASKED) == ""
    assert (node.block / "command").read_bytes() == b"agent"
    assert (node.block / "ranks/0").read_bytes() == b"x"
    assert sorted(path.name for path in node.block.iterdir()) == ["command", "ranks", "visible"]


def test_only_gandiva_jobs_with_gpus_get_one(node: Node) -> None:
    node.prolog()
    node.prolog(**ASKED, SLURM_JOB_GPUS="")
    node.prolog(**{OPTION + "no_gandiva": "(null)"})
    node.prolog(SLURM_JOB_ID="../7", **ASKED)
    node.prolog(SLURM_JOB_UID="", **ASKED)
    assert not node.run_dir.exists()
    node.prolog(**{OPTION + "gandiva_gpu_types": "a100"})
    assert node.block.is_dir()


def test_each_flag_that_asks_for_time_slicing_counts(node: Node) -> None:
    table = (SOURCES / "spank/options.c").read_text()
    flags = set(re.findall(r'= \{ "([a-z-]+)"', table)) - {"no-gandiva"}
    assert len(flags) == 9
    for job, flag in enumerate(sorted(flags), start=100):
        node.prolog(SLURM_JOB_ID=str(job), **{OPTION + flag.replace("-", "_"): "1"})
        assert (node.run_dir / str(job)).is_dir(), flag


def test_time_slicing_by_default(node: Node) -> None:
    node.settings(f"GANDIVA_RUN_DIR={node.run_dir}", "GANDIVA_DEFAULT=on", "GANDIVA_PARTITIONS=a,b")
    node.prolog(SLURM_JOB_PARTITION="c")
    node.prolog(SLURM_JOB_PARTITION="a", **{OPTION + "no_gandiva": "(null)"})
    assert not node.run_dir.exists()
    node.prolog(SLURM_JOB_PARTITION="b")
    assert node.block.is_dir()


def test_the_nodes_name_in_run_dir(node: Node) -> None:
    node.settings(f"GANDIVA_RUN_DIR={node.run_dir}/%n")
    assert "no usable node name" in node.prolog(**ASKED)
    assert "no usable node name" in node.prolog(SLURMD_NODENAME="../x", **ASKED)
    assert node.prolog(SLURMD_NODENAME="n1", **ASKED) == ""
    assert (node.run_dir / "n1/7/ranks").is_dir()
    assert node.epilog(SLURMD_NODENAME="n1") == ""
    assert list((node.run_dir / "n1").iterdir()) == []


def test_settings_are_not_executed(node: Node, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    node.settings(f"GANDIVA_RUN_DIR=$(touch {trap}){node.run_dir}", f"X=`touch {trap}`")
    assert "expected an absolute path" in node.prolog(**ASKED)
    node.epilog()
    assert not trap.exists()


@pytest.mark.parametrize("trick", ["link", "file", "owner", "mode"])
def test_a_block_that_is_not_roots_is_not_used(node: Node, tmp_path: Path, trick: str) -> None:
    node.run_dir.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if trick == "link":
        node.block.symlink_to(elsewhere)
    elif trick == "file":
        node.block.write_text("")
    else:
        node.block.mkdir()
        if trick == "owner":
            os.chown(node.block, USER, USER)
        else:
            node.block.chmod(0o777)
    complaint = node.prolog(**ASKED)
    assert "expected a folder that is root's alone" in complaint and "waits for the node agent" in complaint
    assert list(elsewhere.iterdir()) == []


def test_a_run_dir_that_others_can_write_is_not_used(node: Node) -> None:
    node.run_dir.mkdir()
    node.run_dir.chmod(0o1777)
    assert "expected a folder that is root's alone" in node.prolog(**ASKED)
    assert list(node.run_dir.iterdir()) == []
    node.block.mkdir()
    assert "is not root's alone" in node.epilog()
    assert node.block.is_dir()


def test_ranks_replaced_by_a_link_is_left_alone(node: Node, tmp_path: Path) -> None:
    node.block.mkdir(parents=True)
    (node.block / "ranks").symlink_to(tmp_path)
    before = tmp_path.stat().st_uid
    node.prolog(**ASKED)
    assert tmp_path.stat().st_uid == before == 0


def test_the_epilog_removes_the_block_and_nothing_else(node: Node, tmp_path: Path) -> None:
    node.prolog(**ASKED)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (node.block / "ranks/0").symlink_to(precious)
    (node.block / "ranks/deep/er").mkdir(parents=True)
    (node.run_dir / "8").mkdir()
    (node.run_dir / ".gone.6.4711/ranks").mkdir(parents=True)  # of an epilog that was cut off
    (node.run_dir / ".gone.6.4711/ranks/0").symlink_to(precious)
    assert node.epilog() == ""
    assert [path.name for path in node.run_dir.iterdir()] == ["8"]
    assert (precious / "file").read_text() == "x"
    assert node.epilog() == "", "again: nothing to do"


def test_the_epilog_removes_a_link_not_what_it_points_to(node: Node, tmp_path: Path) -> None:
    node.run_dir.mkdir()
    (tmp_path / "precious").mkdir()
    node.block.symlink_to(tmp_path / "precious")
    node.epilog()
    assert not node.block.is_symlink() and (tmp_path / "precious").is_dir()
