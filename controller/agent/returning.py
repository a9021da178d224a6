# SPDX-License-Identifier: GPL-2.0-or-later
"""`resume`, and the undo of whatever went wrong on the way off the GPUs."""

import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence

from controller.agent import shares, transparent
from controller.agent.control_block import CheckpointedProcess, ControlBlock, JobState
from controller.agent.deadline import Deadline, polls
from controller.agent.gpus import describe
from controller.agent.node import NVML_SECONDS, Node
from controller.agent.processes import ProcessId
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase, RankState
from gandiva.layout import Verb

log = logging.getLogger(__name__)

Off = Sequence[CheckpointedProcess]
"""Processes of a job that the driver has taken off the GPUs."""

HALTED_SECONDS = 2.0
"""Slurm's resume reaches the processes within 22 ms. What is still frozen after so long stays frozen."""


def open_gpus(node: Node, args: protocol.ResumeArgs, deadline: Deadline) -> None:
    """A job that is off its GPUs may open `gpus`, which are free. Slurm resumes it now: CUDA may start in it
    before `resume` comes. `stop` takes it back."""
    deadline = deadline.at_most(args.deadline_seconds)
    with node.job(args.job_id, deadline) as (block, state):
        if state.phase is not NodePhase.YIELDED:
            return
        if state.gpus and set(args.gpus) != set(state.gpus):
            _check_movable(node, state, args)
        with node.claiming(args.gpus, deadline, (args.job_id, *args.beside)):
            needed = _memory_needed(node, state, _off(node, state), args.gpus)
            node.require_free(args.gpus, args.job_id, deadline, args.beside, needed)
            node.turn(block, True, args.gpus, args.binding or state.binding, deadline)


def resume(node: Node, args: protocol.ResumeArgs, deadline: Deadline) -> None:
    """Put the job's state back onto `gpus` and let it go on; also the undo of everything above."""
    deadline = deadline.at_most(args.deadline_seconds)
    with node.job(args.job_id, deadline) as (block, state):
        binding = args.binding or state.binding or args.gpus
        if not state.gpus:
            state = _where_it_is(node, state, deadline)
        moved = bool(state.gpus) and set(args.gpus) != set(state.gpus)
        if moved:
            _check_movable(node, state, args)
        off = _off(node, state)
        with node.claiming(args.gpus, deadline, (args.job_id, *args.beside)):
            # A job that has not finished leaving still has its GPUs: to undo that nothing need be free.
            # Notes without a GPU were lost: they do not tell whether their job had finished leaving.
            has_none = state.phase is NodePhase.YIELDED or not state.gpus
            beside = set(args.beside)
            if not has_none and not moved:
                beside |= node.beside(state)
            place: dict[str, object] = {"gpus": args.gpus, "binding": binding, "beside": sorted(beside)}
            if has_none or off or moved:
                needed = _memory_needed(node, state, off, args.gpus)
                node.require_free(args.gpus, args.job_id, deadline, beside, needed)
            # Before it runs: CUDA may start in it at any moment.
            with node.on_gpus(block, args.gpus, binding, deadline, has_none or moved):
                let_run(node, state)
                wait_thawed(node, block, state, off, deadline)
            # From here on the GPUs are this job's, whatever happens: say so before anything is restored.
            if has_none:
                state = block.change(state, phase=NodePhase.PAUSING, off=False, error="", **place)
                shares.tell(node, node.blocks.states())
        try:
            _restore(node, off, args.gpus, binding, args.job_id, deadline)
        except AgentError as error:
            if error.kind is ErrorKind.UNSUPPORTED and _is_gone(node, state):
                node.turn(block, False, off[0].gpus, binding, deadline.at_least(1.0))
                raise _stays_off(block, state, off, args, error) from error
            if error.kind in (ErrorKind.DRIVER, ErrorKind.UNSUPPORTED):
                block.change(state, phase=NodePhase.FAILED, off=False, error=error.message)
                raise AgentError(ErrorKind.DRIVER, error.message) from error
            raise
        node.write_visible(block, args.gpus, binding)
        sequence = block.write_command(Verb.RUN, 0, len(args.gpus))
        state = block.change(
            state,
            phase=NodePhase.RUNNING,
            checkpointed=(),
            mapped=state.mapped or any(set(process.gpus) != set(args.gpus) for process in off),
            empty=False,
            off=False,
            stopped=False,
            left_bytes=0,
            target_step=0,
            error="",
            **place,
        )
        node.owners.claim(node.uuids(args.gpus), args.job_id, state.uid)
        _wait_running(node, block, state, sequence, deadline)


def _is_gone(node: Node, state: JobState) -> bool:
    """Whether NVML, too, sees nothing of the job beyond what it may keep."""
    try:
        node.verify_gone(state, state.residual_bytes)
    except AgentError:
        return False
    return True


def _stays_off(
    block: ControlBlock, state: JobState, off: Off, args: protocol.ResumeArgs, error: AgentError
) -> AgentError:
    """The driver refused to move the job, which is off its GPUs as before: its old ones are its place."""
    old = off[0].gpus
    message = (
        f"job {state.job_id} cannot move from {describe(old)} to {describe(args.gpus)}: {error.message};"
        f" it continues on {describe(old)}"
    )
    log.warning("job %d: %s", state.job_id, error.message)
    block.change(state, phase=NodePhase.YIELDED, gpus=old, movable=False, map_refused=True, error=message)
    return AgentError(ErrorKind.UNSUPPORTED, message)


def wait_thawed(node: Node, block: ControlBlock, state: JobState, off: Off, deadline: Deadline) -> None:
    """Raises AgentError `halted`, before anything is touched, when Slurm has not let the job run."""
    known = [p.pid for p in off] + [rank.process.pid for rank in node.ranks(block, state).live]
    processes = node.processes
    for _ in polls(deadline.at_most(HALTED_SECONDS), longest_seconds=0.05):
        pids = known or [process.pid for process in processes.of_job(state.job_id)]
        if not any(processes.halted(pid) for pid in pids):
            return
    every = [(p.pid, processes.halted(p.pid)) for p in processes.of_job(state.job_id)]
    if every and all(how for _, how in every):
        pid, how = every[0]
        raise AgentError(
            ErrorKind.HALTED,
            f"process {pid} is {how}, and so are all of job {state.job_id}: who stopped it must resume it",
        )


def let_run(node: Node, state: JobState) -> None:
    """Undo a stop of our own; one by the user or by Slurm is theirs to undo."""
    if state.stopped:
        processes = node.processes.of_job(state.job_id)
        node.processes.freeze(processes, False)
        node.processes.send(processes, signal.SIGCONT)


def _where_it_is(node: Node, state: JobState, deadline: Deadline) -> JobState:
    """Notes that were lost: the job is where NVML sees it."""
    held = node.look(deadline.at_most(NVML_SECONDS)).bytes_by_gpu(state.job_id)
    return state.but(gpus=tuple(sorted(held))) if held else state


def _check_movable(node: Node, state: JobState, args: protocol.ResumeArgs) -> None:
    problem, ranks = "", node.ranks(node.blocks.block(state.job_id), state)
    if not node.processes.of_job(state.job_id):
        return  # not started yet: it will find the new `visible`
    if len(args.gpus) != len(state.gpus) and not state.resizable:
        problem = f"it has {len(state.gpus)} GPUs, not {len(args.gpus)}"
    elif state.phase is not NodePhase.YIELDED and not (
        state.phase is NodePhase.PAUSING and state.checkpointed
    ):
        problem = f"it is {state.phase.value} there"
    elif state.map_refused:
        problem = "the driver has refused that before"
    elif not state.movable or not (state.checkpointed or node.changes_gpus(ranks)):
        problem = "part of it stays on its old GPUs, or the driver is older than 580"
    if problem:
        raise AgentError(
            ErrorKind.UNSUPPORTED,
            f"job {state.job_id} cannot move from {describe(state.gpus)} to {describe(args.gpus)}: {problem}",
        )


def _restore(
    node: Node, off: Off, gpus: Sequence[int], binding: Sequence[int], job_id: int, deadline: Deadline
) -> None:
    if not off:
        return
    transparent.wait_until_runnable(
        [process.pid for process in off], node.processes, job_id, deadline, "restore"
    )
    for process in off:
        maps = [] if set(process.gpus) == set(gpus) else _gpu_maps(node, process.gpus, gpus, binding)
        transparent.bring_back(node.driver, process, job_id, maps, deadline)


def _gpu_maps(
    node: Node, old: Sequence[int], new: Sequence[int], binding: Sequence[int]
) -> list[dict[str, str]]:
    """Maps to offer to the driver: of all GPUs in the binding (all that the process can open where
    devices are constrained), else of all GPUs of the node."""
    uuids = {gpu.index: gpu.uuid for gpu in node.reader.last().gpus}
    maps = []
    for among in (sorted({*binding, *old, *new}), sorted(uuids)):
        if set(among) >= {*old, *new} and set(among) <= set(uuids):
            moves = transparent.permutation(sorted(old), sorted(new), among)
            candidate = {uuids[source]: uuids[target] for source, target in moves.items()}
            if candidate not in maps:
                maps.append(candidate)
    return maps


def _wait_running(
    node: Node, block: ControlBlock, state: JobState, sequence: int, deadline: Deadline
) -> None:
    for _ in polls(deadline.at_least(1.0), longest_seconds=0.01):
        ranks = node.ranks(block, state)
        waiting = []
        for rank in ranks.live:
            if rank.state is RankState.FAILED and rank.answered_sequence == sequence:
                message = f"rank {rank.rank} of job {state.job_id} cannot restore: {rank.error}"
                block.change(state, phase=NodePhase.FAILED, error=message)
                raise AgentError(ErrorKind.DRIVER, message)
            # FAILED under an older command: it could not leave the GPU, and trains on.
            if rank.state in (RankState.BLOCKED, RankState.OFFLOADED, RankState.RESTORING):
                waiting.append(rank)
        if not waiting:
            return
    halted = node.processes.halted(waiting[0].process.pid)
    why = f"its process is {halted}" if halted else "it has not answered"
    raise AgentError(
        ErrorKind.DEADLINE,
        f"rank {waiting[0].rank} of job {state.job_id} is still {waiting[0].state.value}: {why}",
    )


@contextlib.contextmanager
def undone(node: Node, block: ControlBlock, state: JobState | None = None) -> Iterator[None]:
    """What raises AgentError within is undone. `state`: the job's before it; None: what is then noted."""
    try:
        yield
    except AgentError:
        undo(node, block, state or node.state(block))
        raise


def undo(node: Node, block: ControlBlock, state: JobState) -> None:
    """Let the job go on where it is. It still has its GPUs, so this needs no deadline, and no check but
    for the memory that a job beside it may have taken."""
    phase, error = NodePhase.RUNNING, ""
    off = _off(node, state)
    try:
        if off and node.beside(state):
            needed = _memory_needed(node, state, off, state.gpus)
            node.require_memory(state.job_id, needed)
        _restore(node, off, state.gpus, state.binding, state.job_id, Deadline(transparent.UNLOCK_SECONDS))
    except AgentError as failure:
        phase, error = NodePhase.FAILED, failure.message
        log.error("job %d: cannot be put back to work: %s; the controller tries again", state.job_id, error)
    block.write_command(Verb.RUN, 0)
    with contextlib.suppress(AgentError):
        kept = () if phase is NodePhase.RUNNING else state.checkpointed
        block.change(state, phase=phase, error=error, target_step=0, off=False, checkpointed=kept)


def _off(node: Node, state: JobState) -> list[CheckpointedProcess]:
    """Processes that the driver took off the GPUs and that still live."""
    alive = node.processes.alive
    return [p for p in state.checkpointed if alive(ProcessId(p.pid, p.start_time_ticks))]


def _memory_needed(node: Node, state: JobState, off: Off, gpus: Sequence[int]) -> dict[int, int]:
    """Bytes that the job must find on each of these GPUs, with what it has left there: short of memory
    the driver's restore kills it, and so does what a session may not get back."""
    needed: dict[int, int] = {}
    for process in off:
        if not transparent.is_checkpointed(node.driver, process.pid):
            continue  # restored before an agent was killed: it is on its GPU
        for old, new in zip(sorted(process.gpus), sorted(gpus), strict=False):
            needed[new] = needed.get(new, 0) + process.memory_bytes.get(old, 0)
    if state.phase is NodePhase.YIELDED:
        # With another number of GPUs each may take as much as the fullest did.
        resized = len(gpus) != len(state.gpus)
        most = max(state.held_bytes.values(), default=0)
        for place, new in enumerate(sorted(gpus)):
            held = most if resized else state.held_bytes.get(sorted(state.gpus)[place], 0)
            needed[new] = max(needed.get(new, 0), held)
    return needed
