# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs of the agent protocol (docs/interfaces.md, section 4), by name.

Every verb is idempotent, works under the job's lock, writes down what it is about to do before it does it,
and leaves the job running when it fails, or says that it could not.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pydantic import BaseModel

from checkpointing.cuda_driver import CudaError
from checkpointing.driver_process import DriverProcesses
from controller.agent import leaving, looking, returning, saving, shares, warming
from controller.agent.control_block import ControlBlock, JobState
from controller.agent.deadline import Deadline, polls
from controller.agent.gpus import GpuReader
from controller.agent.node import AgentSettings, Node
from controller.agent.processes import ProcessId
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase
from gandiva.layout import Verb

log = logging.getLogger(__name__)

_CALM_SECONDS = 0.1
"""A step that the job's srun asked for just before it was stopped shows itself within that time."""
_CALM_SECONDS_OF_EMPTY = 0.5
"""The same of a job that had nothing on its GPUs: it may be between two steps, and slurmd be busy."""


def lead(_node: Node, _args: protocol.NoArgs, _deadline: Deadline) -> None:
    """Nothing but what every request of a controller does: it renews the lease."""


def prepare(node: Node, args: protocol.PrepareArgs, deadline: Deadline) -> None:
    """Make the control block before the job is released."""
    block = node.blocks.block(args.job_id)
    node.require_free(args.gpus, args.job_id, deadline, args.beside)
    if not block.exists() or block.uid() != args.uid:
        try:
            block.create(args.uid)
        except OSError as error:
            message = f"cannot make the control block {block.path}: {error}"
            raise AgentError(ErrorKind.INTERNAL, message) from error
    with block.locked(deadline), node.claiming(args.gpus, deadline):
        # Once more: an agent of another controller may have put a job back since.
        node.require_free(args.gpus, args.job_id, deadline, args.beside)
        if node.processes.of_job(args.job_id):
            # A start that slurmctld forgot when it was killed: a second copy would drain the node.
            raise AgentError(
                ErrorKind.GPU_BUSY,
                f"job {args.job_id} is here already: its processes must end before it can start again",
            )
        block.clear_ranks(args.uid)
        block.write_command(Verb.RUN, 0, len(args.gpus))
        block.write_visible(args.gpus, args.binding)
        block.save_state(JobState(**args.model_dump() | {"binding": args.binding or args.gpus}))
        shares.tell(node, node.blocks.states())
    node.owners.claim(node.uuids(args.gpus), args.job_id, args.uid)


def forget(node: Node, args: protocol.JobArgs, deadline: Deadline) -> None:
    """The job is over."""
    block = node.blocks.block(args.job_id)
    if not block.path.exists():
        return
    with block.locked(deadline):
        state = node.state(block)
        try:
            block.remove()
        except OSError as error:
            raise AgentError(ErrorKind.INTERNAL, f"cannot remove {block.path}: {error}") from error
    node.owners.release(node.uuids(state.gpus), args.job_id)


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
        state = _stop_all(node, block, state, deadline)
        try:
            node.verify_gone(state, state.residual_bytes)
        except AgentError as error:
            # One that had left before stays as it is: its GPUs may be another job's by now.
            if state.phase is not NodePhase.YIELDED:
                phase = NodePhase.RUNNING if state.empty else NodePhase.PAUSING
                state = block.change(state, phase=phase, off=False, empty=False, error=error.message)
                returning.let_run(node, state)
            raise
        block.change(state, phase=NodePhase.YIELDED)
        node.owners.release(node.uuids(state.gpus), state.job_id)


def _stop_all(node: Node, block: ControlBlock, state: JobState, deadline: Deadline) -> JobState:
    """Raises AgentError `deadline`."""
    job_id, processes = state.job_id, node.processes
    calm_seconds = _CALM_SECONDS_OF_EMPTY if state.empty else _CALM_SECONDS
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


VERBS: Mapping[str, Callable[..., object]] = {
    "hello": looking.hello,
    "lead": lead,
    "observe": looking.observe,
    "prepare": prepare,
    "pause": leaving.pause,
    "offload": leaving.offload,
    "checkpoint": leaving.checkpoint,
    "save": saving.save,
    "stop": stop,
    "resume": returning.resume,
    "forget": forget,
    "living": looking.living,
    "mapped": warming.mapped,
    "warm": warming.warm,
}
"""Each is called with the node, its arguments and the deadline."""


class NodeAgent:
    """All verbs. Thread-safe as long as each job's verbs come one after the other."""

    def __init__(self, settings: AgentSettings, reader: GpuReader, driver: DriverProcesses) -> None:
        self._node = Node(settings, reader, driver)

    def start(self) -> None:
        """Beside the work: clean up after agents that were killed (only what lies there now), and have the
        driver ready for the first switch."""
        blocks = self._node.blocks
        threading.Thread(target=blocks.empty, args=(blocks.trash(),), name="trash", daemon=True).start()
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def _warm_up(self) -> None:
        try:
            self._node.driver.warm_up()
        except CudaError as error:
            log.info("the CUDA driver is not ready: %s; the first call to it tries again", error)

    def carry_out(self, verb: str, args: BaseModel, deadline: Deadline) -> object:
        """Do what a request asks; returns one of the protocol's results, or None. Raises AgentError."""
        return VERBS[verb](self._node, args, deadline)

    def admit(self, whose: protocol.HelloArgs, verb: str) -> None:
        """May this session do that now? Raises AgentError not_leader."""
        if verb == "hello":
            return
        if whose.controller is not None:
            self._node.leases.renew(whose.controller, whose.lease_seconds)
        elif verb != "observe":
            self._node.leases.allow_nameless()
