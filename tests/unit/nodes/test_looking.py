# SPDX-License-Identifier: GPL-2.0-or-later
"""When a node was started."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from controller.nodes.looking import _booted_at
from controller.nodes.protocol import AgentError

BTIME = 1_795_256_523


def a_proc(folder: Path, first_ticks: int) -> Path:
    (folder / "1").mkdir()
    (folder / "stat").write_text(f"cpu  1 2 3\nbtime {BTIME}\nprocesses 5\n")
    fields = " ".join(["S", *["0"] * 18, str(first_ticks), "0", "0"])
    (folder / "1" / "stat").write_text(f"1 (init) (x) {fields}\n")
    return folder


def test_a_container_was_started_with_its_first_process_not_with_its_host(tmp_path: Path) -> None:
    proc = a_proc(tmp_path, 3600 * os.sysconf("SC_CLK_TCK"))
    assert _booted_at(proc) == BTIME + 3600


def test_this_machine_says_it() -> None:
    assert BTIME / 2 < _booted_at() <= time.time()


def test_what_cannot_be_told_is_no_answer(tmp_path: Path) -> None:
    a_proc(tmp_path, 0)
    (tmp_path / "1" / "stat").write_text("1 (init) S 0")
    with pytest.raises(AgentError, match="does not say when the node was started"):
        _booted_at(tmp_path)
