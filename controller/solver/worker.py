# SPDX-License-Identifier: GPL-2.0-or-later
"""The process that solves, on behalf of `WorkerSolver`: problems on standard input, answers on standard
output, one after the other. It ends with its standard input."""

import marshal
import os
import signal

from controller.solver.frames import HEADER_BYTES, framed

LATE_SECONDS = 60
"""So long after the deadline of a problem the process ends by itself: its controller is not there."""
NICENESS = 5
"""Deciding goes first where the host has few cores."""


def main() -> None:
    """Serve until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print; that must not get between the answers
    os.nice(NICENESS)
    from controller.solver.solve import answer

    while len(header := requests.read(HEADER_BYTES)) == HEADER_BYTES:
        request = requests.read(int.from_bytes(header, "little"))
        signal.alarm(int(marshal.loads(request)[2]) + LATE_SECONDS)
        answers.write(framed(answer(request)))
        answers.flush()
        signal.alarm(0)
