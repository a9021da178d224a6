# SPDX-License-Identifier: GPL-2.0-or-later
"""`save`: the sessions of a job write its state into their checkpoint store, from its GPUs or from host
memory."""

import time

from controller.agent import returning, stopping
from controller.agent.control_block import ControlBlock, JobState
from controller.agent.deadline import Deadline, polls
from controller.agent.leaving import all_at, pause_before, wait_for
from controller.agent.node import Node
from controller.agent.rank_files import PATIENCE_SECONDS, Ranks
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase, RankState
from gandiva.layout import Verb

TAKE_BACK_SECONDS = 2.0
"""For ranks to leave off writing."""
STOP_SECONDS = 10.0
"""To stop a job that has saved, or could not: also when the request's time is over."""


def save(node: Node, args: protocol.SaveArgs, deadline: Deadline) -> protocol.Saved:
    """Done when every session says that the same generation is published; all stay where they are.

    Of a paused job it is read from the GPUs: nothing leaves them. What fails is undone, and the job goes on.
    Of a yielded job it is read from host memory: nothing comes to a GPU. Its processes run meanwhile, and
    are stopped again, whatever came of it.
    """
    deadline = deadline.at_most(args.deadline_seconds)
    with node.job(args.job_id, deadline) as (block, state):
        begin = time.monotonic()
        if state.phase is NodePhase.YIELDED:
            step, generation = _save_yielded(node, block, state, deadline)
            return protocol.Saved(step, generation, time.monotonic() - begin)
        if state.is_off or state.phase is not NodePhase.PAUSING:
            phase = "off its GPUs" if state.is_off else state.phase.value
            raise AgentError(ErrorKind.BAD_REQUEST, f"job {args.job_id} is {phase}: pause it first")
        with returning.undone(node, block, state):
            step, generation = _save_paused(node, block, state, deadline)
        return protocol.Saved(step, generation, time.monotonic() - begin)


def _save_paused(node: Node, block: ControlBlock, state: JobState, deadline: Deadline) -> tuple[int, int]:
    """Step and generation."""
    pause_before(Verb.SAVE, node, block, state, deadline)
    ranks = node.ranks(block, state, PATIENCE_SECONDS)
    without = [rank.rank for rank in ranks.working if not rank.has_store]
    if without:
        raise AgentError(
            ErrorKind.UNSUPPORTED,
            f"job {state.job_id}: rank {without[0]} has no checkpoint store: see session.register_store()",
        )
    return _saved(node, block, state, state.target_step, RankState.BLOCKED, deadline)


def refusal(state: JobState, ranks: Ranks) -> str:
    """Why a yielded job cannot save. Empty: it can."""
    if state.checkpointed:
        # A call of it to CUDA, which a state may need, would wait until it is back on a GPU.
        return "the driver has taken it off its GPUs, or its CUDA context"
    for rank in ranks.working:
        if rank.state is not RankState.OFFLOADED:
            return f"rank {rank.rank} is {rank.state.value}, not offloaded"
        if not rank.saves_offloaded:
            return f"rank {rank.rank} has no checkpoint store that it can write to off its GPUs"
    return "" if ranks.working else "it has no live session"


def _save_yielded(node: Node, block: ControlBlock, state: JobState, deadline: Deadline) -> tuple[int, int]:
    """Step and generation."""
    job_id, command = state.job_id, block.read_command()
    problem = refusal(state, node.ranks(block, state, PATIENCE_SECONDS))
    if not problem and (command is None or command.verb not in (Verb.OFFLOAD, Verb.SAVE)):
        problem = "it is not known at which step it left its GPUs"
    if problem or command is None:
        raise AgentError(ErrorKind.UNSUPPORTED, f"job {job_id} cannot save off its GPUs: {problem}")
    returning.let_run(node, state)
    try:
        returning.wait_thawed(node, block, state, (), deadline)
        return _saved(node, block, state, command.target_step, RankState.OFFLOADED, deadline)
    except AgentError:
        _take_back(node, block, state, command.target_step)
        raise
    finally:
        stopping.stop_all(node, block, state, Deadline(STOP_SECONDS))


def _take_back(node: Node, block: ControlBlock, state: JobState, target: int) -> None:
    """Nothing is being written any more, as far as its ranks can be reached."""
    sequence = block.write_command(Verb.OFFLOAD, target)
    for _ in polls(Deadline(TAKE_BACK_SECONDS)):
        ranks = node.ranks(block, state, PATIENCE_SECONDS)
        late = (rank for rank in ranks.working if rank.answered_sequence != sequence)
        if all(node.processes.halted(rank.process.pid) for rank in late):
            return


def _saved(
    node: Node, block: ControlBlock, state: JobState, target: int, where: RankState, deadline: Deadline
) -> tuple[int, int]:
    """Have the ranks save, which stay `where` they are. Returns step and generation."""
    job_id, ranks = state.job_id, node.ranks(block, state, PATIENCE_SECONDS)
    # The copies that the sessions make before they write.
    copies = {rank.process.pid: rank.state_bytes for rank in ranks.working}
    node.require_host_memory(copies, job_id, deadline, stays=False)
    sequence = block.write_command(Verb.SAVE, target)

    def all_saved(ranks: Ranks) -> bool:
        for rank in ranks.working:
            failed = rank.state is RankState.FAILED or (rank.state is RankState.OFFLOADED and rank.error)
            if failed and rank.answered_sequence == sequence:
                raise AgentError(
                    ErrorKind.NOT_COOPERATIVE, f"rank {rank.rank} of job {job_id} cannot save: {rank.error}"
                )
        return all_at(ranks, target, sequence, where)

    saved = wait_for(node, block, state, deadline, "save", all_saved)
    found = {(rank.saved_step, rank.saved_generation) for rank in saved.working}
    if len(found) != 1 or min(found)[1] == 0:
        raise AgentError(
            ErrorKind.NOT_COOPERATIVE, f"job {job_id}: its ranks saved different things: {sorted(found)}"
        )
    return found.pop()
