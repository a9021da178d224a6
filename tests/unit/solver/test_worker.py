# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker process: real ones, and ones that hang, die or send nonsense."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controller.model import Problem, ProblemKind, Solution, SolutionStatus
from controller.solver import WorkerSolver
from controller.solver import worker_solver as worker_module
from tests.unit.solver.rows import Rows
from tests.unit.solver.test_solving import max_min

FAKE = """
import marshal, os, sys, time
from controller.solver.frames import framed
while len(header := sys.stdin.buffer.read(4)) == 4:
    kind, data, deadline_seconds = marshal.loads(sys.stdin.buffer.read(int.from_bytes(header, "little")))
    said = data["said"]
    if said == "hang":
        time.sleep(600)
    elif said == "die":
        os._exit(3)
    elif said == "kill":
        os.kill(os.getpid(), 9)
    elif said == "wait":
        while not os.path.exists(data["until"]):
            time.sleep(0.01)
        os.write(1, framed(marshal.dumps(("optimal", [1.0], 0.0, ""))))
    elif said == "text":
        os.write(1, b"Coin0506I Presolve 0 (-1) rows\\n")
        time.sleep(600)
    else:
        os.write(1, framed(marshal.dumps(said)))
"""
"""Does what a problem's data says."""


@asynccontextmanager
async def using(*command: str, retry_seconds: float = 0.0) -> AsyncIterator[WorkerSolver]:
    solver = WorkerSolver(command or worker_module.COMMAND, retry_seconds)
    try:
        yield solver
    finally:
        await solver.close()


async def solve(solver: WorkerSolver, problem: Problem) -> Solution:
    solved = asyncio.Event()
    solver.submit("x", problem, solved.set)
    await asyncio.wait_for(solved.wait(), 60)
    return solver.take()["x"]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come")


def allocation(scale: float = 1.0) -> Problem:
    return Problem(ProblemKind.CONIC, max_min([[2.0, scale], [3.0, 1.0]], [1.0, 1.0]).data(), subject=["a"])


def fake(said: object, deadline_seconds: float = 60.0, **more: object) -> Problem:
    return Problem(ProblemKind.LINEAR, {"cost": [1.0], "said": said, **more}, deadline_seconds)


def process_of(solver: WorkerSolver) -> asyncio.subprocess.Process:
    process = solver._process
    assert process is not None
    return process


async def test_problems_are_solved_by_one_process() -> None:
    async with using() as solver:
        found = await solve(solver, allocation())
        assert found.status is SolutionStatus.OPTIMAL and found.error == ""
        assert (found.problem, found.subject) == (allocation().identity, ["a"])
        assert found.seconds > 0
        first = process_of(solver).pid
        assert (await solve(solver, allocation(2.0))).status is SolutionStatus.OPTIMAL
        assert process_of(solver).pid == first, "one process for all problems"


async def test_the_event_loop_goes_on_while_a_problem_is_solved(tmp_path: Path) -> None:
    """Solved is what waits for something that the loop does meanwhile."""
    async with using(sys.executable, "-c", FAKE) as solver:
        waiting = asyncio.ensure_future(solve(solver, fake("wait", until=str(tmp_path / "done"))))
        await until(lambda: not solver._waiting)
        (tmp_path / "done").touch()
        assert (await waiting).status is SolutionStatus.OPTIMAL


async def test_the_last_problem_of_a_name_counts() -> None:
    """One that is being solved is finished; one that waits is dropped for the next."""
    problems = [allocation(scale) for scale in (1.0, 2.0, 3.0)]
    found: list[str] = []
    async with using() as solver:

        def take() -> None:
            found.extend(solution.problem for solution in solver.take().values())

        solver.submit("x", problems[0], take)
        await until(lambda: not solver._waiting)
        for problem in problems[1:]:
            solver.submit("x", problem, take)
        solver.submit("x", problems[2], take)
        await until(lambda: len(found) == 2)
        solver.submit("x", problems[2], take)
        await asyncio.sleep(0.05)
    assert found == [problems[0].identity, problems[2].identity]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("die", "died with status 3"),
        ("kill", "died with status -9"),
        ("text", "bytes is announced"),
        (5, "not an answer"),
        (("solved", [], 0.0, ""), "'solved' is not a valid SolutionStatus"),
        (("optimal", [], 0.0, ""), "0 values for 1 variables"),
        (("optimal", [float("nan")], 0.0, ""), "no finite numbers"),
        (("optimal", ["1"], 0.0, ""), "no finite numbers"),
        (("infeasible", [1.0], 0.0, ""), "1 values for 0 variables"),
    ],
)
async def test_death_and_nonsense_cost_one_problem(said: object, error: str) -> None:
    async with using(sys.executable, "-c", FAKE) as solver:
        found = await solve(solver, fake(said))
        assert found.status is SolutionStatus.FAILED and found.values == ()
        assert error in found.error
        found = await solve(solver, fake(("optimal", [2.0], 0.25, "")))
        assert (found.status, found.values, found.seconds) == (SolutionStatus.OPTIMAL, (2.0,), 0.25)


async def test_a_problem_that_takes_too_long_is_given_up_and_its_process_killed() -> None:
    async with using(sys.executable, "-c", FAKE) as solver:
        assert (await solve(solver, fake(("optimal", [1.0], 0.0, "")))).error == ""
        process = process_of(solver)
        began = time.monotonic()
        found = await solve(solver, fake("hang", deadline_seconds=0.3))
        assert found.status is SolutionStatus.FAILED and found.error == "not solved within 0.3 s"
        assert 0.3 <= found.seconds <= time.monotonic() - began
        assert process.returncode == -signal.SIGKILL
        assert (await solve(solver, fake(("optimal", [2.0], 0.0, "")))).error == ""
        assert process_of(solver).pid != process.pid


async def test_a_process_that_keeps_dying_is_not_started_at_once_again() -> None:
    async with using(sys.executable, "-c", "raise SystemExit(7)", retry_seconds=0.5) as solver:
        began = time.monotonic()
        for _ in range(3):
            assert "died with status 7" in (await solve(solver, allocation())).error
        assert time.monotonic() - began >= 1.0


async def test_a_process_that_cannot_be_started_is_told() -> None:
    async with using("/no/such/program") as solver:
        assert "No such file" in (await solve(solver, allocation())).error


async def test_close_ends_the_process_and_what_is_under_way() -> None:
    async with using(sys.executable, "-c", FAKE) as solver:
        solver.submit("x", fake("hang"), lambda: None)
        await until(lambda: solver._process is not None)
        process = process_of(solver)
        await solver.close()
        assert process.returncode == -signal.SIGKILL
        assert solver.take() == {}


async def test_the_process_loads_no_modules_from_its_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("controller", "numpy", "clarabel"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    async with using() as solver:
        assert (await solve(solver, allocation())).error == ""


async def test_the_process_is_the_first_to_die_for_memory_and_is_bounded() -> None:
    async with using() as solver:
        assert (await solve(solver, allocation())).error == ""
        assert solver._process is not None
        of_process = Path(f"/proc/{solver._process.pid}")
        assert int((of_process / "oom_score_adj").read_text()) == 500
        (line,) = [x for x in (of_process / "limits").read_text().splitlines() if "address space" in x]
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert int(line.split()[3]) <= whole // 2


async def test_the_process_ends_with_its_controller() -> None:
    """Also with one that was killed: its end of the pipe is closed then."""
    process = await asyncio.create_subprocess_exec(
        *worker_module.COMMAND, stdin=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0


def test_no_process_is_started_before_there_is_a_problem() -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    WorkerSolver()
    assert children.read_text() == before


def test_a_program_is_built_from_numbers_of_any_kind() -> None:
    """numpy's among them: the worker could not read them."""
    import numpy as np

    program = Rows()
    (x,) = program.variables(np.int64(1), cost=np.float64(1))
    program.at_most([(np.int64(x), np.float64(-1))], np.float64(-3))
    plain = Rows()
    plain.variables(1, cost=1.0)
    plain.at_most([(0, -1.0)], -3.0)
    kind = ProblemKind.LINEAR
    assert Problem(kind, program.data()).identity == Problem(kind, plain.data()).identity
