# SPDX-License-Identifier: GPL-2.0-or-later
"""A writer is killed at every call on files, and at any time: the last good generation can be restored."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from checkpointing.store import NotPublished, Store, leftovers
from tests.unit.checkpointing import kills
from tests.unit.checkpointing.watched import CALLS, Call, Watched, below, check, contents, restored
from tests.unit.draws import draws


def in_child(work: Callable[[], object]) -> int:
    """The status that waitpid() gives of a child that does it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def killed_at(at: int) -> Callable[[Call], None]:
    """SIGKILL before this call; of a write, after its first half."""

    def before(call: Call) -> None:
        if call.number == at:
            if call.name == "write":
                fd, data = call.arguments
                os.write(fd, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return before


@pytest.fixture
def two_generations(quick_path: Path) -> Path:
    """A store with steps 1 and 2, so that the next save removes something, too."""
    folder = quick_path / "before"
    store = Store(folder, rank=0, world_size=1)
    for step in (1, 2):
        store.save(step, contents(step))
    return folder


def test_killed_at_every_call(two_generations: Path, quick_path: Path) -> None:
    at, kinds, steps = 0, set(), []
    while True:
        folder = quick_path / f"killed-{at}"
        shutil.copytree(two_generations, folder)

        def save(folder: Path = folder, at: int = at) -> None:
            def before(call: Call) -> None:
                if call.number == at:
                    (quick_path / "kind").write_text(call.name)
                killed_at(at)(call)

            Store(folder, rank=0, world_size=1, files=Watched(before)).save(3, contents(3))

        status = in_child(save)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        kinds.add((quick_path / "kind").read_text())
        steps.append(check(restored(folder), least_step=2))
        assert Store(folder, rank=0, world_size=1).save(4, contents(4)) > 2
        assert check(restored(folder)) == 4
        assert len(below(folder)) == 2 and below(folder) == below(folder, "generation-*")
        shutil.rmtree(folder)
        at += 1
    assert kinds == set(CALLS)
    assert steps == sorted(steps) and set(steps) == {2, 3}, "published at one instant"


@pytest.mark.parametrize("killed_rank", [0, 1])
def test_one_of_two_ranks_is_killed_at_every_call(quick_path: Path, killed_rank: int) -> None:
    """With each change at every third."""
    at, seconds = 0, 0.2
    for step in (1, 2):
        assert both_ranks(quick_path / "before", step, run=f"before-{step}") == [0, 0]
    while True:
        folder = quick_path / f"killed-{at}"
        shutil.copytree(quick_path / "before", folder)
        statuses = both_ranks(folder, 3, run="killed", killed_rank=killed_rank, at=at, seconds=seconds)
        for rank in range(2):
            check(restored(folder, rank, 2), least_step=2)
        if statuses == [0, 0]:
            break
        if not os.WIFSIGNALED(statuses[killed_rank]):
            # On a busy machine the deadline came before the call.
            seconds *= 2
            assert seconds < 30, statuses
            shutil.rmtree(folder)
            continue
        assert both_ranks(folder, 4, run="after") == [0, 0]
        assert [check(restored(folder, rank, 2)) for rank in range(2)] == [4, 4]
        assert below(folder) == below(folder, "generation-*")
        shutil.rmtree(folder)
        at += draws(3, 1)
    assert at > 10


def test_what_two_deaths_of_one_attempt_leave_is_removed_at_once(quick_path: Path) -> None:
    """Rank 0 gives up, and is killed while it removes the attempt; rank 1 begins it anew."""

    def save(rank: int, before: Callable[[Call], None]) -> None:
        files = Watched(before)
        store = Store(quick_path, rank=rank, world_size=2, run="killed", deadline_seconds=0.0, files=files)
        with suppress(NotPublished):
            store.save(1, contents(1, rank))

    def killed_while_removing(call: Call) -> None:
        if call.name == "remove_file":
            os.kill(os.getpid(), signal.SIGKILL)

    assert os.WIFSIGNALED(in_child(lambda: save(0, killed_while_removing)))
    save(1, lambda _: None)
    removing, writing = below(quick_path)
    assert removing.startswith("removing-killed-000000") and writing == "writing-killed-000000"
    assert both_ranks(quick_path, 2, run="after") == [0, 0]
    assert below(quick_path) == ["generation-00000001"]


def both_ranks(
    folder: Path, step: int, run: str, killed_rank: int = -1, at: int = -1, seconds: float = 60.0
) -> list[int]:
    """Two processes save, each within so many seconds; returns their status."""
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                before = killed_at(at if rank == killed_rank else -1)
                store = Store(
                    folder, rank=rank, world_size=2, run=run, deadline_seconds=seconds, files=Watched(before)
                )
                store.save(step, contents(step, rank))
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitpid(child, 0)[1] for child in children]


def test_killed_at_random_points(quick_path: Path) -> None:
    """`make kills` does it 1,000 times."""
    found = kills.run(quick_path, count=draws(20, 200), seed=1)
    assert found.kills == draws(20, 200)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(("make_folder", "rank-00000"), id="it has made the attempt's folder"),
        pytest.param(("create", "owner.json"), id="its owner's record is not locked yet"),
        pytest.param(("create", "model"), id="it writes"),
    ],
)
def test_a_living_writer_of_another_job_is_left_alone(
    quick_path: Path, place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_LOCK_SECONDS", 0.1)
    reached, go = os.pipe(), os.pipe()

    def hold(call: Call) -> None:
        if (call.name, call.arguments[0]) == place:
            os.write(reached[1], b"x")
            os.read(go[0], 1)

    child = os.fork()
    if child == 0:
        status = 1
        try:
            Store(quick_path, rank=0, world_size=1, run="living", files=Watched(hold)).save(1, contents(1))
            status = 0
        finally:
            os._exit(status)
    os.read(reached[0], 1)
    other = Store(quick_path, rank=0, world_size=1, run="other")
    try:
        assert other.save(2, contents(2)) == 1
        assert below(quick_path, "writing-*") == ["writing-living-000000"]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert other.save(3, contents(3)) == 2
    assert below(quick_path, "writing-*") == []
    assert check(other.restore()) == 3
