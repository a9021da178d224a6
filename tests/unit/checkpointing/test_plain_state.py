# SPDX-License-Identifier: GPL-2.0-or-later
"""State of a job without PyTorch: plain data and bytes, and saves that ranks name alike."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpointing.store import InvalidGeneration, NotPublished, Store
from checkpointing.store.state import State

ROOT = Path(__file__).resolve().parents[3]


class Part:
    """A part of plain data."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def test_plain_data_comes_back_as_it_was(tmp_path: Path) -> None:
    values = {"step": 7, "shards": [b"\0\xff", b""], "order": (1, 2), "by": {3: b"x"}, "share": 0.1}
    store = Store(tmp_path, rank=0, world_size=1)
    random.seed(5)
    State(part=Part(**values)).save(store, 7).result(60)
    expected = random.random()
    part = Part()
    assert State(part=part).restore(store) == 7
    assert part.values == values
    assert random.random() == expected, "the generator goes on where it was"


def test_what_is_no_bytes_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, rank=0, world_size=1)
    store.save(
        1,
        {
            "state.json": b'{"part": {"a": {"$bytes": "=="}}}',
            "tensors.safetensors": b"\2" + b"\0" * 7 + b"{}",
        },
    )
    with pytest.raises(InvalidGeneration, match="bytes that cannot be read"):
        State(part=Part()).restore(store)


def test_pytorch_is_not_imported(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch.nn'] = None\n"
        "from checkpointing.store import Store; from checkpointing.store.state import State, run_word\n"
        "from tests.unit.checkpointing.test_plain_state import Part\n"
        f"store = Store({str(tmp_path)!r}, rank=0, world_size=1, run=run_word())\n"
        "print(State(part=Part(a=1)).save(store, 3).result(60), State(part=Part()).restore(store))\n"
        "assert 'torch' not in sys.modules"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "1 3\n"


def test_a_named_save_does_not_depend_on_how_many_a_rank_has_made(tmp_path: Path) -> None:
    """Rank 0 was asked for one more than rank 1: only what both name alike becomes a generation."""
    stores = [Store(tmp_path, rank=n, world_size=2, run="r", deadline_seconds=60.0) for n in range(2)]
    stores[0].deadline_seconds = 0.2
    with pytest.raises(NotPublished):
        stores[0].save_async(4, {"a": b"early"}, attempt="at4").result(60)
    stores[0].deadline_seconds = 20.0
    saves = [store.save_async(5, {"a": b"late"}, attempt="at5") for store in stores]
    assert [save.result(60) for save in saves] == [1, 1]
    saves = [store.save_async(6, {"a": b"counted"}) for store in stores]
    assert [save.result(60) for save in saves] == [2, 2], "the count is not disturbed"
    with pytest.raises(ValueError, match="attempt"):
        stores[0].save_async(7, {}, attempt="a/b")
