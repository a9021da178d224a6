# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes and trials: from a made-up /proc, and of real processes that try to get away."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from checkpointing.driver_process import DriverProcesses
from controller.agent import returning, stopping
from controller.agent.control_block import JobState
from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, NvmlSource
from controller.agent.identity import MOST_ANCESTORS, Trials
from controller.agent.node import AgentSettings, Node
from controller.agent.process_table import ProcessTable
from controller.agent.processes import Processes, ProcessId

from .conftest import PATIENCE_SECONDS, eventually
from .test_processes import V1, Table

RUN_DIR = Path("/run/user/1000/gandiva-3f2a")


def of_trial(number: int, run_dir: Path = RUN_DIR) -> dict[str, str]:
    return {"GANDIVA_CONTROL_DIR": f"{run_dir}/{number}"}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Processes are the agent's own user's, 1000, where nothing else is said."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)  # the agent is none of these processes
    monkeypatch.setattr(ProcessTable, "effective_uid", ProcessTable.uid)
    return Table(tmp_path)


def trials(table: Table) -> Processes:
    return Processes(Trials(RUN_DIR, ProcessTable(table.proc)), table.cgroups)


def test_a_trials_first_process_and_all_below_it_are_its_own(table: Table) -> None:
    table.add(1, uid=0, parent=0)
    table.add(40, parent=1)
    table.add(50, environ={**of_trial(3), "GANDIVA_ALLOCATION": ""}, parent=40)
    table.add(51, parent=50)
    table.add(52, parent=51, uid=0)  # sudo
    table.add(53, parent=52)
    table.add(54, environ=of_trial(12), parent=51)
    table.add(55, parent=54, cgroup=V1)
    found = trials(table)
    assert [found.job_of(pid) for pid in (1, 40, 50, 51, 52, 53, 54, 55, 99)] == [
        *(None, None, 3, 3, None, 3, 12, 12, None)
    ]
    assert sorted(process.pid for process in found.of_job(3)) == [50, 51, 53]
    assert (found.living(3), found.living(12), found.living(4)) == (3, 2, 0)
    assert found.launching(3) == []
    assert (found.is_here(3), found.is_here(12), found.is_here(4)) == (True, True, False)


def test_what_only_resembles_a_trial_is_none(table: Table) -> None:
    table.add(50, environ=of_trial(3, RUN_DIR.with_name("gandiva-3f2b")))
    table.add(51, environ=of_trial(3, RUN_DIR / "sub"))
    table.add(52, environ={"GANDIVA_CONTROL_DIR": f"{RUN_DIR}/3x", "GANDIVA_TRIAL": "3"})
    table.add(53, environ=of_trial(3), uid=1001)
    table.add(54, environ={"SLURM_JOB_ID": "3", "SLURMD_NODENAME": "n1"})
    table.add(55, environ=of_trial(0))
    table.add(56, environ={"NOTE": f"GANDIVA_CONTROL_DIR={RUN_DIR}/3"})
    found = trials(table)
    assert [found.job_of(pid) for pid in range(50, 57)] == [None] * 7
    assert found.living(3) == 0


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 3),
        ({"GANDIVA_ALLOCATION": "8", "SLURM_JOB_ID": "8"}, 3),
        # Submitted from within a trial: elsewhere, and by nobody's supervisor.
        ({"GANDIVA_ALLOCATION": "8", "SLURM_JOB_ID": "9"}, None),
        ({"GANDIVA_ALLOCATION": "", "SLURM_JOB_ID": "3"}, None),
        ({"GANDIVA_ALLOCATION": "8"}, None),
    ],
)
def test_what_slurm_started_for_a_trial_is_no_trial(
    table: Table, environ: dict[str, str], expected: int | None
) -> None:
    table.add(50, environ={**of_trial(3), **environ})
    assert trials(table).job_of(50) == expected


def test_a_trial_started_within_another_study_belongs_to_each(table: Table) -> None:
    table.add(50, environ=of_trial(3), parent=1)
    table.add(60, environ=of_trial(1, RUN_DIR.with_name("inner")), parent=50)
    assert trials(table).job_of(60) == 3
    inner = Processes(Trials(RUN_DIR.with_name("inner"), ProcessTable(table.proc)))
    assert (inner.job_of(60), inner.job_of(50)) == (1, None)


def test_an_agent_and_its_children_belong_to_no_trial(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 60)
    table.add(50, environ=of_trial(3))
    table.add(60, environ=of_trial(3), parent=50)
    table.add(61, environ={}, parent=60)
    driver = "python\0-m\0checkpointing.driver_process\0"
    table.add(70, environ=of_trial(3), parent=1, cmdline=driver)  # of an agent that has ended
    found = trials(table)
    assert [found.job_of(pid) for pid in (50, 60, 61, 70)] == [3, None, None, None]
    assert found.calls_the_driver(70) and found.living(3) == 1


def test_a_parent_that_ends_meanwhile_is_no_way_out(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.add(50, environ=of_trial(3))
    table.add(52, environ={}, parent=51)
    before = ProcessTable.parent

    def parent(self: ProcessTable, pid: int) -> int | None:
        found = before(self, pid)
        if found == 51:  # it ends right after this look
            (table.proc / "52" / "stat").write_text(f"52 (a) S 50 {'0 ' * 17}500 {'0 ' * 30}\n")
        return found

    monkeypatch.setattr(ProcessTable, "parent", parent)
    assert trials(table).job_of(52) == 3


def test_a_long_line_of_parents_has_an_end(table: Table) -> None:
    last = 100 + 2 * MOST_ANCESTORS
    table.add(100, environ=of_trial(3))
    for pid in range(101, last + 1):
        table.add(pid, environ={}, parent=pid - 1)
    table.add(90, parent=91)
    table.add(91, parent=90)
    found = trials(table)
    assert found.job_of(100 + MOST_ANCESTORS) == 3 and found.job_of(last) is None
    assert found.job_of(90) is None


def test_the_step_around_a_trial_is_not_frozen(table: Table) -> None:
    """It is the supervisor's too, and that of all trials."""
    table.add(50, environ=of_trial(3), cgroup=V1)
    state = table.cgroups / "freezer/slurm/uid_1000/job_12/step_0/freezer.state"
    state.parent.mkdir(parents=True)
    state.write_text("THAWED")
    trials(table).freeze([ProcessId(50, 500)], True)
    assert state.read_text() == "THAWED"


# --- real processes ----------------------------------------------------------------------------------------

WRAPPER = """
import contextlib, ctypes, os, signal, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
subprocess.Popen(sys.argv[1:])
with contextlib.suppress(ChildProcessError):
    while True:
        os.wait()
signal.pause()
"""


class Started:
    """Trials of real processes, below `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._wrappers: list[tuple[subprocess.Popen[bytes], int, Path]] = []

    def start(self, number: int, command: str, run_dir: Path | None = None) -> int:
        """The pid of the wrapper."""
        folder = run_dir or self.run_dir
        kept: Mapping[str, str] = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "GAND"))}
        wrapper = subprocess.Popen(
            [sys.executable, "-c", WRAPPER, "/bin/sh", "-c", command],
            env={**kept, **of_trial(number, folder), "GANDIVA_ALLOCATION": ""},
            start_new_session=True,
        )
        self._wrappers.append((wrapper, number, folder))
        return wrapper.pid

    def processes(self, run_dir: Path | None = None) -> Processes:
        return Processes(Trials(run_dir or self.run_dir))

    def close(self) -> None:
        for wrapper, number, folder in self._wrappers:
            processes = self.processes(folder)
            while left := [each for each in processes.of_job(number) if each.pid != wrapper.pid]:
                processes.send(left, signal.SIGKILL)
            wrapper.kill()
            wrapper.wait()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    made = Started(tmp_path / "run")
    yield made
    made.close()


def pid_in(file: Path) -> int:
    """Once it is there."""

    def read() -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(file.read_text())
        return 0

    return eventually(f"a pid in {file}", read)


def test_nothing_gets_away_from_its_trial(started: Started, tmp_path: Path) -> None:
    """Two forks, another session, no environment: the parent is the wrapper then."""
    escape = f"env -i /usr/bin/setsid /bin/sh -c 'echo $$ > {tmp_path}/%s; exec sleep 600'"
    wrapper = started.start(3, f"( {escape % 'first'} & ) & exec sleep 600")
    started.start(4, f"( {escape % 'second'} & ) &", tmp_path / "other")
    first, second = pid_in(tmp_path / "first"), pid_in(tmp_path / "second")
    table, processes = ProcessTable(), started.processes()
    eventually("it has lost its parent", lambda: table.parent(first) == wrapper)
    assert "GANDIVA" not in table.read(first, "environ")
    assert {wrapper, first} < {process.pid for process in processes.of_job(3)}
    assert processes.job_of(first) == 3 and processes.living(3) == 3
    assert processes.job_of(second) is None and processes.living(4) == 0
    assert started.processes(tmp_path / "other").job_of(second) == 4
    assert processes.job_of(os.getpid()) is None


def test_all_of_a_trial_stops_and_goes_on(started: Started, tmp_path: Path) -> None:
    """It starts processes all the time, so that some are there only after a look."""
    ticks = tmp_path / "ticks"
    forks = f"while :; do ( /usr/bin/setsid /bin/sh -c 'echo >> {ticks}; sleep 0.01' & ) ; sleep 0.01; done"
    wrapper = started.start(3, forks)
    other = started.start(4, "exec sleep 600")
    eventually("it is at work", lambda: ticks.exists() and ticks.stat().st_size > 3)
    node = Node(
        AgentSettings("n1", started.run_dir, None, trials=True), GpuReader(NvmlSource()), DriverProcesses()
    )
    block = node.blocks.block(3)
    block.create(os.getuid())
    state = block.save_state(JobState(job_id=3, uid=os.getuid()))
    state = stopping.stop_all(node, block, state, Deadline(PATIENCE_SECONDS))
    stopped = node.processes.of_job(3)
    assert wrapper in {process.pid for process in stopped}
    assert {node.processes.halted(process.pid) for process in stopped} == {"stopped"}
    assert node.processes.halted(other) is None
    size = ticks.stat().st_size
    assert state.stopped and node.processes.of_job(3) == stopped and ticks.stat().st_size == size
    returning.let_run(node, state)
    eventually("it is at work again", lambda: ticks.stat().st_size > size)
