# SPDX-License-Identifier: GPL-2.0-or-later
"""A point in time by which something must be over, and what waits for it: polls, and locks on files between
the agents of a node. When one controller takes over from another, there are two of them for a moment."""

from __future__ import annotations

import fcntl
import time


class Deadline:
    """Counts down on the monotonic clock, so that a change of the wall clock changes nothing."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        """Never negative."""
        return max(0.0, self._until - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self._until

    def at_most(self, seconds: float) -> Deadline:
        """The earlier one of this and `seconds` from now."""
        return Deadline(min(seconds, self.left_seconds))

    def at_least(self, seconds: float) -> Deadline:
        """The later one of this and `seconds` from now: time that a last check is given in any case."""
        return Deadline(max(seconds, self.left_seconds))


class Poll:
    """Sleeps that grow from 1 ms: short waits end at once, long ones cost nothing."""

    def __init__(self, deadline: Deadline, longest_seconds: float = 0.02) -> None:
        self._deadline = deadline
        self._longest_seconds = longest_seconds
        self._seconds = 0.001

    def wait(self) -> bool:
        """Sleep a little; False, without sleeping, when the deadline has passed."""
        if self._deadline.passed:
            return False
        time.sleep(min(self._seconds, self._deadline.left_seconds))
        self._seconds = min(self._seconds * 1.5, self._longest_seconds)
        return True


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
