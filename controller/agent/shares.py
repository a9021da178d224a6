# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs on the same GPU are kept to their shares of its memory, as far as their sessions can.

A job may take what the jobs beside it never had: the memory of the GPU, less the most that each of them was
seen to hold, less what suspended jobs have left there. So a job that grows all at once fails at its own
limit, and the others find the memory that they had before. No limit is below what its job has had itself.
"""

import contextlib
from collections.abc import Collection, Mapping

from controller.agent.control_block import JobState
from controller.agent.deadline import Deadline
from controller.agent.gpus import Occupancy
from controller.agent.node import Node
from controller.nodes.protocol import AgentError, NodePhase


def follow(node: Node, states: Collection[JobState], seen: Occupancy) -> None:
    """After a look at the GPUs: write down what jobs hold more than before, and tell the limits."""
    tell(node, [_with_peak(node, state, seen) for state in states])


def tell(node: Node, states: Collection[JobState]) -> None:
    """Tell the sessions of these jobs, which are all of the node's, how much they may take."""
    # Not memory_bytes: that has what the driver keeps for itself, too.
    room = {g.index: g.memory_used_bytes + g.memory_free_bytes for g in node.reader.last().gpus}
    on: dict[int, list[JobState]] = {}
    for state in states:
        if state.phase is NodePhase.YIELDED:
            for gpu, size in state.left_on.items():
                room[gpu] = room.get(gpu, 0) - size
        else:
            for gpu in state.gpus:
                on.setdefault(gpu, []).append(state)
    for state in states:
        # Its block may have gone meanwhile.
        with contextlib.suppress(OSError):
            node.blocks.block(state.job_id).write_memory_limit(_limit_bytes(state, on, room))


def _limit_bytes(state: JobState, on: Mapping[int, Collection[JobState]], room: Mapping[int, int]) -> int:
    """On the GPU where that is least. 0: it is off its GPUs, or has them to itself."""
    limits = []
    for gpu in state.gpus if state.phase is not NodePhase.YIELDED else ():
        peaks = [other.peak_bytes for other in on[gpu] if other.shares_with(state)]
        if peaks:
            limits.append(room.get(gpu, 0) - sum(peaks))
    return max(1, state.peak_bytes, min(limits)) if limits else 0


def _with_peak(node: Node, state: JobState, seen: Occupancy) -> JobState:
    held_bytes = max(seen.bytes_by_gpu(state.job_id).values(), default=0)
    if held_bytes <= state.peak_bytes:
        return state
    block = node.blocks.block(state.job_id)
    # While a verb is at work on the job the notes are that verb's: the next look writes it down.
    with contextlib.suppress(AgentError), block.locked(Deadline(0.0)):
        if (noted := block.load_state()) is not None:
            block.change(noted, peak_bytes=max(held_bytes, noted.peak_bytes))
    return state.but(peak_bytes=held_bytes)
