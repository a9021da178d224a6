# SPDX-License-Identifier: GPL-2.0-or-later
"""`save`: the sessions of a paused job write its state into their checkpoint store."""

import time

from controller.agent import returning
from controller.agent.control_block import ControlBlock, JobState
from controller.agent.deadline import Deadline
from controller.agent.leaving import all_blocked, wait_for
from controller.agent.node import Node
from controller.agent.rank_files import PATIENCE_SECONDS, Ranks
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase, RankState
from gandiva.layout import Verb


def save(node: Node, args: protocol.SaveArgs, deadline: Deadline) -> protocol.Saved:
    """Done when every session says that the same generation is published; all stay blocked at its step.

    The state is read from the GPUs: nothing leaves them. What fails is undone, and the job goes on.
    """
    deadline = deadline.at_most(args.deadline_seconds)
    with node.job(args.job_id, deadline) as (block, state):
        if state.is_off or state.phase is not NodePhase.PAUSING:
            phase = "off its GPUs" if state.is_off else state.phase.value
            raise AgentError(ErrorKind.BAD_REQUEST, f"job {args.job_id} is {phase}: pause it first")
        begin = time.monotonic()
        try:
            step, generation = _save(node, block, state, deadline)
        except AgentError:
            returning.undo(node, block, state)
            raise
        return protocol.Saved(step, generation, time.monotonic() - begin)


def _save(node: Node, block: ControlBlock, state: JobState, deadline: Deadline) -> tuple[int, int]:
    """Step and generation."""
    target, job_id = state.target_step, state.job_id
    command = block.read_command()
    if command is None or command.verb is not Verb.SAVE:
        paused = block.write_command(Verb.PAUSE, target)
        wait_for(node, block, state, deadline, "pause", lambda r: all_blocked(r, target, paused))
    ranks = node.ranks(block, state, PATIENCE_SECONDS)
    without = [rank.rank for rank in ranks.working if not rank.has_store]
    if without:
        raise AgentError(
            ErrorKind.UNSUPPORTED,
            f"job {job_id}: rank {without[0]} has no checkpoint store: see session.register_store()",
        )
    # The copies that the sessions make before they write.
    copies = {rank.process.pid: rank.state_bytes for rank in ranks.working}
    node.require_host_memory(copies, job_id, deadline)
    sequence = block.write_command(Verb.SAVE, target)

    def all_saved(ranks: Ranks) -> bool:
        for rank in ranks.working:
            if rank.state is RankState.FAILED and rank.answered_sequence == sequence:
                raise AgentError(
                    ErrorKind.NOT_COOPERATIVE, f"rank {rank.rank} of job {job_id} cannot save: {rank.error}"
                )
        return all_blocked(ranks, target, sequence)

    saved = wait_for(node, block, state, deadline, "save", all_saved)
    found = {(rank.saved_step, rank.saved_generation) for rank in saved.working}
    if len(found) != 1 or min(found)[1] == 0:
        raise AgentError(
            ErrorKind.NOT_COOPERATIVE, f"job {job_id}: its ranks saved different things: {sorted(found)}"
        )
    return found.pop()
