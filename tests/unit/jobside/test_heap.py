# SPDX-License-Identifier: GPL-2.0-or-later
"""All objects of a kind are found, at whatever age and whoever froze them, and nothing else changes."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gandiva._heap import living


class Wanted:
    def __init__(self, number: int) -> None:
        self.number = number
        self.cycle: object = None


class Kind(Wanted):
    """A subclass counts."""


class Further(Kind):
    """A subclass's, too."""


class Proxy:
    """Says that it is what it is not."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks a proxy for {name}")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    gc.collect()
    yield
    gc.unfreeze()


def numbers() -> list[int]:
    found = [wanted.number for wanted in living(Wanted)]
    assert len(found) == len(set(found))
    return sorted(found)


def test_what_came_to_be_since_is_found_at_whatever_age() -> None:
    kept, proxy = [Wanted(0)], Proxy()
    assert numbers() == [0]
    kept.append(Kind(1))
    assert numbers() == [0, 1]
    kept.append(Further(2))
    gc.collect(0)
    gc.collect(1)
    assert numbers() == [0, 1, 2]
    kept.append(Wanted(3))
    gc.collect()
    kept.append(Wanted(4))
    assert numbers() == [0, 1, 2, 3, 4]
    del kept[1:3]
    assert numbers() == [0, 3, 4]
    del proxy


def test_what_the_script_has_frozen_is_found() -> None:
    kept = [Wanted(0)]
    gc.freeze()
    assert numbers() == [0]
    for number in range(1, 3):
        kept.append(Wanted(number))
        gc.freeze()
        assert numbers() == list(range(number + 1))
    kept.append(Wanted(3))
    gc.unfreeze()
    assert numbers() == [0, 1, 2, 3]


def test_a_class_without_a_hash_hinders_nothing() -> None:
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            raise AssertionError("nobody compares it")

    class Odd(metaclass=Meta):
        pass

    kept: list[object] = [Wanted(0), Odd(), Kind(1)]
    assert numbers() == [0, 1]
    del kept[:]


def test_the_script_sees_what_it_saw_before() -> None:
    """Memory debuggers and IPython's autoreload look at all objects."""
    wanted = Wanted(0)
    holder = {"it": wanted}
    callbacks = list(gc.callbacks)
    assert living(Wanted) == [wanted]
    assert any(found is wanted for found in gc.get_objects())
    assert any(found is holder for found in gc.get_referrers(wanted))
    assert (gc.get_freeze_count(), gc.callbacks) == (0, callbacks)
    assert weakref.getweakrefcount(wanted) == 0, "torch.utils.swap_tensors() refuses tensors that have one"


def test_garbage_is_freed_when_it_would_have_been() -> None:
    """Also where there is a suspend before each full collection would come."""

    def made(walks: bool) -> int:
        gc.collect()
        alive: weakref.WeakSet[Wanted] = weakref.WeakSet()
        most = 0
        for _ in range(100):
            for _ in range(100):
                wanted = Wanted(0)
                wanted.cycle = [wanted, *([] for _ in range(20))]
                alive.add(wanted)
            most = max(most, len(alive))
            if walks:
                living(Wanted)
        return most

    undisturbed = made(walks=False)
    assert undisturbed < 5_000
    assert made(walks=True) < undisturbed + 200


def test_objects_that_other_threads_make_meanwhile_are_found() -> None:
    kept: list[Wanted] = []
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set() and len(kept) < 20_000:
            kept.append(Wanted(len(kept)))

    thread = threading.Thread(target=make)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(50):
            before = len(kept)
            assert len(living(Wanted)) >= before
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert numbers() == list(range(len(kept)))
