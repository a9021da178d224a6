# SPDX-License-Identifier: GPL-2.0-or-later
"""A point in time by which something must be over, and polls that wait for it."""

from __future__ import annotations

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
