# SPDX-License-Identifier: GPL-2.0-or-later
"""Power cuts, full disks, quotas: the last good generation stays, and half of one is never used."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from checkpointing.store import SpaceError, Store
from tests.unit.checkpointing import power_cut
from tests.unit.checkpointing.watched import CALLS, Call, Watched, below, check, contents, restored

pytest_plugins = ("tests.unit.mounts",)


@pytest.fixture
def two_generations(quick_path: Path) -> Path:
    folder = quick_path / "before"
    store = Store(folder, rank=0, world_size=1)
    for step in (1, 2):
        store.save(step, contents(step))
    return folder


@pytest.mark.parametrize("mode", ["nothing more", "all names", "seed 1", "seed 2", "seed 3"])
def test_a_power_cut_after_every_call(two_generations: Path, quick_path: Path, mode: str) -> None:
    chance = random.Random(mode)

    def choose(of: str, answers: int) -> int:
        if mode.startswith("seed"):
            return chance.randrange(answers)
        return int(mode == "all names" and of == "names")

    log: list[power_cut.Operation] = []
    used = quick_path / "used"
    shutil.copytree(two_generations, used)
    store = Store(used, rank=0, world_size=1, files=Watched(power_cut.recorder(used, log)))
    assert store.save(3, contents(3)) == 3
    assert {name for name, _ in log} == set(CALLS)
    steps = []
    for calls in range(len(log) + 1):
        disk = power_cut.read(two_generations)
        power_cut.replay(disk, log[:calls])
        left = quick_path / f"left-{calls}"
        power_cut.leave(disk, left, choose)
        steps.append(check(restored(left), least_step=2))
        assert Store(left, rank=0, world_size=1).save(4, contents(4)) > 2
        assert check(restored(left)) == 4
        shutil.rmtree(left)
    assert steps[-1] == 3, "what save() has returned is on the disk"


def test_the_model_tells_a_missing_sync(two_generations: Path, quick_path: Path) -> None:
    log: list[power_cut.Operation] = []
    store = Store(two_generations, rank=0, world_size=1)
    store._files = Watched(power_cut.recorder(two_generations, log))
    before = power_cut.read(two_generations)
    store.save(3, contents(3))
    power_cut.replay(before, [call for call in log if call[0] != "sync" or not call[1][0]])
    power_cut.leave(before, quick_path / "left", lambda _of, _answers: 0)
    assert check(restored(quick_path / "left")) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_at_any_call(two_generations: Path, quick_path: Path, code: int) -> None:
    at, refused = 0, 0
    while True:
        folder = quick_path / f"full-{at}"
        shutil.copytree(two_generations, folder)

        def fail(call: Call, at: int = at) -> None:
            if call.number == at and not call.name.startswith("remove"):
                raise OSError(code, os.strerror(code))

        files = Watched(fail)
        try:
            Store(folder, rank=0, world_size=1, files=files).save(3, contents(3))
        except SpaceError as error:
            refused += 1
            assert f"no room for the 23136 bytes of rank 0: {os.strerror(code)}" in str(error)
        assert below(folder) == below(folder, "generation-*")
        check(restored(folder), least_step=2)
        shutil.rmtree(folder)
        if files.calls <= at:
            break
        at += 1
    assert refused > 10


def test_no_room_is_said_before_anything_is_written(
    two_generations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 5, 5, 10, 10, 10, 0, 255))
    calls: list[Call] = []
    store = Store(two_generations, rank=0, world_size=1, files=Watched(calls.append))
    monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    with pytest.raises(SpaceError, match="No space left"):
        store.save(3, contents(3))
    assert [call.arguments[0] for call in calls if call.name == "create"] == ["owner.json"]


def test_space_is_reserved_for_all_files_before_the_first_is_written(quick_path: Path) -> None:
    calls: list[Call] = []
    Store(quick_path, rank=0, world_size=1, files=Watched(calls.append)).save(1, contents(1))
    names = [call.name for call in calls]
    reserved = [call.arguments[1] for call in calls if call.name == "reserve"]
    assert reserved == [len(data) for data in contents(1).values()]
    after = names[names.index("reserve") :]
    assert after.index("write") > max(number for number, name in enumerate(after) if name == "reserve")


def test_a_full_file_system(mountable: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", mountable], check=True, timeout=60)
    store = Store(mountable, rank=0, world_size=1)
    for step in (1, 2, 3):
        store.save(step, contents(step))
    with pytest.raises(SpaceError, match="No space left on device"):
        store.save(4, {"model": bytes(5 << 20)})
    assert below(mountable) == ["generation-00000002", "generation-00000003"]
    assert check(store.restore()) == 3
    assert store.save(5, contents(5)) == 4
