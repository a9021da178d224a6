# SPDX-License-Identifier: GPL-2.0-or-later
"""No look for garbage within a decision."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from controller.loop.loop import collected_later


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """Generations looked at since the test began; Python looks at every tenth object that is made."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(10, 10, 10)
    yield seen
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(note)


def test_what_a_decision_makes_is_looked_at_after_it(collections: list[int]) -> None:
    with collected_later():
        collections.clear()
        kept = [[number] for number in range(100)]
        assert not collections
    kept += [[number] for number in range(100)]
    assert collections


def test_who_looks_for_no_garbage_at_all_goes_on_so_even_after_an_error() -> None:
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError), collected_later():
            raise ZeroDivisionError
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(ZeroDivisionError), collected_later():
        raise ZeroDivisionError
    assert gc.isenabled()
