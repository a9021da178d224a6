# SPDX-License-Identifier: GPL-2.0-or-later
"""`stop`: the processes of a job that is off its GPUs stop, and only now it has left them."""

import contextlib
import signal
import time
from collections.abc import Sequence

from controller.agent import returning
from controller.agent.control_block import ControlBlock, JobState
from controller.agent.deadline import Deadline, polls
from controller.agent.node import Node
from controller.agent.processes import ProcessId
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase

_CALM_SECONDS = 0.1
"""A step that the job's srun asked for just before it was stopped shows itself within that time."""
_CALM_SECONDS_OF_EMPTY = 0.5
"""The same of a job that had nothing on its GPUs: it may be between two steps, and slurmd be busy."""


def stop(node: Node, args: protocol.StopArgs, deadline: Deadline) -> None:
    """Stop all processes of the job that Slurm has not frozen yet, and make sure that none got onto a GPU
    before that. Only now the job has left.

    The agent does not wait for Slurm's suspend: that takes PreemptParameters=suspend_grace_time for all
    but the direct children of slurmstepd, and does not reach a step that is being started at this moment
    (docs/slurm-facts.md), so the job has not left before it is seen that there is no such step.
    """
    deadline = deadline.at_most(args.wait_seconds)
    with node.job(args.job_id, deadline) as (block, state):
        if not state.is_off:
            raise AgentError(
                ErrorKind.BAD_REQUEST,
                f"job {args.job_id} is {state.phase.value}: its memory must be off its GPUs first",
            )
        # From here on a step that is started waits.
        node.confinement.write(block, on=False, gpus=state.gpus, binding=state.binding)
        state = stop_all(node, block, state, deadline)
        try:
            node.verify_gone(state, state.residual_bytes)
            # Not before: who starts CUDA in the last moment is not to fail, but to keep its GPU.
            node.turn(block, False, state.gpus, state.binding, deadline.at_least(1.0))
        except AgentError as error:
            # One that had left before stays as it is: its GPUs may be another job's by now.
            if state.phase is not NodePhase.YIELDED:
                phase = NodePhase.RUNNING if state.empty else NodePhase.PAUSING
                state = block.change(state, phase=phase, off=False, empty=False, error=error.message)
                with contextlib.suppress(AgentError):
                    node.turn(block, True, state.gpus, state.binding, deadline.at_least(1.0))
                returning.let_run(node, state)
            raise
        block.change(state, phase=NodePhase.YIELDED)
        node.owners.release(node.uuids(state.gpus), state.job_id)


def stop_all(node: Node, block: ControlBlock, state: JobState, deadline: Deadline) -> JobState:
    """None of the job's processes runs any more. Raises AgentError `deadline`."""
    job_id, processes = state.job_id, node.processes
    calm_seconds = _CALM_SECONDS_OF_EMPTY if state.empty else _CALM_SECONDS
    calm_seconds *= processes.may_have_steps
    was_calm = False
    for _ in polls(deadline, longest_seconds=0.05):
        running = [p for p in processes.of_job(job_id) if processes.halted(p.pid) is None]
        launching = processes.launching(job_id) if not running else []
        if running and not state.stopped:
            # Written down first: who resumes the job lets them run again.
            state = block.change(state, stopped=True)
        # Again in each round: they may have started others meanwhile.
        processes.send(running, signal.SIGSTOP)
        calm = not running and not launching
        if calm and was_calm:
            if state.stopped:
                processes.freeze(processes.of_job(job_id), True)
            return state
        was_calm = calm
        if calm and deadline.left_seconds <= calm_seconds:
            break
        if calm:
            time.sleep(calm_seconds)
    raise AgentError(
        ErrorKind.DEADLINE, f"job {job_id}: {_still(running, launching)} after {deadline.seconds:.1f} s"
    )


def _still(running: Sequence[ProcessId], launching: Sequence[str]) -> str:
    if running:
        return f"process {running[0].pid} and {len(running) - 1} others are neither stopped nor frozen"
    if launching:
        return f"step {launching[0]} is still being started"
    return "it has not been calm for long enough"
