# SPDX-License-Identifier: GPL-2.0-or-later
"""One simulated fault of each kind; GANDIVA_FAULTS=all runs every one (some hours of simulated time, many
minutes of real time), as `python -m tests.unit.faults` does."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.cluster.simulated import SlurmCosts
from controller.model import JobId
from tests.unit.faults import scenarios
from tests.unit.faults.faulty import Trouble
from tests.unit.faults.scenarios import Row
from tests.unit.faults.stage import Stage

ALL = os.environ.get("GANDIVA_FAULTS") == "all"

SOME: dict[str, Callable[[], Row]] = {
    "kills": lambda: scenarios.random_kills(5),
    "kills, deltas": lambda: scenarios.random_kills(5, deltas=True),
    "packed jobs": lambda: scenarios.packed([1]),
    "stale": lambda: scenarios.at_steps(
        "old views of both (5 s) once more", [Step.SLURM_SUSPEND], [1], "gandiva"
    ),
    "numbers": lambda: scenarios.forgotten([Step.OFFLOAD], [1], dead=False),
    "clock": lambda: scenarios.clock_jumps([-3600.0], ("gandiva",)),
    "disk": lambda: scenarios.full_disk([5]),
    "lies": lambda: scenarios.troubled_call("offload", Trouble.OLDER, [2]),
}


@pytest.mark.parametrize("name", SOME)
@pytest.mark.skipif(ALL, reason="all of them run instead")
def test_nothing_is_lost_and_it_settles(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    row = SOME[name]()
    assert row.passed, f"{row.fault}, {row.where}: {row.outcome}"
    assert row.times > 0


@pytest.mark.skipif(not ALL, reason="set GANDIVA_FAULTS=all")
def test_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    failed = [row for row in scenarios.rows() if not row.passed]
    assert failed == []


def test_the_checks_can_fail(caplog: pytest.LogCaptureFixture) -> None:
    """A job that slurmctld suspends behind everybody's back for good is noticed."""
    caplog.set_level(logging.CRITICAL)

    async def unsettled(folder: Path) -> int:
        stage = Stage(folder, nodes=1, gpus=1)
        job_id = stage.submit(work_seconds=5)
        stage.nodes._may_work = lambda _job: False  # type: ignore[method-assign, assignment]
        stage.cluster.may_work = lambda _job: False
        stage.start()
        with pytest.raises(AssertionError, match=f"not ended after 30 s: {{{job_id}"):
            await stage.all_end(30.0)
        stage.cluster.cancel(job_id)
        await stage.finish()
        with pytest.raises(AssertionError):
            stage.check_all()  # it was cancelled, and by nobody who said so
        return 1

    assert scenarios.run(unsettled) == 1


def test_a_job_that_a_killed_controller_released_keeps_its_gpu(caplog: pytest.LogCaptureFixture) -> None:
    """It starts any moment, and cannot be held: nobody else may be put where it was prepared."""
    caplog.set_level(logging.CRITICAL)

    async def released(folder: Path) -> int:
        stage = Stage(folder, nodes=1, gpus=1, slurm_costs=SlurmCosts(0.005, 2.0, 0.1))
        first, second = stage.submit(work_seconds=40), stage.submit(work_seconds=20)
        stage.start()
        died = asyncio.Event()

        def act(step: Step, job_id: JobId) -> None:
            if step is Step.AWAIT_START and job_id == second:
                died.set()
                raise asyncio.CancelledError

        stage.before_step(act)
        await died.wait()
        assert stage.state(first) is JobState.SUSPENDED
        stage.faults.arm("hold", *[Trouble.NEVER] * 500)
        await stage.kill_and_wait(0.0)
        stage.start()
        await stage.all_end(300.0)
        await stage.finish()
        stage.check_all(slack_seconds=4.0)
        return 1

    assert scenarios.run(released) == 1
