# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that shares its GPUs keeps to its limit; a stand-in for torch.cuda takes note of it."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator

import pytest

import gandiva
from gandiva import _accelerator
from gandiva.layout import State, Verb

from .conftest import Block

GIB = 1 << 30


class Cuda:
    """Stands for torch.cuda with three GPUs of 80 GiB: what its own limits do, and no more."""

    def __init__(self) -> None:
        self.initialized = True
        self.current = 0
        self.reserved = {0: 5 * GIB, 1: 7 * GIB, 2: 0}
        self.fractions: dict[int, float] = {}
        self.calls = 0
        self.broken = False

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return len(self.reserved)

    def memory_reserved(self, index: int) -> int:
        if self.broken:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        return self.reserved[index]

    def get_device_properties(self, index: int) -> object:
        assert self.initialized, f"GPU {index}: this makes a context"
        return types.SimpleNamespace(total_memory=80 * GIB)

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        assert self.reserved[index], "this makes a context"
        self.calls += 1
        self.fractions[index] = fraction
        self.current = index  # as some releases do


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(_accelerator, "_limits", {})
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=made))
    return made


def pass_boundary(session: gandiva.Session) -> None:
    """Where the session is due to publish."""
    session._progress.publish_at = 0.0  # type: ignore[attr-defined]
    session.step()


def test_pytorch_is_kept_to_the_limit_and_let_go(block: Block, cuda: Cuda) -> None:
    session = gandiva.attach()
    pass_boundary(session)
    assert (session.memory_limit_bytes, cuda.calls) == (0, 0), "a job that is alone is left alone"
    block.limit(60 * GIB)
    pass_boundary(session)
    assert session.memory_limit_bytes == 60 * GIB
    assert cuda.fractions == {0: 0.75, 1: 0.75}, "GPU 2 is not used"
    assert cuda.current == 0
    pass_boundary(session)
    assert cuda.calls == 2, "nothing has changed"
    cuda.reserved[2] = GIB
    pass_boundary(session)
    assert cuda.fractions[2] == 0.75
    block.limit(100 * GIB)
    pass_boundary(session)
    assert set(cuda.fractions.values()) == {1.0}
    block.limit(40 * GIB)
    pass_boundary(session)
    assert cuda.fractions == {0: 0.5, 1: 0.5, 2: 0.5}
    block.limit(0)
    pass_boundary(session)
    assert cuda.fractions == {0: 1.0, 1: 1.0, 2: 1.0}


@pytest.mark.usefixtures("cuda")
def test_a_limit_is_noticed_without_a_command(block: Block) -> None:
    session = gandiva.attach()
    session.step()
    answered = block.rank().answered_sequence
    block.limit(60 * GIB)
    pass_boundary(session)
    assert (block.rank().state, block.rank().answered_sequence) == (State.RUNNING, answered)
    assert not session.asked


def test_it_counts_from_attach_and_from_register_on(block: Block, cuda: Cuda) -> None:
    block.limit(20 * GIB)
    cuda.initialized = False
    session = gandiva.attach()
    assert cuda.fractions == {}, "the session makes no context"
    cuda.initialized = True
    session.register()
    assert cuda.fractions == {0: 0.25, 1: 0.25}
    session.finish()
    assert session.memory_limit_bytes == 0
    block.command(Verb.RUN)
    block.limit(40 * GIB)
    assert gandiva.attach().memory_limit_bytes == 40 * GIB
    assert cuda.fractions == {0: 0.5, 1: 0.5}


def test_an_allocator_that_knows_no_limits_is_no_obstacle(block: Block, cuda: Cuda) -> None:
    block.limit(20 * GIB)
    cuda.broken = True
    session = gandiva.attach()
    pass_boundary(session)
    assert cuda.fractions == {}


def test_outside_slurm_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANDIVA_CONTROL_DIR", raising=False)
    monkeypatch.setattr(gandiva, "_current", None)
    assert gandiva.attach().memory_limit_bytes == 0
