# SPDX-License-Identifier: GPL-2.0-or-later
"""An allocation policy states optimisation problems and places jobs by their solutions: on virtual time, and
in real time with a worker process."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from controller.cluster.port import JobState
from controller.cluster.simulated import SlurmCosts
from controller.loop.loop import Cycle
from controller.loop.pacing import PaceSettings
from controller.model import (
    JobId,
    Memory,
    Placement,
    Plan,
    Problem,
    ProblemKind,
    Snapshot,
    Solution,
    SolutionStatus,
    Target,
)
from controller.nodes.simulated import NodeCosts
from controller.simulation.rounds import InRounds
from controller.simulation.snapshot_file import as_json
from controller.simulation.virtual_time import run_virtual
from controller.solver import ImmediateSolver, SolverPort, WorkerSolver
from controller.solver.worker_solver import COMMAND
from tests.unit.loop.world import World
from tests.unit.solver.rows import Rows
from tests.unit.solver.test_worker import until

NAME = "heaviest"


class Heaviest:
    """The jobs with most weight in all that fit on the GPUs, one GPU each. A job that runs runs on."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        if not snapshot.jobs:
            return Plan({})
        problem = self.state(snapshot)
        solution = snapshot.solutions.get(NAME)
        if solution is None or solution.problem != problem.identity or not solution.values:
            return Plan({}, problems={NAME: problem})
        taken = {gpu for job in snapshot.jobs.values() for gpu in job.placement.gpus | job.promised}
        free = iter(sorted(g.id for n in snapshot.nodes.values() for g in n.gpus if g.id not in taken))
        targets: dict[JobId, Target] = {}
        for number, share in zip(solution.subject, solution.values, strict=True):
            job = snapshot.jobs[JobId(number)]
            if share > 0.5 and job.may_start:
                gpu = frozenset({next(free)})
                targets[job.id] = Target(Placement(gpu, gpu))
        return Plan(targets, dict.fromkeys(targets, "it weighs most"))

    @staticmethod
    def state(snapshot: Snapshot) -> Problem:
        program, jobs = Rows(), sorted(snapshot.jobs)
        shares = [program.variables(1, cost=-snapshot.jobs[i].request.weight)[0] for i in jobs]
        for job_id, share in zip(jobs, shares, strict=True):
            program.at_most([(share, -1.0)], 0.0)
            program.at_most([(share, 1.0)], 1.0)
            if snapshot.jobs[job_id].placement.gpus:
                program.equal([(share, 1.0)], 1.0)
        gpus = sum(len(node.gpus) for node in snapshot.nodes.values())
        program.at_most([(share, 1.0) for share in shares], float(gpus))
        return Problem(ProblemKind.LINEAR, program.data(), 60.0, [int(job_id) for job_id in jobs])


def world_of(folder: Path, solver: SolverPort, pause_seconds: float = 0.01) -> World:
    """Two GPUs, and a Slurm that is quick enough for real time."""
    quick = (SlurmCosts(pause_seconds, pause_seconds, pause_seconds), NodeCosts(*[pause_seconds] * 3))
    world = World(folder, gpus=2, policy=Heaviest(), slurm_costs=quick[0], node_costs=quick[1])
    world.solver = solver
    world.pace = PaceSettings(interval_seconds=0.05)
    return world


async def all_run(
    folder: Path, solver: SolverPort, meanwhile: Callable[[World], Awaitable[None]] | None = None
) -> tuple[World, list[int]]:
    """Four jobs on two GPUs, one of them long. Returns the jobs in the order of their starts."""
    world = world_of(folder, solver)
    jobs = [world.submit(work_seconds=s, weight=w) for s, w in ((0.3, 1), (0.3, 2), (3.0, 4), (0.3, 3))]
    world.start()
    if meanwhile is not None:
        await meanwhile(world)
    await world.until_ended(jobs, 60)
    await world.stop()
    await solver.close()
    world.check()
    starts = [(world.cluster.jobs[i].start_time or 0.0, int(i)) for i in jobs]
    return world, [number for _, number in sorted(starts)]


def in_real_time(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(), 100)

    asyncio.run(main())


def solutions(world: World) -> list[Solution]:
    """In the order in which snapshots had them."""
    return [
        cycle.snapshot.solutions[name] for cycle in world.cycles for name in cycle.snapshot.changed.solutions
    ]


def test_jobs_are_placed_by_a_solution_on_virtual_time(tmp_path: Path) -> None:
    world, order = run_virtual(all_run(tmp_path, ImmediateSolver()), start=1_000_000.0)
    assert set(order[:2]) == {3, 4} and order[2:] == [2, 1]
    stating = next(cycle for cycle in world.cycles if cycle.plan.problems)
    solved = next(cycle for cycle in world.cycles if cycle.snapshot.changed.solutions)
    assert not stating.plan.targets and not stating.snapshot.solutions
    assert set(solved.plan.targets) == {3, 4}
    # Solving takes no virtual time: what passes is what the loop waits for events that come together.
    assert solved.snapshot.time - stating.snapshot.time < 0.1
    found = solved.snapshot.solutions[NAME]
    assert found.problem == stating.plan.problems[NAME].identity
    assert found.values == pytest.approx((0, 0, 1, 1), abs=1e-6)


def test_what_a_round_states_is_decided_in_the_same_round(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = world_of(tmp_path, ImmediateSolver())
        world.policy = InRounds(Heaviest(), round_seconds=100.0, late_seconds=0.02)
        world.start()
        await asyncio.sleep(150)
        job = world.submit(work_seconds=20.0)
        await world.until_ended([job], 200)
        assert 200 <= (world.cluster.jobs[job].start_time or 0.0) - 1_000_000.0 < 202
        await world.stop()

    run_virtual(scenario(), start=1_000_000.0)


def test_jobs_are_placed_by_a_solution_of_a_worker_process(tmp_path: Path) -> None:
    """The same decisions as on virtual time, and cycles go on while it solves."""
    gate = tmp_path / "gate"
    program = (
        f"import os, sys, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        f"os.execv(sys.executable, {list(COMMAND)!r})\n"
    )

    def first(world: World) -> list[Cycle]:
        return [cycle for cycle in world.cycles if cycle.plan.problems and not cycle.snapshot.solutions]

    async def turns_go_on(world: World) -> None:
        await until(lambda: len(first(world)) >= 2)
        gate.touch()

    async def scenario() -> None:
        world, order = await all_run(tmp_path, WorkerSolver([sys.executable, "-c", program]), turns_go_on)
        assert set(order[:2]) == {3, 4}
        assert all(solution.status is SolutionStatus.OPTIMAL for solution in solutions(world))
        assert len({cycle.plan.problems[NAME].identity for cycle in first(world)}) == 1

    in_real_time(scenario)


def test_a_controller_that_starts_again_states_its_problem_again(tmp_path: Path) -> None:
    """What the solver knew is gone with it; nothing of a solution is in the journal."""

    async def scenario() -> None:
        world = world_of(tmp_path, WorkerSolver([sys.executable, "-c", "import time; time.sleep(600)"]))
        jobs = [world.submit(work_seconds=1.0), world.submit(work_seconds=1.0)]
        world.start()
        await until(lambda: any(cycle.plan.problems for cycle in world.cycles))
        hung = world.solver
        await world.kill()
        await hung.close()
        assert not world.running()
        world.solver = WorkerSolver()
        world.start()
        await world.until_ended(jobs, 60)
        await world.stop()
        await world.solver.close()
        world.check()

    in_real_time(scenario)


def test_a_solver_that_dies_is_told_once_and_the_problem_stated_again_is_solved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs wait meanwhile: nothing is known of their allocation."""
    tries = tmp_path / "tries"
    program = (
        "import os, pathlib, sys\n"
        f"tries = pathlib.Path({str(tries)!r})\n"
        "tries.write_text((tries.read_text() if tries.exists() else '') + 'x')\n"
        "if len(tries.read_text()) < 4: sys.exit(9)\n"
        f"os.execv(sys.executable, {list(COMMAND)!r})\n"
    )

    async def scenario() -> None:
        solver = WorkerSolver([sys.executable, "-c", program], retry_seconds=0.1)
        world, order = await all_run(tmp_path, solver)
        assert set(order[:2]) == {3, 4}
        found = [solution.status for solution in solutions(world)]
        assert found[:4] == [SolutionStatus.FAILED] * 3 + [SolutionStatus.OPTIMAL]

    with caplog.at_level(logging.WARNING):
        in_real_time(scenario)
    said = [record.getMessage() for record in caplog.records if NAME in record.getMessage()]
    assert len(said) == 2, said
    assert said[0].startswith("problem heaviest is not solved: the solver's process died with status 9")
    assert said[1] == "solver heaviest: solves it again"


def test_a_problem_without_a_solution_is_an_answer_too(tmp_path: Path) -> None:
    """No error: what it means is the policy's to say."""

    class Greedy(Heaviest):
        @staticmethod
        def state(_snapshot: Snapshot) -> Problem:
            program = Rows()
            (x,) = program.variables(1, cost=1.0)
            program.at_most([(x, 1.0)], 0.0)
            program.at_most([(x, -1.0)], -1.0)
            return Problem(ProblemKind.LINEAR, program.data())

    async def scenario() -> None:
        world = world_of(tmp_path, ImmediateSolver())
        world.policy = Greedy()
        job = world.submit()
        world.start()
        await asyncio.sleep(5)
        assert [solution.status for solution in solutions(world)] == [SolutionStatus.INFEASIBLE]
        assert world.state(job) is JobState.PENDING
        assert world.controller is not None and world.controller.conditions.sentences == ()
        await world.stop()

    run_virtual(scenario(), start=1_000_000.0)


def test_plans_and_snapshots_with_problems_read_back_from_json() -> None:
    """As a recorded decision keeps them."""
    problem = Problem(ProblemKind.CONIC, {"cost": [1.0]}, subject=["a"])
    plan = Plan({}, problems={NAME: problem})
    assert TypeAdapter(Plan).validate_json(json.dumps(as_json(plan))) == plan
    solution = Solution(
        problem=problem.identity, subject=["a"], status=SolutionStatus.OPTIMAL, values=(2.0,), seconds=0.5
    )
    snapshot = Snapshot(time=1.0, nodes={}, jobs={}, solutions={NAME: solution})
    assert TypeAdapter(Snapshot).validate_python(json.loads(json.dumps(as_json(snapshot)))) == snapshot
