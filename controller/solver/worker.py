# SPDX-License-Identifier: GPL-2.0-or-later
"""The process that solves, on behalf of `WorkerSolver`: problems on standard input, answers on standard
output, one after the other. It ends with its standard input."""

from __future__ import annotations

import marshal
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from controller.model.solving import ProblemKind
from controller.solver.frames import HEADER_BYTES, framed

if TYPE_CHECKING:
    from controller.solver.solve import Solve

LATE_SECONDS = 60
"""So long after the deadline of a problem the process ends by itself: its controller is not there."""
NICENESS = 5
"""Deciding goes first where the host has few cores."""


def main(load_others: Callable[[], Mapping[ProblemKind, Solve]] = dict) -> None:
    """Serve until standard input ends. `load_others`: for kinds of problems that are not the solvers' own."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print; that must not get between the answers
    os.nice(NICENESS)
    from controller.solver.solve import answer

    others = load_others()
    while len(header := requests.read(HEADER_BYTES)) == HEADER_BYTES:
        request = requests.read(int.from_bytes(header, "little"))
        signal.alarm(int(marshal.loads(request)[2]) + LATE_SECONDS)
        answers.write(framed(answer(request, others)))
        answers.flush()
        signal.alarm(0)
