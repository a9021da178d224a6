# SPDX-License-Identifier: GPL-2.0-or-later
"""Communicators of a made-up NCCL: as NCCL's, each call waits for all ranks."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

import gandiva
from gandiva import _communicators
from gandiva.layout import State, Verb

from .conftest import PATIENCE_SECONDS, Block
from .test_session import Trainer

RANKS = 2


class Backend:
    """One communicator, seen by all ranks."""

    def __init__(self, name: str = "nccl", too_old: bool = False) -> None:
        self._name = name
        self._too_old = too_old
        self._all = threading.Barrier(RANKS, timeout=PATIENCE_SECONDS)
        self.suspended = 0

    def name(self) -> str:
        return self._name

    def memory_stats(self) -> dict[str, int]:
        if self._too_old:
            raise RuntimeError("ncclCommMemStats needs NCCL 2.29.7")
        return {"suspend": 500, "suspended": 0, "persist": 70, "total": 570}

    def suspend(self) -> None:
        if self._all.wait() == 0:
            self.suspended += 1

    def resume(self) -> None:
        if self._all.wait() == 0:
            self.suspended -= 1


class Store:
    """As PyTorch's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            found = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(found).encode()
            return found

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self._lock:
            if self._values.get(key, b"") == expected.encode():
                self._values[key] = desired.encode()
            return self._values[key]

    def check(self, keys: list[str]) -> bool:
        with self._lock:
            return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        with self._lock:
            return self._values[key]


def fake_torch(*backends: Backend) -> Any:
    groups = dict.fromkeys(Group(backend) for backend in backends)
    store = Store()
    return types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 0),
        device=lambda *words: words,
        distributed=types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_world_size=lambda: RANKS,
            distributed_c10d=types.SimpleNamespace(
                _world=types.SimpleNamespace(pg_map=groups), _get_default_store=lambda: store
            ),
        ),
    )


class Group:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def _get_backend(self, device: object) -> Backend:
        return self._backend


def together(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_all_ranks_suspend_and_resume_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = [Backend(), Backend()]
    monkeypatch.setitem(sys.modules, "torch", fake_torch(*backends, Backend("gloo")))
    ranks = [gandiva.Communicators() for _ in range(RANKS)]
    for _ in range(3):
        assert [rank.state_bytes() for rank in ranks] == [1000, 1000]
        together(*(rank.offload for rank in ranks))
        assert [backend.suspended for backend in backends] == [1, 1]
        together(*(rank.restore for rank in ranks))
        assert [backend.suspended for backend in backends] == [0, 0]


def test_a_rank_that_does_not_come_leaves_none_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_communicators, "AGREE_SECONDS", 0.1)
    backend = Backend()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(backend))
    first, late = gandiva.Communicators(), gandiva.Communicators()
    together(first.offload)
    together(late.offload)
    together(first.restore, late.restore)
    together(first.offload, late.offload)
    assert backend.suspended == 0


def test_ranks_that_know_different_communicators_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_communicators, "AGREE_SECONDS", 0.1)
    module = fake_torch(Backend(), Backend())
    monkeypatch.setitem(sys.modules, "torch", module)
    ranks = [gandiva.Communicators() for _ in range(RANKS)]
    distributed = module.distributed
    answers: list[bool] = []
    together(
        lambda: answers.append(ranks[0]._agree(distributed, 1)),
        lambda: answers.append(ranks[1]._agree(distributed, 2)),
    )
    assert answers == [False, False]


class StandingStore(Store):
    """One whose process stands still between `stop()` and `go_on()`: calls wait, whatever their timeout."""

    def __init__(self) -> None:
        super().__init__()
        self._moves = threading.Event()
        self.stopped_at = "none"

    def _move(self, key: str) -> None:
        if self.stopped_at in key:
            assert self._moves.wait(PATIENCE_SECONDS)

    def go_on(self) -> None:
        self._moves.set()

    def check(self, keys: list[str]) -> bool:
        self._move(keys[0])
        return super().check(keys)

    def add(self, key: str, amount: int) -> int:
        self._move(key)
        return super().add(key, amount)


@pytest.mark.parametrize("stopped_at", ["arrived", "decision"])
def test_a_store_that_stands_still_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, stopped_at: str
) -> None:
    """As rank 0's process has it: it comes when it goes on, and finds that the other one is gone."""
    monkeypatch.setattr(_communicators, "AGREE_SECONDS", 0.2)
    backend = Backend()
    module = fake_torch(backend)
    store = StandingStore()
    store.stopped_at = stopped_at
    module.distributed.distributed_c10d._get_default_store = lambda: store
    monkeypatch.setitem(sys.modules, "torch", module)
    waiting, owner = gandiva.Communicators(), gandiva.Communicators()
    together(waiting.offload)
    store.go_on()
    together(owner.offload)
    assert backend.suspended == 0


EXIT = """
import time, types
from gandiva import _communicators

class Slow:
    def add(self, key, amount):
        time.sleep(0.5)
        print("answered", flush=True)
        raise RuntimeError("it is gone")

_communicators.AGREE_SECONDS = 0.1
_communicators.EXIT_SECONDS = 60.0
module = types.SimpleNamespace(_get_default_store=Slow)
distributed = types.SimpleNamespace(distributed_c10d=module, get_world_size=lambda: 2)
print(_communicators.Communicators()._agree(distributed, 1), flush=True)
"""


def test_the_end_of_the_process_waits_a_moment_for_the_store() -> None:
    """A call of PyTorch's store that comes back while Python ends aborts the process."""
    done = subprocess.run([sys.executable, "-c", EXIT], stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout.split() == [b"False", b"answered"]


@pytest.mark.parametrize(
    "backends", [(), (Backend("gloo"),), (Backend(too_old=True),)], ids=["none", "gloo", "old"]
)
def test_where_they_cannot_be_suspended_they_stay(
    monkeypatch: pytest.MonkeyPatch, backends: tuple[Backend, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(*backends))
    alone = gandiva.Communicators()
    assert alone.state_bytes() == 0
    together(alone.offload, alone.restore)
    assert [backend.suspended for backend in backends] == [0] * len(backends)


def test_without_torch_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    alone = gandiva.Communicators()
    alone.offload()
    alone.restore()


def test_a_session_takes_them_as_any_hook(block: Block) -> None:
    session = gandiva.attach()
    session.register(gandiva.Communicators())
    trainer = Trainer(session)
    block.command(Verb.PAUSE, 3)
    block.wait_for(State.BLOCKED)
    block.command(Verb.OFFLOAD, 3)
    block.wait_for(State.OFFLOADED)
    block.command(Verb.RUN)
    block.wait_for(State.RUNNING)
    trainer.finish()
