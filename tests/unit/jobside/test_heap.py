# SPDX-License-Identifier: GPL-2.0-or-later
"""All objects of a kind are found, at whatever age and whoever froze them, and each is looked at once."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gandiva._heap import Heap


class Wanted:
    def __init__(self, number: int) -> None:
        self.number = number
        self.cycle: object = None


class Kind(Wanted):
    """A subclass counts."""


class Proxy:
    """Says that it is what it is not."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks a proxy for {name}")


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def numbers(heap: Heap) -> list[int]:
    found = [wanted.number for wanted in heap.find()]
    assert len(found) == len(set(found))
    return sorted(found)


def test_what_came_to_be_since_is_found_at_whatever_age() -> None:
    heap, kept, proxy = Heap(Wanted), [Wanted(0)], Proxy()
    assert numbers(heap) == [0]
    kept.append(Kind(1))
    assert numbers(heap) == [0, 1]
    kept.append(Wanted(2))
    gc.collect(0)
    gc.collect(1)
    assert numbers(heap) == [0, 1, 2]
    kept.append(Wanted(3))
    gc.collect()
    kept.append(Wanted(4))
    assert numbers(heap) == [0, 1, 2, 3, 4]
    del kept[1:3]
    assert numbers(heap) == [0, 3, 4]
    del proxy


def test_what_the_script_has_frozen_is_found() -> None:
    kept = [Wanted(0)]
    gc.freeze()
    heap = Heap(Wanted)
    assert numbers(heap) == [0]
    for number in range(1, 3):
        kept.append(Wanted(number))
        gc.freeze()
        assert numbers(heap) == list(range(number + 1))
    kept.append(Wanted(3))
    gc.unfreeze()
    assert numbers(heap) == [0, 1, 2, 3]


def test_two_of_them_find_the_same() -> None:
    first, second, kept = Heap(Wanted), Heap(Wanted), []
    for number in range(4):
        kept.append(Wanted(number))
        assert numbers((first, second)[number % 2]) == list(range(number + 1))


def test_nothing_is_looked_at_twice_until_a_full_collection() -> None:
    heap = Heap(Wanted)
    ballast = [[number] for number in range(50_000)]
    heap.find()
    assert len(gc.get_objects()) < 5_000
    gc.collect()
    assert len(gc.get_objects()) > len(ballast)


def test_garbage_is_freed_as_without_it() -> None:
    heap = Heap(Wanted)
    wanted = Wanted(0)
    wanted.cycle = wanted
    gone = weakref.ref(wanted)
    heap.find()
    del wanted
    assert numbers(heap) == [0]
    gc.collect()
    assert gone() is None and numbers(heap) == []


def test_garbage_is_freed_without_a_call_too() -> None:
    heap = Heap(Wanted)
    wanted = Wanted(0)
    wanted.cycle = wanted
    gone = weakref.ref(wanted)
    heap.find()
    del wanted
    kept: list[list[int]] = []
    while gone() is not None and len(kept) < 3_000_000:
        kept.append([])
    assert gone() is None


def test_objects_that_other_threads_make_meanwhile_are_found() -> None:
    kept: list[Wanted] = []
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set() and len(kept) < 20_000:
            kept.append(Wanted(len(kept)))

    heap = Heap(Wanted)
    thread = threading.Thread(target=make)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(50):
            heap.find()
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert numbers(heap) == list(range(len(kept)))
