# SPDX-License-Identifier: GPL-2.0-or-later
"""A session that has a checkpoint store, against an agent played by the test."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

import gandiva
from checkpointing.store import Store
from checkpointing.store.state import State as StoredState
from gandiva import layout
from gandiva.layout import RankRecord, State, Verb

from .conftest import Block
from .test_session import Trainer


class Counter:
    """State that says which step it is of."""

    def __init__(self) -> None:
        self.steps = 0
        self.extra: object = None

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class Job:
    """One rank that trains from the newest generation on."""

    def __init__(self, folder: Path, deadline_seconds: float = 20.0, world_size: int = 1) -> None:
        self.counter = Counter()
        self.session = gandiva.attach(rank=0, world_size=world_size)
        self.store = Store(
            folder, rank=0, world_size=world_size, run=f"run{id(self)}", deadline_seconds=deadline_seconds
        )
        self.first_step = self.session.register_store(self.store, StoredState(counter=self.counter))

    def train(self) -> Trainer:
        return Trainer(self.session, self._count)

    def _count(self, _: int) -> None:
        self.counter.steps += 1


def saved(block: Block, sequence: int) -> RankRecord:
    return block.wait_for(State.BLOCKED, sequence=sequence)


def pause(block: Block) -> RankRecord:
    return block.wait_for(State.BLOCKED, sequence=block.command(Verb.PAUSE))


def written(block: Block, folder: Path) -> Path:
    """The manifest of rank 0 in an attempt that is not published; waits for it."""
    Block.wait(lambda: block.rank() if any(folder.glob("writing-*/rank-00000/manifest.json")) else None)
    return next(folder.glob("writing-*/rank-00000/manifest.json"))


def restored(folder: Path) -> tuple[int, int]:
    """The step of the newest generation, and the one that its content says."""
    counter = Counter()
    step = StoredState(counter=counter).restore(Store(folder, rank=0, world_size=1))
    return step or 0, counter.steps


def test_without_a_scheduler_it_restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANDIVA_CONTROL_DIR", raising=False)
    monkeypatch.setattr(gandiva, "_current", None)
    store, counter = Store(tmp_path, rank=0, world_size=1), Counter()
    assert gandiva.attach().register_store(store, StoredState(counter=counter)) == 0
    counter.steps = 4
    StoredState(counter=counter).save(store, 4).result(20)
    counter.steps = 0
    assert gandiva.attach().register_store(store, StoredState(counter=counter)) == 4
    assert counter.steps == 4


def test_only_a_session_with_a_store_says_so(block: Block, tmp_path: Path) -> None:
    session = gandiva.attach(rank=0, world_size=1)
    assert not block.rank().flags & layout.FLAG_HAS_STORE
    session.register_store(Store(tmp_path, rank=0, world_size=1), StoredState(counter=Counter()))
    assert block.rank().flags & layout.FLAG_HAS_STORE
    session.finish()


def test_it_saves_where_it_is_blocked_and_the_next_run_goes_on_from_there(
    block: Block, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    assert job.first_step == 0
    trainer = job.train()
    before = pause(block)
    after = saved(block, block.command(Verb.SAVE, before.steps_done))
    assert (after.saved_step, after.saved_generation) == (before.steps_done, 1)
    assert after.steps_done == before.steps_done > 0, "it stays where it is"
    assert restored(tmp_path) == (before.steps_done,) * 2

    block.command(Verb.RUN)
    block.wait_for(State.RUNNING)
    trainer.finish()
    job.session.finish()
    gandiva._current = None
    again = Job(tmp_path)
    assert again.first_step == before.steps_done == again.counter.steps
    trainer = again.train()
    second = pause(block)
    last = saved(block, block.command(Verb.SAVE, second.steps_done))
    assert last.saved_generation == 2
    assert last.saved_step == again.first_step + second.steps_done == again.counter.steps
    block.command(Verb.RUN)
    block.wait_for(State.RUNNING)
    trainer.finish()
    again.session.finish()


def test_it_has_not_answered_before_the_generation_is_there(block: Block, tmp_path: Path) -> None:
    """Rank 1 writes nothing: no generation, and no answer until the agent takes its request back."""
    job = Job(tmp_path, deadline_seconds=600.0, world_size=2)
    trainer = job.train()
    before = pause(block)
    asked = block.command(Verb.SAVE, before.steps_done)
    written(block, tmp_path)
    now = block.rank()
    assert now.state == State.BLOCKED and now.answered_sequence < asked and now.saved_generation == 0
    block.wait_for(State.RUNNING, sequence=block.command(Verb.RUN))
    trainer.finish()
    job.session.finish()
    # The writer waits for rank 1 no longer, although its own deadline is far away.
    job.store.close()
    assert not list(tmp_path.glob("*-*"))


def test_a_save_that_fails_is_reported_and_training_goes_on(block: Block, tmp_path: Path) -> None:
    job = Job(tmp_path)
    trainer = job.train()
    before = pause(block)
    job.counter.extra = object()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = block.command(Verb.SAVE, before.steps_done)
        failed = block.wait_for(State.FAILED, sequence=asked)
        assert failed.error.rstrip(b"\0").startswith(b"TypeError: counter.extra is of type object")
        assert failed.saved_generation == 0
        job.counter.extra = None
        block.wait_for(State.RUNNING, sequence=block.command(Verb.RUN))
    assert not list(tmp_path.glob("generation-*"))
    # The next request is another one.
    before = pause(block)
    assert saved(block, block.command(Verb.SAVE, before.steps_done)).saved_generation == 1
    block.command(Verb.RUN)
    block.wait_for(State.RUNNING)
    trainer.finish()
    job.session.finish()


def test_a_session_without_a_store_refuses(block: Block) -> None:
    session = gandiva.attach(rank=0, world_size=1)
    trainer = Trainer(session)
    before = pause(block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed = block.wait_for(State.FAILED, sequence=block.command(Verb.SAVE, before.steps_done))
    assert b"no store is registered" in failed.error
    block.wait_for(State.RUNNING, sequence=block.command(Verb.RUN))
    trainer.finish()
    session.finish()


class OnGpu:
    """Something that is on the GPU, or off it."""

    def __init__(self, saves: bool | None) -> None:
        self.calls: list[str] = []
        if saves is not None:
            self.saves_offloaded = saves

    def offload(self) -> None:
        self.calls.append("offload")

    def restore(self) -> None:
        self.calls.append("restore")


@pytest.mark.parametrize("saves", [True, False, None])
def test_it_says_whether_it_can_save_off_its_gpu(block: Block, tmp_path: Path, saves: bool | None) -> None:
    """An object with ways of its own off the GPU says so itself."""
    session = gandiva.attach(rank=0, world_size=1)
    session.register(OnGpu(saves))
    assert not block.rank().flags & layout.FLAG_SAVES_OFFLOADED, "it has no store"
    session.register_store(Store(tmp_path, rank=0, world_size=1), StoredState(counter=Counter()))
    assert bool(block.rank().flags & layout.FLAG_SAVES_OFFLOADED) is bool(saves)
    session.finish()


def test_off_its_gpu_it_saves_and_stays_off(block: Block, tmp_path: Path) -> None:
    job, gpu = Job(tmp_path), OnGpu(True)
    job.session.register(gpu)
    trainer = job.train()
    before = pause(block)
    at = before.steps_done
    block.wait_for(State.OFFLOADED, sequence=block.command(Verb.OFFLOAD, at))
    after = block.wait_for(State.OFFLOADED, sequence=block.command(Verb.SAVE, at))
    assert (after.saved_step, after.saved_generation, after.steps_done) == (at, 1, at)
    assert restored(tmp_path) == (at, at)
    assert gpu.calls == ["offload"], "it does not come back to its GPU"
    block.wait_for(State.RUNNING, sequence=block.command(Verb.RUN))
    assert gpu.calls == ["offload", "restore"]
    trainer.finish()
    job.session.finish()


def test_a_save_off_its_gpu_that_fails_leaves_it_there(block: Block, tmp_path: Path) -> None:
    job, gpu = Job(tmp_path), OnGpu(True)
    job.session.register(gpu)
    trainer = job.train()
    at = pause(block).steps_done
    block.wait_for(State.OFFLOADED, sequence=block.command(Verb.OFFLOAD, at))
    job.counter.extra = object()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed = block.wait_for(State.OFFLOADED, sequence=block.command(Verb.SAVE, at))
        assert failed.error.startswith(b"TypeError: counter.extra is of type object")
        assert failed.saved_generation == 0 and failed.steps_done == at
        job.counter.extra = None
        block.wait_for(State.OFFLOADED, sequence=block.command(Verb.OFFLOAD, at))
    after = block.wait_for(State.OFFLOADED, sequence=block.command(Verb.SAVE, at))
    assert (after.saved_step, after.saved_generation) == (at, 1) and not after.error.rstrip(b"\0")
    assert gpu.calls == ["offload"]
    block.wait_for(State.RUNNING, sequence=block.command(Verb.RUN))
    trainer.finish()
    job.session.finish()


def test_a_save_off_its_gpu_is_taken_back_before_the_next_one(block: Block, tmp_path: Path) -> None:
    """Rank 1 writes nothing. Taking it back is answered when nothing is being written any more."""
    job, gpu = Job(tmp_path, deadline_seconds=600.0, world_size=2), OnGpu(True)
    job.session.register(gpu)
    trainer = job.train()
    at = pause(block).steps_done
    block.wait_for(State.OFFLOADED, sequence=block.command(Verb.OFFLOAD, at))
    asked = block.command(Verb.SAVE, at)
    written(block, tmp_path)
    assert block.rank().answered_sequence < asked
    block.wait_for(State.OFFLOADED, sequence=block.command(Verb.OFFLOAD, at))
    assert not list(tmp_path.glob("*-*"))
    # One that missed that writes nothing beside what it wrote before. The folder of its next attempt has the
    # same name and comes at once: an open file says that the first one is removed.
    block.command(Verb.SAVE, at)
    with written(block, tmp_path).open("rb") as first:
        block.command(Verb.SAVE, at)
        Block.wait(lambda: block.rank() if os.fstat(first.fileno()).st_nlink == 0 else None)
    written(block, tmp_path)
    block.wait_for(State.RUNNING, sequence=block.command(Verb.RUN))
    assert gpu.calls == ["offload", "restore"]
    trainer.finish()
    job.session.finish()
    job.store.close()
