# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of the checkpoint store have in common."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing.store import writing


@pytest.fixture(autouse=True)
def names_are_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SEEN_SECONDS", 0.2)


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a killed process loses nothing there that a disk would keep."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="gandiva-store-", dir=shared) as name:
        yield Path(name)
