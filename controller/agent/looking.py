# SPDX-License-Identifier: GPL-2.0-or-later
"""`hello` and `observe`: what a node is and what goes on there."""

import contextlib
import logging
import os
import pwd
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from checkpointing.cuda_driver import Capabilities
from controller import __version__
from controller.agent import saving, shares
from controller.agent.control_block import JobState
from controller.agent.deadline import Deadline
from controller.agent.files import text_of
from controller.agent.gpus import NvmlUnavailable, Occupancy
from controller.agent.node import NVML_SECONDS, Node
from controller.agent.processes import Processes
from controller.agent.rank_files import Ranks
from controller.nodes import protocol
from controller.nodes.installed import filesystem_of, keys_from_anywhere, plugin_built_for
from controller.nodes.protocol import MAX_BYTES, AgentError, ErrorKind, NodePhase

log = logging.getLogger(__name__)


def hello(node: Node, _args: protocol.HelloArgs, deadline: Deadline) -> protocol.HelloResult:
    """Who and what this node is."""
    try:
        reading = node.reader.read(deadline.at_most(NVML_SECONDS))
    except NvmlUnavailable as error:
        log.warning("%s; try nvidia-smi", error)
        reading = node.reader.last(error.message)
    can = Capabilities.of_version(reading.driver_version)
    return protocol.HelloResult(
        protocol="gandiva-agent",
        version=protocol.VERSION,
        node=node.settings.node,
        boot_id=text_of(Path("/proc/sys/kernel/random/boot_id")).strip()[:64],
        driver_version=reading.driver_version[:80],
        checkpoint_supported=can.checkpoint,
        device_map_supported=can.device_map,
        gpus=reading.gpus,
        leader=node.leases.holder(),
        software_version=__version__,
        time=time.time(),
        run_dir=str(node.settings.run_dir)[:400],
        run_dir_filesystem=filesystem_of(node.settings.run_dir)[:40],
        rank_files=node.rank_files[:200],
        unconfined=node.confinement.obstacle[:400],
        plugin_built_for=plugin_built_for()[:200],
        keys_from_anywhere=_keys_from_anywhere(),
    )


def observe(node: Node, _args: object, deadline: Deadline) -> protocol.ObserveResult:
    """Everything the node knows now. GPUs that could not be read come as not healthy."""
    occupancy: Occupancy | None = None
    try:
        occupancy = node.look(deadline.at_most(NVML_SECONDS))
        gpus = tuple(replace(gpu, processes=occupancy.on(gpu.index)) for gpu in occupancy.reading.gpus)
    except NvmlUnavailable as error:
        log.warning("%s; its GPUs are given to no job until they can be read: try nvidia-smi", error)
        gpus = node.reader.last(error.message).gpus
    states: dict[int, JobState] = {}
    present = node.blocks.job_ids()
    node.owners.sweep(present)
    for job_id in present[: protocol.MAX_JOBS]:
        # A job that ends meanwhile takes its block with it.
        with contextlib.suppress(AgentError):
            states[job_id] = node.state(node.blocks.block(job_id))
    if occupancy is not None:
        shares.follow(node, states.values(), occupancy)
    jobs = tuple(_job_info(node, state, states, occupancy) for state in states.values())
    unconfined = node.confinement.obstacle[:400]
    return protocol.ObserveResult(time=time.time(), gpus=gpus, jobs=jobs, unconfined=unconfined)


def living(node: Node, args: protocol.JobArgs, _deadline: Deadline) -> protocol.Living:
    """What of a job lives here, whether or not it has a control block."""
    own = [process.pid for process in node.processes.of_job(args.job_id)]
    return protocol.Living(
        processes=node.processes.living(args.job_id),
        booted_at=_booted_at(node.processes),
        halted=node.settings.trials and bool(own) and all(node.processes.halted(pid) for pid in own),
    )


def _job_info(
    node: Node, state: JobState, states: Mapping[int, JobState], occupancy: Occupancy | None
) -> protocol.NodeJob:
    ranks = node.ranks(node.blocks.block(state.job_id), state)
    held = {} if occupancy is None else occupancy.bytes_by_gpu(state.job_id)
    yielded = state.phase is NodePhase.YIELDED
    left_bytes = state.left_bytes if occupancy is None else sum(held.values())
    return protocol.NodeJob(
        job_id=protocol.JobId(state.job_id),
        phase=state.phase,
        gpus=state.gpus or tuple(sorted(held)),
        ranks=ranks.live,
        left_bytes=left_bytes if yielded else 0,
        trespasses=() if occupancy is None else _trespasses(state, states, occupancy),
        has_store=bool(ranks.working) and all(rank.has_store for rank in ranks.working),
        saves_yielded=yielded and saving.refusal(state, ranks) == "",
        movable=state.movable if yielded else _looks_movable(node, state, ranks, occupancy),
        resizable=state.resizable if yielded else _looks_resizable(node, ranks),
        error="; ".join(filter(None, (state.error, *ranks.problems[:3])))[: protocol.MAX_MESSAGE_CHARS],
    )


def _looks_movable(node: Node, state: JobState, ranks: Ranks, occupancy: Occupancy | None) -> bool:
    """Whether a running job could probably come back on other GPUs; certain once it has yielded."""
    if ranks.live and node.changes_gpus(ranks):
        return True
    pids = {holder.pid for holder in occupancy.of_job(state.job_id)} if occupancy is not None else set()
    return node.can_move(state) and len(pids) == 1 and len(ranks.live) <= 1


def _looks_resizable(node: Node, ranks: Ranks) -> bool:
    """Whether a running job could probably come back on another number of GPUs."""
    return bool(ranks.live) and all(rank.resizes for rank in ranks.live) and node.changes_gpus(ranks)


def _trespasses(state: JobState, states: Mapping[int, JobState], occupancy: Occupancy) -> tuple[int, ...]:
    """GPUs on which the job has more bytes than it may have there now: on its own all it wants while it is on
    them, unless a job that it may not be beside is on them too, and what it was allowed to leave while it is
    off them; on others nothing."""
    held = occupancy.bytes_by_gpu(state.job_id)
    own = state.gpus or tuple(held)

    def allowed_bytes(gpu: int) -> int:
        if gpu not in own:
            return 0
        if state.phase is NodePhase.YIELDED:
            return state.residual_bytes
        others = (states.get(holder.job_id or 0) for holder in occupancy.on(gpu))
        intruded = any(other is not None and _intrudes(other, state, gpu) for other in others)
        return 0 if intruded else MAX_BYTES

    return tuple(sorted(gpu for gpu, size in held.items() if size > allowed_bytes(gpu)))


def _intrudes(other: JobState, state: JobState, gpu: int) -> bool:
    """Whether another job takes this GPU, which is the job's own, for its own as well, and was not told to
    share it."""
    on_it = other.phase is not NodePhase.YIELDED and gpu in other.gpus
    return on_it and other.job_id != state.job_id and not other.shares_with(state)


def _keys_from_anywhere() -> int | None:
    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
        return keys_from_anywhere(home / ".ssh" / "authorized_keys")
    except (OSError, KeyError):
        return None


def _booted_at(processes: Processes) -> float:
    """When process 1 began: the boot of a machine, or of a container (whose clock is its host's)."""
    ticks = processes.start_time_ticks(1)
    if ticks is None:
        raise AgentError(ErrorKind.INTERNAL, "/proc/1/stat does not say when the node was started")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
