# SPDX-License-Identifier: GPL-2.0-or-later
"""When a node was started."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from controller.agent.identity import SlurmJobs
from controller.agent.looking import _booted_at
from controller.agent.process_table import ProcessTable
from controller.agent.processes import Processes
from controller.nodes.protocol import AgentError


def a_proc(folder: Path, first: str) -> Processes:
    (folder / "1").mkdir()
    (folder / "1" / "stat").write_text(f"1 (init) (x) {first}\n")
    return in_proc(folder)


def in_proc(folder: Path) -> Processes:
    return Processes(SlurmJobs("n1", lambda _job: None, ProcessTable(folder)))


def test_a_container_was_started_with_its_first_process_not_with_its_host(tmp_path: Path) -> None:
    host = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    ticks = 3600 * os.sysconf("SC_CLK_TCK")
    proc = a_proc(tmp_path, " ".join(["S", *["0"] * 18, str(ticks), "0", "0"]))
    assert _booted_at(proc) == pytest.approx(host + 3600, abs=60)


def test_this_machine_says_it() -> None:
    host = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert host - 60 < _booted_at(in_proc(Path("/proc"))) < time.time()


def test_what_cannot_be_told_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="1/stat does not say when the node was started"):
        _booted_at(a_proc(tmp_path, "S 0"))
