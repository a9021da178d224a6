# SPDX-License-Identifier: GPL-2.0-or-later
"""`stop`: a job whose memory is off its GPUs cannot come back to them by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from controller.agent.control_block import ControlBlock, JobState
from controller.agent.deadline import Deadline, Poll
from controller.agent.node import Node
from controller.agent.processes import ProcessId
from controller.agent.returning import Returning
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase

_CALM_SECONDS = 0.1
"""A step that the job's srun asked for just before it was stopped shows itself within that time."""
_CALM_SECONDS_OF_EMPTY = 0.5
"""The same of a job that had nothing on its GPUs: it may be between two steps, and slurmd be busy."""


class Stopping:
    """The last verb of a suspend, whichever way the job left its GPUs."""

    def __init__(self, node: Node, returning: Returning) -> None:
        self._node = node
        self._returning = returning

    def stop(self, args: protocol.StopArgs, deadline: Deadline) -> None:
        """Stop all processes of the job that Slurm has not frozen yet, and make sure that none got onto a GPU
        before that. Only now the job has left.

        The agent does not wait for Slurm's suspend: that takes PreemptParameters=suspend_grace_time for all
        but the direct children of slurmstepd, and does not reach a step that is being started at this moment
        (docs/slurm-facts.md), so the job has not left before it is seen that there is no such step.
        """
        deadline = deadline.at_most(args.wait_seconds)
        with self._node.job(args.job_id, deadline) as (block, state):
            if not state.is_off:
                raise AgentError(
                    ErrorKind.BAD_REQUEST,
                    f"job {args.job_id} is {state.phase.value}: its memory must be off its GPUs first",
                )
            state = self._stop_all(block, state, deadline)
            try:
                self._node.verify_gone(state, state.residual_bytes)
            except AgentError as error:
                # One that had left before stays as it is: its GPUs may be another job's by now.
                if state.phase is not NodePhase.YIELDED:
                    phase = NodePhase.RUNNING if state.empty else NodePhase.PAUSING
                    state = block.change(state, phase=phase, off=False, empty=False, error=error.message)
                    self._returning.let_run(state)
                raise
            block.change(state, phase=NodePhase.YIELDED)
            self._node.owners.release(self._node.uuids(state.gpus), state.job_id)

    def _stop_all(self, block: ControlBlock, state: JobState, deadline: Deadline) -> JobState:
        """Raises AgentError `deadline`."""
        job_id, processes = state.job_id, self._node.processes
        calm_seconds = _CALM_SECONDS_OF_EMPTY if state.empty else _CALM_SECONDS
        poll = Poll(deadline, longest_seconds=0.05)
        was_calm = False
        while True:
            running = [p for p in processes.of_job(job_id) if processes.halted(p.pid) is None]
            launching = processes.launching(job_id) if not running else []
            if running and not state.stopped:
                # Written down first: who resumes the job lets them run again.
                state = block.change(state, stopped=True)
            # Again in each round: they may have started others meanwhile.
            processes.send(running, signal.SIGSTOP)
            calm = not running and not launching
            if calm and was_calm:
                return state
            was_calm = calm
            if calm and deadline.left_seconds > calm_seconds:
                time.sleep(calm_seconds)
            elif calm or not poll.wait():
                raise AgentError(
                    ErrorKind.DEADLINE,
                    f"job {job_id}: {_still(running, launching)} after {deadline.seconds:.1f} s",
                )


def _still(running: Sequence[ProcessId], launching: Sequence[str]) -> str:
    if running:
        return f"process {running[0].pid} and {len(running) - 1} others are neither stopped nor frozen"
    if launching:
        return f"step {launching[0]} is still being started"
    return "it has not been calm for long enough"
