# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes between the controller and the process that solves: a length of four bytes, little-endian, then
as many bytes of `marshal`. JSON takes ten times as long, and the event loop has to wait for it."""

import marshal
import math
from dataclasses import replace

from controller.model.solving import Problem, Solution, SolutionStatus

HEADER_BYTES = 4
MOST_BYTES = 1 << 28
WITH_VALUES = frozenset({SolutionStatus.OPTIMAL, SolutionStatus.INACCURATE})


class InvalidAnswer(Exception):
    """An answer that is none."""


def framed(body: bytes) -> bytes:
    """With its length before it."""
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def encode(problem: Problem) -> bytes:
    """A problem as the worker loads it: kind, data, and the deadline in seconds."""
    return marshal.dumps((problem.kind.value, dict(problem.data), problem.deadline_seconds))


def decode(problem: Problem, body: bytes) -> Solution:
    """The worker's answer: status, values, seconds and error. Raises InvalidAnswer."""
    try:
        status, values, seconds, error = marshal.loads(body)
        status, values, seconds = SolutionStatus(status), tuple(values), float(seconds)
    except (ValueError, TypeError, EOFError) as wrong:
        raise InvalidAnswer(f"not an answer: {wrong}") from None
    expected = problem.variables if status in WITH_VALUES else 0
    if len(values) != expected or not all(type(v) is float and math.isfinite(v) for v in values):
        raise InvalidAnswer(f"{len(values)} values for {expected} variables, or some are no finite numbers")
    return replace(failed(problem, str(error), seconds), status=status, values=values)


def failed(problem: Problem, error: str, seconds: float = 0.0) -> Solution:
    """There is no answer."""
    return Solution(
        problem=problem.identity,
        subject=problem.subject,
        status=SolutionStatus.FAILED,
        seconds=seconds,
        error=error,
    )
