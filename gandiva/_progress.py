# SPDX-License-Identifier: MIT
"""What a training has done: mini-batches, their samples, and the time that one takes."""

import time
from typing import List

from ._control_block import ControlBlock

WARM_UP_STEPS = 5
WINDOW_STEPS = 20
PUBLISH_SECONDS = 0.5
"""How often the step time is worked out and published; never more than once a step."""


class Progress:
    """The boundaries that one process has passed."""

    def __init__(self, block: ControlBlock) -> None:
        self._block = block
        self.steps = 0
        self.samples = 0.0
        self.step_seconds = 0.0
        self.publish_at = 0.0
        self._clock = time.perf_counter
        self._window: List[float] = [0.0] * WINDOW_STEPS
        self._boundary = self._clock()

    def passed(self, samples: float) -> bool:
        """Count a boundary, where the agent sees it at once. True: it is time to publish the rest."""
        steps = self.steps = self.steps + 1
        total = self.samples = self.samples + samples
        block = self._block
        block.words[3] = steps  # layout.WORD_STEPS
        block.doubles[4] = total  # layout.WORD_SAMPLES
        now = self._clock()
        self._window[steps % 20] = now - self._boundary  # WINDOW_STEPS
        self._boundary = now
        return now >= self.publish_at

    def measure(self) -> bool:
        """Where it is time: work out the step time, a median, and put off the next time. True: it was."""
        if self._boundary < self.publish_at:
            return False
        self.publish_at = self._boundary + PUBLISH_SECONDS
        count = min(self.steps - WARM_UP_STEPS, WINDOW_STEPS)
        last = sorted(self._window[(self.steps - back) % WINDOW_STEPS] for back in range(count))
        self.step_seconds = last[count // 2] if last else 0.0
        return True

    def go_on(self) -> None:
        """The next mini-batch begins now: time off the GPU is no step time."""
        self._boundary = self._clock()
