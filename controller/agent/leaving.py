# SPDX-License-Identifier: GPL-2.0-or-later
"""`pause`, `offload` and `checkpoint`: a job leaves its GPUs, with the help of its sessions or without."""

import logging
import time
from collections.abc import Callable, Sequence

from controller.agent import returning, transparent
from controller.agent.control_block import CheckpointedProcess, ControlBlock, JobState
from controller.agent.deadline import Deadline, polls
from controller.agent.gpus import Holder, NvmlUnavailable, Occupancy, describe
from controller.agent.node import NVML_SECONDS, Node
from controller.agent.processes import ProcessId
from controller.agent.rank_files import PATIENCE_SECONDS, Ranks
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase, RankState
from gandiva.layout import Verb

log = logging.getLogger(__name__)

Done = Callable[[Ranks], bool]


def pause(node: Node, args: protocol.PauseArgs, deadline: Deadline) -> protocol.Pause:
    """Ask all ranks to stop at one step boundary; with `sole` wait for it and undo it at the deadline."""
    with node.job(args.job_id, deadline) as (block, state):
        ranks = node.ranks(block, state, PATIENCE_SECONDS)
        if state.is_off:
            return protocol.Pause(target_step=state.stopped_step or 0, all_blocked=True, ranks=ranks.live)
        with returning.undone(node, block, state):
            return _pause(node, block, state, args, deadline.at_most(args.wait_seconds))


def _pause(
    node: Node, block: ControlBlock, state: JobState, args: protocol.PauseArgs, deadline: Deadline
) -> protocol.Pause:
    ranks = _cooperating(node, block, state, args.sole)
    going_on = state.phase is NodePhase.PAUSING
    target = max(args.floor_step, _agreed(ranks), state.target_step if going_on else 0)
    state = block.change(state, phase=NodePhase.PAUSING, target_step=target, stopped_step=None, error="")
    sequence = block.write_command(Verb.PAUSE, target)
    for _ in polls(deadline, longest_seconds=0.01):
        ranks = node.ranks(block, state, PATIENCE_SECONDS)
        if all_at(ranks, target, sequence):
            return protocol.Pause(target_step=target, all_blocked=True, ranks=ranks.live)
        agreed = _agreed(ranks)
        if agreed > target:
            if not args.sole:
                break  # the other nodes must hear of it: their controller gives a new floor to all
            target = agreed
            state = block.change(state, target_step=target)
            sequence = block.write_command(Verb.PAUSE, target)
        _check_sessions(ranks, args.sole, args.job_id)
    if args.sole:
        raise AgentError(
            ErrorKind.DEADLINE,
            f"job {args.job_id}: {_laggards(node, ranks, target)} within {args.wait_seconds:.1f} s",
        )
    return protocol.Pause(target_step=max(target, _agreed(ranks)), all_blocked=False, ranks=ranks.live)


def _cooperating(node: Node, block: ControlBlock, state: JobState, sole: bool) -> Ranks:
    """The job's sessions. Raises AgentError not_cooperative when they do not speak for all of the job."""
    ranks = node.ranks(block, state, PATIENCE_SECONDS)
    _check_sessions(ranks, sole, state.job_id)
    holders = node.look(Deadline(NVML_SECONDS)).of_job(state.job_id)
    if state.mapped and any(rank.releases_context for rank in ranks.live):
        raise AgentError(
            ErrorKind.NOT_COOPERATIVE,
            f"job {state.job_id} was moved by the driver and numbers its GPUs in its own way since then",
        )
    working = {rank.process.pid for rank in ranks.working}
    # Whether all have left the GPUs is seen there afterwards.
    speaks_for_all = any(rank.starts_processes for rank in ranks.working)
    for holder in holders:
        if holder.pid not in working and not speaks_for_all:
            why = "whose session has finished" if holder.pid in ranks.pids else "that no session owns"
            raise AgentError(ErrorKind.NOT_COOPERATIVE, f"{holder}, {why}")
    return ranks


def _check_sessions(ranks: Ranks, sole: bool, job_id: int) -> None:
    problem = ""
    if not ranks.working:
        problem = "no live session"
    elif len({rank.world_size for rank in ranks.live}) > 1:
        problem = "its sessions disagree about the number of ranks"
    elif sole and len(ranks.live) < ranks.working[0].world_size:
        problem = f"only {len(ranks.live)} of {ranks.working[0].world_size} ranks have a session"
    if problem:
        details = f" ({'; '.join(ranks.problems[:3])})" if ranks.problems else ""
        raise AgentError(ErrorKind.NOT_COOPERATIVE, f"job {job_id}: {problem}{details}")


def offload(node: Node, args: protocol.OffloadArgs, deadline: Deadline) -> protocol.Offload:
    """Move the GPU state of all blocked ranks to host memory and verify with NVML that it is gone."""
    deadline = deadline.at_most(args.deadline_seconds)
    with node.job(args.job_id, deadline) as (block, state):
        if state.is_off:
            return node.already_off(state)
        if state.phase is not NodePhase.PAUSING:
            raise AgentError(
                ErrorKind.BAD_REQUEST, f"job {args.job_id} is {state.phase.value}: pause it first"
            )
        begin = time.monotonic()
        held, limit_bytes = _held(node, state, deadline), args.residual_limit_bytes
        with returning.undone(node, block):
            ranks, taken_bytes = _offload(node, block, state, deadline)
            if args.release_context:
                state = _release_context(node, block, state, ranks, deadline)
            left_on = _verify_gone(node, state, ranks, limit_bytes)
        alone = node.changes_gpus(ranks)
        by_driver = bool(state.checkpointed) and node.can_move(state)
        movable = not any(left_on.values()) and (alone or by_driver)
        state = state.but(
            stopped_step=state.target_step,
            movable=movable,
            resizable=movable and alone and all(rank.resizes for rank in ranks.live),
            held_bytes=held,
            host_bytes=min(_kept_bytes(state.host_bytes, taken_bytes), sum(held.values())),
            residual_bytes=limit_bytes,
        )
        return node.memory_is_off(block, state, left_on, begin)


def _kept_bytes(before: int, taken: int) -> int:
    """What sessions have in host memory now. Those of PyTorch state what they need beyond their buffers,
    which they keep. Objects with hooks state all of it, each time."""
    return taken if taken >= before else before + taken


def _held(node: Node, state: JobState, deadline: Deadline) -> dict[int, int]:
    """The most that the job is known to have held on each of its GPUs."""
    try:
        now = node.look(deadline.at_most(NVML_SECONDS)).bytes_by_gpu(state.job_id)
    except NvmlUnavailable:
        now = {}  # the check that follows the offload finds the same, and says so
    return {gpu: max(now.get(gpu, 0), state.held_bytes.get(gpu, 0)) for gpu in state.gpus or now}


def _offload(node: Node, block: ControlBlock, state: JobState, deadline: Deadline) -> tuple[Ranks, int]:
    """The sessions, and the bytes of host memory that they have taken."""
    target = state.target_step
    pause_before(Verb.OFFLOAD, node, block, state, deadline)
    ranks = wait_for(node, block, state, deadline, "measure", lambda r: _host_bytes(r, state) is not None)
    needed = _host_bytes(ranks, state) or {}
    node.require_host_memory(needed, state.job_id, deadline, stays=True)
    offload = block.write_command(Verb.OFFLOAD, target)

    def all_offloaded(ranks: Ranks) -> bool:
        for rank in ranks.working:
            if rank.state is RankState.FAILED and rank.answered_sequence == offload:
                raise AgentError(
                    ErrorKind.NOT_COOPERATIVE,
                    f"rank {rank.rank} of job {state.job_id} cannot offload: {rank.error}",
                )
        return bool(ranks.working) and all(
            rank.state is RankState.OFFLOADED and rank.answered_sequence == offload for rank in ranks.working
        )

    ranks = wait_for(node, block, state, deadline, "offload", all_offloaded)
    steps = {rank.steps_done for rank in ranks.working}
    if steps != {target}:
        # Cannot happen by the protocol; a script that steps from two threads can do it.
        raise AgentError(
            ErrorKind.NOT_COOPERATIVE,
            f"job {state.job_id}: ranks stopped at steps {sorted(steps)}, not all at {target}",
        )
    return ranks, sum(needed.values())


def pause_before(verb: Verb, node: Node, block: ControlBlock, state: JobState, deadline: Deadline) -> None:
    """All ranks are blocked, unless they have been told to go on with this verb. Raises as `wait_for`."""
    target, command = state.target_step, block.read_command()
    if command is None or command.verb is not verb:
        sequence = block.write_command(Verb.PAUSE, target)
        wait_for(node, block, state, deadline, "pause", lambda r: all_at(r, target, sequence))


def wait_for(
    node: Node, block: ControlBlock, state: JobState, deadline: Deadline, what: str, done: Done
) -> Ranks:
    """The job's sessions once they are done with `what`. Raises AgentError: `deadline`, with what is then
    still missing, and not_cooperative where sessions have ended."""
    for _ in polls(deadline, longest_seconds=0.01):
        if done(ranks := node.ranks(block, state, PATIENCE_SECONDS)):
            return ranks
        _check_sessions(ranks, False, state.job_id)
    late = _laggards(node, ranks, state.target_step, what)
    raise AgentError(ErrorKind.DEADLINE, f"job {state.job_id}: {late}")


def _release_context(
    node: Node, block: ControlBlock, state: JobState, ranks: Ranks, deadline: Deadline
) -> JobState:
    """Take the CUDA context of a single offloaded process off the GPU too, where the driver can.

    Failing is no error: the context stays, and counts as what is left. A rank of several has live
    communicators, which the driver does not checkpoint: an attempt may ruin the process.
    """
    if not node.can.checkpoint or any(rank.world_size > 1 for rank in ranks.live):
        return state
    try:
        occupancy = node.look(deadline.at_most(NVML_SECONDS))
    except NvmlUnavailable:
        return state  # the check that follows finds the same, and says so
    pids = {holder.pid for holder in occupancy.of_job(state.job_id)}
    if len(pids) != 1 or not pids <= ranks.pids or len(ranks.live) != 1:
        return state
    process = ranks.live[0].process
    try:
        return _driver_suspend(node, block, state, process, occupancy, 5.0, deadline)
    except AgentError as error:
        log.warning("job %d keeps its CUDA context: %s", state.job_id, error)
        return node.state(block)


def _verify_gone(node: Node, state: JobState, ranks: Ranks, limit_bytes: int) -> dict[int, int]:
    """As the node's, and an error names what the sessions report: the rest is of contexts, or of NCCL."""
    try:
        return node.verify_gone(state, limit_bytes)
    except AgentError as error:
        known = [f"{rank.left_bytes >> 20} MiB by rank {rank.rank}" for rank in ranks.live if rank.left_bytes]
        if not known:
            raise
        message = f"{error.message}; reported by its sessions: {', '.join(known[:4])}"
        raise AgentError(error.kind, message) from error


def _laggards(node: Node, ranks: Ranks, target: int, what: str = "pause") -> str:
    """Which ranks have not done what was asked, and what can be seen of the reason."""
    if what == "measure":
        return "its sessions did not say how much host memory they need"
    if what == "save":
        return "its checkpoint was not published"
    done = RankState.BLOCKED if what == "pause" else RankState.OFFLOADED
    texts = []
    for rank in ranks.live:
        if rank.state is done and (what != "pause" or rank.steps_done == target):
            continue
        halted = node.processes.halted(rank.process.pid)
        texts.append(
            f"rank {rank.rank} is {rank.state.value} at step {rank.steps_done}"
            + (f" (its process is {halted})" if halted else "")
        )
    wanted = f"did not reach step {target}" if what == "pause" else "did not offload"
    return f"{', '.join(texts[:4]) or 'a rank'} {wanted}"


def _host_bytes(ranks: Ranks, state: JobState) -> dict[int, int] | None:
    """Host memory that the offload takes, by pid. None while a session has not measured it yet.

    A session of an older release does not say it: its registered state counts the first time, and later its
    buffers are there.
    """
    needed = {}
    for rank in ranks.live:
        if not rank.states_host_bytes:
            needed[rank.process.pid] = 0 if state.offload_seconds else rank.state_bytes
        elif rank.host_bytes is not None:
            needed[rank.process.pid] = rank.host_bytes
        elif rank.state is not RankState.FINISHED:
            return None
    return needed


def _agreed(ranks: Ranks) -> int:
    """The step at which all ranks can stop: the highest of their next boundaries."""
    return max((rank.next_boundary for rank in ranks.working), default=0)


def all_at(ranks: Ranks, target: int, sequence: int, where: RankState = RankState.BLOCKED) -> bool:
    """Whether every rank is there at the target *under this command*: one that is about to leave after an
    earlier RUN still looks blocked, but has not answered this sequence number."""
    return bool(ranks.working) and all(
        rank.state is where and rank.steps_done == target and rank.answered_sequence == sequence
        for rank in ranks.working
    )


def checkpoint(node: Node, args: protocol.CheckpointArgs, deadline: Deadline) -> protocol.Offload:
    """Suspend one process on one GPU by the CUDA driver; a job that is on no GPU yields as `empty`."""
    with node.job(args.job_id, deadline) as (block, state):
        if state.is_off:
            return node.already_off(state)
        begin = time.monotonic()
        # A pause under way is off: it must not block the process once it runs again.
        block.write_command(Verb.RUN, 0)
        state = block.change(state, phase=NodePhase.RUNNING, target_step=0)
        occupancy = node.look(deadline.at_most(NVML_SECONDS))
        unreadable = occupancy.unreadable(state.gpus)
        if unreadable:
            raise AgentError(ErrorKind.INTERNAL, "; ".join(unreadable))
        holders = occupancy.of_job(args.job_id)
        if not holders:
            node.verify_gone(state, 0)
            state = state.but(
                empty=True, movable=False, resizable=False, stopped_step=None, held_bytes={}, residual_bytes=0
            )
            return node.memory_is_off(block, state, {}, begin)
        ranks = node.ranks(block, state, PATIENCE_SECONDS)
        process = _only_process(node, holders, ranks, args.job_id)
        lock = deadline.at_most(args.lock_deadline_seconds)
        transparent.wait_until_runnable([process.pid], node.processes, args.job_id, lock, "checkpoint")
        state = _driver_suspend(node, block, state, process, occupancy, args.lock_deadline_seconds, deadline)
        with returning.undone(node, block, state):
            left_on = node.verify_gone(state, args.residual_limit_bytes)
        movable = node.can_move(state) and not any(left_on.values())
        state = state.but(
            movable=movable, resizable=False, stopped_step=None, residual_bytes=args.residual_limit_bytes
        )
        return node.memory_is_off(block, state, left_on, begin)


def _only_process(node: Node, holders: Sequence[Holder], ranks: Ranks, job_id: int) -> ProcessId:
    can = node.can
    pids = sorted({holder.pid for holder in holders})
    gpus = sorted({holder.gpu for holder in holders})
    if not can.checkpoint:
        why = f"driver {node.driver_version()} has no checkpoint calls; need 570 or later"
    elif any(rank.world_size > 1 for rank in ranks.live):
        why = f"it has {ranks.live[0].world_size} ranks; only a single process can be checkpointed"
    elif len(pids) > 1:
        why = f"{len(pids)} processes ({pids[:8]}) use GPUs; only one can be checkpointed"
    elif len(gpus) > 1:
        why = f"process {pids[0]} uses {describe(gpus)}; only one GPU is supported"
    else:
        start = node.processes.start_time_ticks(pids[0])
        if start is not None:
            return ProcessId(pids[0], start)
        raise AgentError(
            ErrorKind.NOT_COOPERATIVE, f"job {job_id}: process {pids[0]} has just ended; try again"
        )
    raise AgentError(ErrorKind.UNSUPPORTED, f"job {job_id}: {why}; it can be requeued")


def _driver_suspend(
    node: Node,
    block: ControlBlock,
    state: JobState,
    process: ProcessId,
    occupancy: Occupancy,
    lock_seconds: float,
    deadline: Deadline,
) -> JobState:
    """Lock and checkpoint. The intent is written down first: the next agent asks the driver."""
    held = {h.gpu: h.memory_bytes for h in occupancy.of_job(state.job_id) if h.pid == process.pid}
    gpus = state.gpus or tuple(sorted(held))
    record = CheckpointedProcess(
        pid=process.pid, start_time_ticks=process.start_time_ticks, memory_bytes=held, gpus=gpus
    )
    node.require_host_memory({process.pid: sum(held.values())}, state.job_id, deadline, stays=True)
    before = state
    state = block.change(state, phase=NodePhase.PAUSING, checkpointed=(record,), gpus=gpus, error="")
    try:
        transparent.suspend(node.driver, process, lock_seconds, deadline)
    except AgentError as error:
        if "it is RUNNING now" in error.message:
            block.change(before, error=error.message)
        else:
            block.change(state, phase=NodePhase.FAILED, error=error.message)
        raise
    return state
