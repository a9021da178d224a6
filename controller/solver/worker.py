# SPDX-License-Identifier: GPL-2.0-or-later
"""The process that solves, on behalf of `WorkerSolver`: problems on standard input, answers on standard
output, one after the other. It ends with its standard input."""

from __future__ import annotations

import marshal
import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from controller.model.solving import ProblemKind
from controller.solver.frames import HEADER_BYTES, framed

if TYPE_CHECKING:
    from controller.solver.solve import Solve

LATE_SECONDS = 60
"""So long after the deadline of a problem the process ends by itself: its controller is not there."""
NICENESS = 5
"""Deciding goes first where the host has few cores."""
MEMORY_FRACTION = 0.5
"""Of the host's memory it may address so much."""
OOM_SCORE = 500
"""The kernel ends it before slurmctld and the controller, from which it would have a score below theirs."""


def main(load_others: Callable[[], Mapping[ProblemKind, Solve]] = dict) -> None:
    """Serve until standard input ends. `load_others`: for kinds of problems that are not the solvers' own."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print; that must not get between the answers
    os.nice(NICENESS)
    _spare_the_host()
    from controller.solver.solve import answer

    others = load_others()
    while len(header := requests.read(HEADER_BYTES)) == HEADER_BYTES:
        request = requests.read(int.from_bytes(header, "little"))
        signal.alarm(int(marshal.loads(request)[2]) + LATE_SECONDS)
        answers.write(framed(answer(request, others)))
        answers.flush()
        signal.alarm(0)


def _spare_the_host() -> None:
    """A problem that takes too much memory costs its answer, and nothing else."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = int(MEMORY_FRACTION * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
