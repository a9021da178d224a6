# SPDX-License-Identifier: GPL-2.0-or-later
"""How much one plan does, in looks: one look is what it costs to go over one job or node."""

LOOKS = 10_000
"""Of one plan."""
ADVANCE = 5
"""What it costs to change the note of a job whose time has come,"""
TURN = 20
"""to give a job its turn,"""
START = 40
"""to start one,"""
CHANGE = 4
"""to say of a job that was placed before,"""
WORDS = 5
"""to say why a job is where it is,"""
PAIR = 313
"""and to make a pair, or to part one."""
SEEN = 256
"""Candidates that one search looks at,"""
TRIED = 16
"""and of those that may do, how many it tries. What is not found so is not sought by the next plan."""


class Budget:
    """Once it is spent, the rest is for the next plan, which is asked for at once. So the time of a plan is
    bounded, and a small cluster is planned in one go. Each part of a plan does one thing at least."""

    def __init__(self) -> None:
        self.left = LOOKS
        self.more = False
        """The next plan goes on at once."""

    def spend(self, looks: int) -> bool:
        """These are done. Whether there is something left."""
        self.left -= looks
        return self.left > 0

    def allows(self, looks: int) -> bool:
        """Whether something that needs so many is done now, as it is where little is spent; else there is
        more, and nothing else that is asked for is done."""
        if self.more or looks > self.left < LOOKS * 3 // 4:
            self.more = True
            return False
        self.spend(looks)
        return True
