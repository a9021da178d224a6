# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs of the agent protocol (docs/interfaces.md, section 4), by name.

Every verb is idempotent, works under the job's lock, writes down what it is about to do before it does it,
and leaves the job running when it fails, or says that it could not.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from pydantic import BaseModel

from checkpointing.cuda_driver import CudaError
from controller.agent import finishing, leaving, looking, returning, saving, shares, stopping, warming
from controller.agent.control_block import JobState
from controller.agent.deadline import Deadline
from controller.agent.node import Node
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind
from gandiva.layout import Verb

log = logging.getLogger(__name__)


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
    with block.locked(deadline), node.claiming(args.gpus, deadline, (args.job_id, *args.beside)):
        # Once more: an agent of another controller may have put a job back since.
        node.require_free(args.gpus, args.job_id, deadline, args.beside)
        if node.processes.is_here(args.job_id):
            # A start that slurmctld forgot when it was killed: Slurm would hold the job after a second one.
            raise AgentError(
                ErrorKind.GPU_BUSY,
                f"job {args.job_id} is here already: its processes must end before it can start again",
            )
        block.clear_ranks(args.uid)
        block.write_command(Verb.RUN, 0, len(args.gpus))
        node.write_visible(block, args.gpus, args.binding)
        block.save_state(JobState(**args.model_dump() | {"binding": args.binding or args.gpus}))
        node.turn(block, True, args.gpus, args.binding, deadline)
        shares.tell(node, node.blocks.states())
    node.owners.claim(node.uuids(args.gpus), args.job_id, args.uid)


def forget(node: Node, args: protocol.JobArgs, deadline: Deadline) -> None:
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


VERBS: Mapping[str, Callable[..., object]] = {
    "hello": looking.hello,
    "lead": lambda *_: None,  # every request of a controller renews its lease
    "observe": looking.observe,
    "prepare": prepare,
    "pause": finishing.pause,
    "offload": leaving.offload,
    "checkpoint": leaving.checkpoint,
    "save": saving.save,
    "stop": stopping.stop,
    "open": returning.open_gpus,
    "resume": returning.resume,
    "forget": forget,
    "living": looking.living,
    "mapped": warming.mapped,
    "warm": warming.warm,
}
"""Each is called with the node, its arguments and the deadline."""


class NodeAgent(Node):
    """A node with its verbs. Thread-safe as long as each job's verbs come one after the other."""

    def start(self) -> None:
        """Take over the jobs that there are. Beside the work: clean up after agents that were killed (only
        what lies there now), and have the driver ready for the first switch."""
        self.adopt()
        trash = (self.blocks.trash(),)
        threading.Thread(target=self.blocks.empty, args=trash, name="trash", daemon=True).start()
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def _warm_up(self) -> None:
        try:
            self.driver.warm_up()
        except CudaError as error:
            log.info("the CUDA driver is not ready: %s; the first call to it tries again", error)

    def carry_out(self, verb: str, args: BaseModel, deadline: Deadline) -> object:
        """Do what a request asks; returns one of the protocol's results, or None. Raises AgentError."""
        return VERBS[verb](self, args, deadline)

    def admit(self, whose: protocol.HelloArgs, verb: str) -> None:
        """May this session do that now? Raises AgentError not_leader."""
        if verb == "hello":
            return
        if whose.controller is not None:
            self.leases.renew(whose.controller, whose.lease_seconds)
        elif verb != "observe":
            self.leases.allow_nameless()
