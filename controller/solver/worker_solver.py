# SPDX-License-Identifier: GPL-2.0-or-later
"""Solves in a worker process, so that the event loop goes on meanwhile and a solver that hangs or crashes
costs one problem."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from controller.model.solving import Problem, Solution, SolutionStatus
from controller.solver.frames import HEADER_BYTES, MOST_BYTES, InvalidAnswer, decode, encode, failed, framed

log = logging.getLogger(__name__)

START_SECONDS = 30.0
"""What a new process may take to load its libraries, besides the deadline of its first problem."""
RETRY_SECONDS = 5.0
"""After a process that died, hung or sent nonsense the next one is not started before this."""
REAP_SECONDS = 1.0
_ROOT = str(Path(__file__).resolve().parents[2])


def command_of(module: str) -> tuple[str, ...]:
    """A process that runs `main` of this module. Isolated: neither PYTHONPATH nor the working directory says
    which modules it loads."""
    program = f"import sys; sys.path.insert(0, {_ROOT!r}); import {module} as served; served.main()"
    return sys.executable, "-I", "-c", program


COMMAND = command_of("controller.solver.worker")


class WorkerSolver:
    """Implements `SolverPort` with one process, started with the first problem."""

    def __init__(self, command: Sequence[str] = COMMAND, retry_seconds: float = RETRY_SECONDS) -> None:
        self._command, self._retry_seconds = command, retry_seconds
        self._waiting: dict[str, tuple[Problem, Callable[[], None]]] = {}
        """By name: the problem, and what to call when it is solved."""
        self._stated: dict[str, str] = {}
        """Identities of the problems that were stated last and have not failed, by name."""
        self._solved: dict[str, Solution] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._serving: asyncio.Task[None] | None = None
        self._start_at = 0.0

    def submit(self, name: str, problem: Problem, on_solved: Callable[[], None]) -> None:
        if self._stated.get(name) == problem.identity:
            return
        self._stated[name] = problem.identity
        self._waiting[name] = (problem, on_solved)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve(), name="solver")

    def take(self) -> Mapping[str, Solution]:
        solved, self._solved = self._solved, {}
        return solved

    async def close(self) -> None:
        self._waiting.clear()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        await self._kill()

    async def _serve(self) -> None:
        """One problem after the other, in the order they were stated."""
        while self._waiting:
            name = next(iter(self._waiting))
            problem, on_solved = self._waiting.pop(name)
            began = time.monotonic()
            try:
                solution = await self._ask(problem)
            except (OSError, EOFError, InvalidAnswer, asyncio.TimeoutError) as error:
                why = str(error) or f"not solved within {problem.deadline_seconds:g} s"
                solution = failed(problem, why, time.monotonic() - began)
                await self._kill()
                self._start_at = time.monotonic() + self._retry_seconds
            if solution.status is SolutionStatus.FAILED and self._stated.get(name) == problem.identity:
                del self._stated[name]
            log.debug("problem %s: %s after %.3f s", name, solution.status.value, solution.seconds)
            self._solved[name] = solution
            on_solved()

    async def _ask(self, problem: Problem) -> Solution:
        """Raises OSError, EOFError, InvalidAnswer or TimeoutError where there is no answer."""
        deadline_seconds, process = problem.deadline_seconds, self._process
        if process is None or process.returncode is not None:
            process = await self._start()
            deadline_seconds += START_SECONDS
        body = await asyncio.wait_for(self._exchange(process, encode(problem)), deadline_seconds)
        return decode(problem, body)

    async def _start(self) -> asyncio.subprocess.Process:
        await asyncio.sleep(max(0.0, self._start_at - time.monotonic()))
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the controller's terminal is not for it.
        )
        return self._process

    async def _exchange(self, process: asyncio.subprocess.Process, request: bytes) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(framed(request))
            await process.stdin.drain()
            size = int.from_bytes(await process.stdout.readexactly(HEADER_BYTES), "little")
            if size > MOST_BYTES:
                raise InvalidAnswer(f"an answer of {size} bytes is announced")
            return await process.stdout.readexactly(size)
        except (EOFError, ConnectionError):
            raise EOFError(f"the solver's process died with status {await process.wait()}") from None

    async def _kill(self) -> None:
        """End the process and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.communicate(), REAP_SECONDS)
