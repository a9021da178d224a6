# SPDX-License-Identifier: GPL-2.0-or-later
"""Exclusive locks on files between the agents of a node: for a moment, when one controller takes over from
another, there are two. Each waits with a deadline: the one that has the lock may hang."""

from __future__ import annotations

import fcntl

from controller.agent.deadline import Deadline, Poll


def try_lock(file: int) -> bool:
    """Take the lock of an open file, until it is closed. False: another process has it. Raises OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: int, deadline: Deadline) -> bool:
    """The same, once it is free. False: it was not by the deadline. Raises OSError."""
    poll = Poll(deadline)
    while not try_lock(file):
        if not poll.wait():
            return False
    return True
