# SPDX-License-Identifier: GPL-2.0-or-later
"""What the parts of the controller tell about their work, for `/metrics`. Durations are in seconds.

The daemon hands one `Measures` to the parts it puts together. The executor, the loop and the adapters know
nothing of it: it listens where they write and where they ask (`measuring`, `cluster.measured`,
`nodes.remote`), so that simulation pays nothing for it.
"""

from typing import Protocol


class Measures(Protocol):
    """Takes down what happened; called from the event loop, so it must cost microseconds."""

    def slurm_call(self, call: str, outcome: str, duration_seconds: float) -> None:
        """A call to Slurm. `outcome`: one of `slurm.measured.OUTCOMES`."""

    def agent_call(self, verb: str, outcome: str, duration_seconds: float) -> None:
        """A request to one agent. `outcome`: `ok` or the kind of the NodeError."""

    def step(self, step: str, duration_seconds: float) -> None:
        """A step of an operation was completed."""

    def step_failed(self, step: str) -> None:
        """An operation failed in this step."""

    def operation(self, kind: str, outcome: str, duration_seconds: float) -> None:
        """An operation (`place`, `suspend`, …) is over."""

    def move(self, name: str, verdict: str, gain: float | None) -> None:
        """A move (`pack`, …) did something to one job. `gain`: throughput as a multiple of that before."""

    def switch_gap(self, duration_seconds: float) -> None:
        """So long a GPU had no job although the next one was waiting for it."""

    def queue_wait(self, duration_seconds: float) -> None:
        """A job is on GPUs for the first time, so long after its submission."""

    def cycle(self, observe_seconds: float, plan_seconds: float) -> None:
        """A cycle of the loop was completed."""
