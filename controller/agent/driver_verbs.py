# SPDX-License-Identifier: GPL-2.0-or-later
"""`checkpoint`: a job leaves its GPUs without knowing it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from controller.agent import returning, transparent
from controller.agent.control_block import CheckpointedProcess, ControlBlock, JobState
from controller.agent.deadline import Deadline
from controller.agent.gpus import describe
from controller.agent.node import NVML_SECONDS, Node
from controller.agent.occupancy import Holder, Occupancy
from controller.agent.processes import ProcessId
from controller.agent.rank_files import PATIENCE_SECONDS, Ranks
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase
from gandiva.layout import Verb


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
            state = state.but(empty=True, movable=False, stopped_step=None, held_bytes={})
            return node.memory_is_off(block, state, {}, 0, time.monotonic() - begin)
        ranks = node.ranks(block, state, PATIENCE_SECONDS)
        process = _only_process(node, holders, ranks, args.job_id)
        transparent.wait_until_runnable(
            [process.pid],
            node.processes,
            args.job_id,
            deadline.at_most(args.lock_deadline_seconds),
            "checkpoint",
        )
        state = driver_suspend(node, block, state, process, occupancy, args.lock_deadline_seconds, deadline)
        try:
            left_on = node.verify_gone(state, args.residual_limit_bytes)
        except AgentError:
            returning.undo(node, block, state)
            raise
        return node.memory_is_off(
            block,
            state.but(movable=node.can_move(state) and not any(left_on.values()), stopped_step=None),
            left_on,
            args.residual_limit_bytes,
            time.monotonic() - begin,
        )


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


def driver_suspend(
    node: Node,
    block: ControlBlock,
    state: JobState,
    process: ProcessId,
    occupancy: Occupancy,
    lock_seconds: float,
    deadline: Deadline,
) -> JobState:
    """Lock and checkpoint. The intent is written down first: the next agent asks the driver."""
    held = {
        holder.gpu: holder.memory_bytes
        for holder in occupancy.of_job(state.job_id)
        if holder.pid == process.pid
    }
    record = CheckpointedProcess(
        pid=process.pid,
        start_time_ticks=process.start_time_ticks,
        memory_bytes=held,
        gpus=state.gpus or tuple(sorted(held)),
    )
    node.require_host_memory({process.pid: sum(held.values())}, state.job_id, deadline)
    before = state
    state = block.change(state, phase=NodePhase.PAUSING, checkpointed=(record,), gpus=record.gpus, error="")
    try:
        transparent.suspend(node.driver, process, lock_seconds, deadline)
    except AgentError as error:
        if "it is RUNNING now" in error.message:
            block.change(before, error=error.message)
        else:
            block.change(state, phase=NodePhase.FAILED, error=error.message)
        raise
    return state
