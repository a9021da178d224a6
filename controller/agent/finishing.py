# SPDX-License-Identifier: GPL-2.0-or-later
"""`pause` of a job of which a session has finished: its process is about to end.

Between `finish()` and its exit a process has its memory on the GPU and answers nobody. That is no job without
sessions, which the driver would have to take off: it is waited for.
"""

from controller.agent import leaving
from controller.agent.deadline import Deadline, polls
from controller.agent.node import Node
from controller.agent.rank_files import PATIENCE_SECONDS, Rank
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, RankState

END_SECONDS = 10.0
"""A process with a large framework takes some seconds to end; one that takes longer does other work."""


def pause(node: Node, args: protocol.PauseArgs, deadline: Deadline) -> protocol.Pause:
    """As `leaving.pause`, once processes whose sessions have finished have ended. Raises AgentError."""
    end = deadline.at_most(min(args.wait_seconds, END_SECONDS))
    while True:
        try:
            return leaving.pause(node, args, deadline)
        except AgentError as error:
            if error.kind is not ErrorKind.NOT_COOPERATIVE or not _finished(node, args.job_id):
                raise
            for _ in polls(end):
                if not (left := _finished(node, args.job_id)):
                    break
            if left and not args.sole:
                # The controller asks all nodes again.
                return protocol.Pause(target_step=args.floor_step, all_blocked=False, ranks=left)
            if left:
                pids = ", ".join(str(rank.process.pid) for rank in left[:4])
                why = f"process {pids} goes on after its session's finish()"
                raise AgentError(error.kind, f"{error.message}; {why}") from error


def _finished(node: Node, job_id: int) -> tuple[Rank, ...]:
    """The sessions that have finished and whose processes are still there."""
    block = node.blocks.block(job_id)
    ranks = node.ranks(block, node.state(block), PATIENCE_SECONDS)
    return tuple(rank for rank in ranks.live if rank.state is RankState.FINISHED)
