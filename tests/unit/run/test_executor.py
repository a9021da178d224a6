# SPDX-License-Identifier: GPL-2.0-or-later
"""Futures of `gandiva.Executor` where a file system has its moods: each is settled all the same."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gandiva import Executor, Pool
from gandiva.executor import TrialFuture


def over(folder: Path, name: str, **keys: Any) -> TrialFuture:
    """Of a trial that has returned 5."""
    facts = {"name": name, "state": "COMPLETED", "reason": "", "exit_code": 0, "output": folder / "out"}
    (folder / f"{name}.result").write_bytes(pickle.dumps((True, 5)))
    trial = SimpleNamespace(done=lambda: True, **{**facts, **keys})
    return TrialFuture(cast(Any, trial), folder / name)


def test_a_result_that_cannot_be_removed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    executor = Executor(cast(Pool, None))
    executor._pending = [over(tmp_path, "first"), over(tmp_path, "second")]
    futures = list(executor._pending)
    monkeypatch.setattr(Path, "unlink", refused)
    assert executor._settle()
    assert [future.result(timeout=0) for future in futures] == [5, 5]


def test_a_trial_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    class Stale:
        def done(self) -> bool:
            return True

        @property
        def reason(self) -> str:
            raise OSError(116, "Stale file handle")

    stale, good = TrialFuture(cast(Any, Stale()), tmp_path / "stale"), over(tmp_path, "good")
    executor = Executor(cast(Pool, None))
    executor._pending = [stale, good]
    assert executor._settle()
    assert isinstance(stale.exception(timeout=0), OSError) and good.result(timeout=0) == 5
