# SPDX-License-Identifier: GPL-2.0-or-later
"""A step that is frozen on real control groups of both versions, laid out as Slurm does it."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.agent.identity import SlurmJobs
from controller.agent.processes import Processes

MOUNT = Path("/sys/fs/cgroup")
PATIENCE_SECONDS = 60.0
SHORT_SECONDS = 0.3
"""Within it a process that may run would answer, mostly."""
_NUMBERS = itertools.count(900_000_000)


class Step:
    """A step of a job, with a process that answers."""

    def __init__(self, version: int) -> None:
        job = next(_NUMBERS) + os.getpid() % 10_000 * 100
        unified = MOUNT if (MOUNT / "cgroup.controllers").exists() else MOUNT / "unified"
        if version == 1:
            self.top = MOUNT / "freezer" / f"slurm_test{job}"
            task = self.top / f"uid_1/job_{job}/step_0/task_0"
        else:
            self.top = unified / f"test{job}_slurmstepd.scope"
            task = self.top / f"job_{job}/step_0/user/task_0"
        if not self.top.parent.exists() or not os.access(self.top.parent, os.W_OK):
            pytest.skip(f"no control groups of version {version} here, or no right to make one")
        task.mkdir(parents=True)
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        (task / "cgroup.procs").write_text(str(self.process.pid))
        self.processes = Processes(SlurmJobs(f"test{job}", lambda _job: os.getuid()))
        (self.it,) = self.processes.of_job(job)

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"x")

    def answers(self, seconds: float) -> bool:
        """Whether the answer to one `ask` comes in time."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return bool(ready) and self.process.stdout.read(1) == b"x"

    def close(self) -> None:
        self.processes.freeze([self.it], False)
        self.process.kill()
        self.process.communicate()
        for folder, _, _ in os.walk(self.top, topdown=False):
            Path(folder).rmdir()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def step(request: pytest.FixtureRequest) -> Iterator[Step]:
    made = Step(request.param)
    yield made
    made.close()


def test_no_signal_of_its_owner_lets_a_frozen_job_run(step: Step) -> None:
    step.ask()
    assert step.answers(PATIENCE_SECONDS)
    step.processes.send([step.it], signal.SIGSTOP)
    step.processes.freeze([step.it], True)
    os.kill(step.process.pid, signal.SIGCONT)
    step.ask()
    assert not step.answers(SHORT_SECONDS)
    assert step.processes.halted(step.process.pid) is not None
    step.processes.freeze([step.it], False)
    assert step.answers(PATIENCE_SECONDS)
    assert step.processes.halted(step.process.pid) is None
