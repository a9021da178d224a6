# SPDX-License-Identifier: GPL-2.0-or-later
"""A point in time by which something must be over, and polls that wait for it."""

import time
from collections.abc import Iterator


class Deadline:
    """Counts down on the monotonic clock, so that a change of the wall clock changes nothing."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        """Never negative."""
        return max(0.0, self._until - time.monotonic())

    def at_most(self, seconds: float) -> "Deadline":
        """The earlier one of this and `seconds` from now."""
        return Deadline(min(seconds, self.left_seconds))

    def at_least(self, seconds: float) -> "Deadline":
        """The later one of this and `seconds` from now: time that a last check is given in any case."""
        return Deadline(max(seconds, self.left_seconds))


def polls(deadline: Deadline, longest_seconds: float = 0.02) -> Iterator[None]:
    """Once, and again until the deadline, with sleeps between that grow from 1 ms: short waits end at once,
    long ones cost nothing."""
    seconds = 0.001
    while True:
        yield
        if not deadline.left_seconds:
            return
        time.sleep(min(seconds, deadline.left_seconds))
        seconds = min(seconds * 1.5, longest_seconds)
