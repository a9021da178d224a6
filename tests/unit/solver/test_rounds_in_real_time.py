# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds with a worker process that solves, dies, hangs or lies: jobs run all the same."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from controller.cluster.port import JobState
from controller.cluster.simulated import SlurmCosts
from controller.loop.pacing import PaceSettings
from controller.model import Reason, reason_of
from controller.nodes.simulated import NodeCosts
from controller.policies.allocations.worker import COMMAND
from controller.policies.mechanisms.rounds import problem
from controller.solver import WorkerSolver, worker_solver
from tests.unit.loop.world import World
from tests.unit.policies.presets import preset
from tests.unit.solver.test_worker import until

LIES = """
import marshal, os, sys
sys.path.insert(0, {root!r})
from controller.solver.frames import framed
while len(header := sys.stdin.buffer.read(4)) == 4:
    kind, data, deadline_seconds = marshal.loads(sys.stdin.buffer.read(int.from_bytes(header, "little")))
    os.write(1, framed(marshal.dumps(("optimal", [float(sys.argv[1])] * data["variables"], 0.0, ""))))
"""
LIAR = [sys.executable, "-c", LIES.format(root=str(Path(__file__).resolve().parents[3]))]
PROGRAMS = {
    "solves": list(COMMAND),
    "dies": [sys.executable, "-c", "raise SystemExit(9)"],
    "hangs": [sys.executable, "-c", "import time; time.sleep(600)"],
    "lies": [*LIAR, "7.5"],
}
ERRORS = {
    "solves": "",
    "dies": "is not solved: the solver's process died with status 9",
    "hangs": "is not solved: not solved within",
    "lies": "has no useful solution: the solver answered fractions from 7.5 to 7.5",
}
"""What is said of it, in the log and by `gandiva status`."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_jobs_take_turns_whatever_the_solver_does(
    tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if program == "hangs":
        monkeypatch.setattr(worker_solver, "START_SECONDS", 0.2)
    if program != "solves":
        monkeypatch.setattr(problem, "PATIENCE_SECONDS", 0.3)

    async def scenario() -> None:
        costs = (SlurmCosts(0.01, 0.01, 0.01), NodeCosts(*[0.01] * 3))
        world = World(tmp_path, gpus=2, slurm_costs=costs[0], node_costs=costs[1])
        # Where an answer comes, it may take its time on a busy machine.
        deadline_seconds = 0.5 if program == "hangs" else 60.0
        world.policy = preset("gavel-las", round_seconds=1.0, deadline_seconds=deadline_seconds)()
        world.solver = WorkerSolver(PROGRAMS[program], retry_seconds=0.05)
        world.pace = PaceSettings(interval_seconds=0.1)
        jobs = [world.submit(work_seconds=1.5) for _ in range(3)]
        world.start()
        await until(lambda: len(world.running()) == 2)
        await world.until_ended(jobs, 60)
        await world.stop()
        await world.solver.close()
        world.check()
        assert {world.state(job) for job in jobs} == {JobState.ENDED}
        said = [words for cycle in world.cycles for words in cycle.plan.reasons.values()]
        assert any(reason_of(words) is Reason.ITS_TURN and "its turn on" in words for words in said)

    asyncio.run(asyncio.wait_for(scenario(), 100))
    said = [text for record in caplog.records if (text := record.getMessage()).startswith("problem ")]
    assert bool(said) == (program != "solves")
    assert all(text.startswith(f"problem gavel-las {ERRORS[program]}") for text in said), said
