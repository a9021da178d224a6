# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds with a worker process that solves, dies, hangs or lies: jobs run all the same."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from controller.loop.pacing import PaceSettings
from controller.nodes.simulated import NodeCosts
from controller.policies.allocations.worker import COMMAND
from controller.policies.mechanisms.rounds import solving
from controller.slurm.port import JobState
from controller.slurm.simulated import SlurmCosts
from controller.solver import WorkerSolver, worker_solver
from tests.unit.loop.world import World
from tests.unit.policies.presets import preset

LIES = """
import marshal, os, sys
sys.path.insert(0, {root!r})
from controller.solver.frames import framed
while len(header := sys.stdin.buffer.read(4)) == 4:
    kind, data, deadline_seconds = marshal.loads(sys.stdin.buffer.read(int.from_bytes(header, "little")))
    os.write(1, framed(marshal.dumps(("optimal", [7.5] * data["variables"], 0.0, ""))))
"""
PROGRAMS = {
    "solves": list(COMMAND),
    "dies": [sys.executable, "-c", "raise SystemExit(9)"],
    "hangs": [sys.executable, "-c", "import time; time.sleep(600)"],
    "lies": [sys.executable, "-c", LIES.format(root=str(Path(__file__).resolve().parents[3]))],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_jobs_take_turns_whatever_the_solver_does(
    tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program == "hangs":
        monkeypatch.setattr(worker_solver, "START_SECONDS", 0.2)
    if program != "solves":
        monkeypatch.setattr(solving, "PATIENCE_SECONDS", 0.3)

    async def scenario() -> None:
        costs = (SlurmCosts(0.01, 0.01, 0.01), NodeCosts(*[0.01] * 3))
        world = World(tmp_path, gpus=2, slurm_costs=costs[0], node_costs=costs[1])
        world.policy = preset("gavel-las", round_seconds=1.0, deadline_seconds=0.5)()
        world.solver = WorkerSolver(PROGRAMS[program], retry_seconds=0.05)
        world.pace = PaceSettings(interval_seconds=0.1)
        jobs = [world.submit(work_seconds=2.5) for _ in range(3)]
        world.start()
        for _ in range(600):
            if len(world.running()) == 2:
                break
            await asyncio.sleep(0.01)
        assert len(world.running()) == 2
        await world.until_ended(jobs, 60)
        await world.stop()
        await world.solver.close()
        world.check()
        assert {world.state(job) for job in jobs} == {JobState.ENDED}
        said = {turn.plan.memory.common["rounds"]["error"] for turn in world.turns if turn.plan.memory.common}
        assert (said == {""}) == (program == "solves"), said
        assert any("its turn on" in words for turn in world.turns for words in turn.plan.reasons.values())

    asyncio.run(asyncio.wait_for(scenario(), 100))
