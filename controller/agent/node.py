# SPDX-License-Identifier: GPL-2.0-or-later
"""What all verbs share: the node's parts, a job under its lock, and the two checks on GPU memory."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from checkpointing.cuda_driver import Capabilities
from checkpointing.driver_process import DriverProcesses
from controller.agent import rank_files, rank_room
from controller.agent.control_block import ControlBlock, ControlBlocks, JobState
from controller.agent.deadline import Deadline, polls
from controller.agent.files import locked
from controller.agent.gpus import GpuReader, NvmlUnavailable, Occupancy, describe, survey
from controller.agent.gpustat import OwnerFiles
from controller.agent.host_memory import HostMemory, Room
from controller.agent.identity import SlurmJobs, Trials
from controller.agent.lease import Leases
from controller.agent.processes import Processes
from controller.agent.rank_files import GLANCE_SECONDS, Ranks
from controller.agent.turn import Confinement
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase
from gandiva.layout import Verb

NVML_SECONDS = 5.0
SETTLE_SECONDS = 3.0
"""How long NVML may go on showing memory that is said to be gone, or of processes that have ended."""

Complaints = Callable[[Occupancy], tuple[list[str], bool]]
"""About what is seen, and whether waiting may help."""


@dataclass(frozen=True)
class AgentSettings:
    """Where things are on this node. `gpustat_dir` None: write no owner files. `trials`: the jobs are trials
    of a study, not Slurm's. `host_memory_bytes`: that much of those that are off their GPUs may be in host
    memory; None: as much as there is."""

    node: str
    run_dir: Path
    gpustat_dir: Path | None
    trials: bool = False
    host_memory_bytes: int | None = None


class Node:
    """The parts of a node, for the verbs to work on."""

    def __init__(self, settings: AgentSettings, reader: GpuReader, driver: DriverProcesses) -> None:
        self.settings = settings
        self.blocks = ControlBlocks(settings.run_dir, apart=not settings.trials)
        jobs = SlurmJobs(settings.node, lambda job_id: self.blocks.block(job_id).uid())
        self.processes = Processes(Trials(settings.run_dir) if settings.trials else jobs)
        self.host_memory = HostMemory()
        self.confinement = Confinement()
        self.reader = reader
        self.driver = driver
        self.leases = Leases(settings.run_dir)
        self.owners = OwnerFiles(settings.gpustat_dir)

    @contextlib.contextmanager
    def job(self, job_id: int, deadline: Deadline) -> Iterator[tuple[ControlBlock, JobState]]:
        block = self.blocks.block(job_id)
        with block.locked(deadline):
            try:
                yield block, self.state(block)
            finally:
                self.host_memory.release(job_id)

    def state(self, block: ControlBlock) -> JobState:
        """What is known about a job; of a block made by the prolog, what can be seen. Raises AgentError."""
        state = block.load_state()
        if state is not None:
            return state
        uid = block.uid()
        if uid is None:
            raise AgentError(ErrorKind.UNKNOWN_JOB, block.missing())
        if block.is_on() is None:
            # The prolog has made it, for a start that no controller chose: its tasks wait for their turn.
            return JobState(job_id=block.job_id, uid=uid, phase=NodePhase.YIELDED)
        command = block.read_command()
        asked = command is not None and command.verb is not Verb.RUN
        return JobState(
            job_id=block.job_id,
            uid=uid,
            phase=NodePhase.PAUSING if asked else NodePhase.RUNNING,
            target_step=command.target_step if command is not None and asked else 0,
            stopped=asked,  # perhaps
        )

    def adopt(self) -> None:
        """Jobs of an agent of protocol 3: steps would wait. (Their `visible` counts all of the binding.)"""
        for state in self.blocks.states():
            block = self.blocks.block(state.job_id)
            if block.is_on() is None:
                with contextlib.suppress(AgentError, OSError):
                    block.write_turn(not state.is_off, [], [])

    @contextlib.contextmanager
    def on_gpus(
        self, block: ControlBlock, gpus: Sequence[int], binding: Sequence[int], deadline: Deadline, new: bool
    ) -> Iterator[None]:
        """The job's turn begins: it may open these GPUs, and steps of it start. Undone where what follows
        fails. Raises AgentError; where the GPUs are not `new`, it runs on all the same."""
        before = block.is_on()
        try:
            with contextlib.suppress(*() if new else (AgentError,)):
                self.turn(block, True, gpus, binding, deadline)
            yield
        except AgentError:
            if before is False:
                self.turn(block, False, gpus, binding, deadline.at_least(1.0))
            raise

    def turn(
        self, block: ControlBlock, on: bool, gpus: Sequence[int], binding: Sequence[int], deadline: Deadline
    ) -> None:
        """Write whether the job is on its GPUs, and let it open these and no others of its binding. Raises
        AgentError."""
        self.confinement.write(block, on=on, gpus=gpus, binding=binding)
        if not self.confinement.obstacle:
            pids = [process.pid for process in self.processes.of_job(block.job_id)]
            self.confinement.apply(block, pids, deadline)

    def write_visible(self, block: ControlBlock, gpus: Sequence[int], binding: Sequence[int]) -> None:
        """Say which of its GPUs the job uses now. One that is kept to them opens only these.
        Raises OSError."""
        if not binding or set(gpus) == set(binding):
            block.write_visible(None)
            return
        openable = self.as_cuda_counts(binding if self.confinement.obstacle else gpus)
        block.write_visible([place for place, gpu in enumerate(openable) if gpu in gpus])

    def changes_gpus(self, ranks: Ranks) -> bool:
        """Whether sessions that leave their GPUs with all they have can come back on others. A process counts
        the devices once, when CUDA starts in it: where others are closed then, only a new one finds them."""
        anew = all(rank.starts_processes for rank in ranks.live)
        return all(rank.releases_context for rank in ranks.live) and (anew or bool(self.confinement.obstacle))

    def ranks(self, block: ControlBlock, state: JobState, patience_seconds: float = GLANCE_SECONDS) -> Ranks:
        return rank_files.read_ranks(block.ranks, state.uid, state.job_id, self.processes, patience_seconds)

    def look(self, deadline: Deadline) -> Occupancy:
        return survey(self.reader, self.processes, deadline)

    @cached_property
    def rank_files(self) -> str:
        """What `rank_room.examine` says. It mounts something: asked once for each agent, not for trials."""
        return "" if self.settings.trials else rank_room.examine(self.settings.run_dir)

    def driver_version(self) -> str:
        return self.reader.last().driver_version

    @property
    def can(self) -> Capabilities:
        """What the node's driver can do; nothing before the first reading."""
        return Capabilities.of_version(self.driver_version())

    def can_move(self, state: JobState) -> bool:
        """Whether the driver may be asked to bring the job back on other GPUs."""
        return self.can.device_map and not state.map_refused

    def uuids(self, gpus: Sequence[int]) -> list[str]:
        return [gpu.uuid for gpu in self.reader.last().gpus if gpu.index in gpus]

    def as_cuda_counts(self, gpus: Collection[int]) -> list[int]:
        """These GPUs in the order in which CUDA counts them in a process that begins now."""
        reading = self.reader.last()
        return reading.as_cuda_counts(gpus) if reading.gpus else sorted(gpus)

    def _allowance(self, job_id: int) -> int:
        """Bytes another job may have left on each GPU: nothing, unless it is off them."""
        state = self.blocks.block(job_id).load_state()
        return state.residual_bytes if state is not None and state.phase is NodePhase.YIELDED else 0

    def require_free(
        self,
        gpus: Sequence[int],
        job_id: int,
        deadline: Deadline,
        beside: Collection[int] = (),
        needed: Mapping[int, int] | None = None,
    ) -> None:
        """Raise AgentError gpu_busy unless the job can have these GPUs, with this much memory on each. The
        jobs in `beside` may be there."""

        def complaints(seen: Occupancy) -> tuple[list[str], bool]:
            unreadable = seen.unreadable(gpus)
            if unreadable:
                return unreadable, False
            owners = self._owners(gpus, {job_id, *beside})
            if owners:
                return owners, False
            others = seen.others(gpus, {job_id, *beside}, self._allowance)
            if others:
                # Of a process that has ended NVML will hear soon; a living one stays.
                return [str(holder) for holder in others], all(not holder.exists for holder in others)
            return _short(seen, job_id, needed or {}), True

        self._require(complaints, deadline)

    def require_memory(self, job_id: int, needed: Mapping[int, int]) -> None:
        """Raise AgentError gpu_busy unless each GPU has this much memory for the job, with what it holds."""
        self._require(lambda seen: (_short(seen, job_id, needed), True), Deadline(SETTLE_SECONDS))

    def _require(self, complaints: Complaints, deadline: Deadline) -> None:
        left, _ = self._settled(complaints, deadline)
        if left:
            raise AgentError(ErrorKind.GPU_BUSY, "; ".join(left[:4]))

    def beside(self, state: JobState) -> set[int]:
        """Jobs that may have memory on the job's GPUs while it has."""
        return {other.job_id for other in self.blocks.states() if other.shares_with(state)}

    def _settled(self, complaints: Complaints, deadline: Deadline) -> tuple[list[str], Occupancy | None]:
        """Look until there are no complaints. Returns what is left of them after SETTLE_SECONDS and the last
        look, None when NVML gave none."""
        for _ in polls(deadline.at_most(SETTLE_SECONDS), longest_seconds=0.05):
            seen: Occupancy | None = None
            try:
                seen = self.look(deadline.at_least(0.5).at_most(NVML_SECONDS))
                left, may_pass = complaints(seen)
            except NvmlUnavailable as error:
                left, may_pass = [str(error)], True
            if not left or not may_pass:
                break
        return left, seen

    def _owners(self, gpus: Sequence[int], allowed: Collection[int]) -> list[str]:
        """Other living jobs that have not left these GPUs, or are being put back onto them: NVML may not see
        their memory yet.

        A controller asks for one at a time. But an agent whose controller was killed finishes what it was
        asked, while the next controller may plan otherwise.
        """
        found = []
        for other in self.blocks.job_ids():
            state = self.blocks.block(other).load_state() if other not in allowed else None
            if state is None or state.phase is NodePhase.YIELDED or set(state.gpus).isdisjoint(gpus):
                continue
            if self.processes.of_job(other):
                found.append(f"job {other} is {state.phase.value} on {describe(state.gpus)}")
        return found

    @contextlib.contextmanager
    def claiming(self, gpus: Sequence[int], deadline: Deadline, ours: Collection[int]) -> Iterator[None]:
        """Keep others, agents of other controllers among them, from giving these GPUs away between the look
        that finds them free and the note that says whose they are. Raises AgentError gpu_busy.

        Other jobs than `ours` that are off their GPUs can open none of these: one that was to be resumed may.
        """
        with contextlib.ExitStack() as stack:
            for gpu in sorted(gpus):
                try:
                    stack.enter_context(locked(self.settings.run_dir / f".gpu-{gpu}.lock", deadline))
                except TimeoutError:
                    message = f"GPU {gpu} is just being given to another job"
                    raise AgentError(ErrorKind.GPU_BUSY, message) from None
            for state in self.blocks.states():
                block = self.blocks.block(state.job_id)
                off = state.phase is NodePhase.YIELDED and state.job_id not in ours
                if off and self.confinement.opens(block, gpus):
                    self.turn(block, False, state.gpus, state.binding, deadline)
            yield

    def require_host_memory(
        self, needed_bytes: Mapping[int, int], job_id: int, deadline: Deadline, *, stays: bool
    ) -> None:
        """Promise these processes (pid: bytes) so much more, until this job's verb is over. `stays`: they
        keep it while the job is off its GPUs. Raises AgentError host_memory."""

        def budget() -> Room | None:
            most = self.settings.host_memory_bytes
            if most is None or not stays:
                return None
            left_bytes = max(0, most - sum(state.in_host_memory for state in self.blocks.states()))
            limit = f"the {most >> 20} MiB of host_memory"
            return Room(left_bytes, limit, self.settings.run_dir, "give the study more of it")

        self.host_memory.promise(job_id, needed_bytes, deadline, budget)

    def verify_gone(self, state: JobState, limit_bytes: int) -> dict[int, int]:
        """The bytes the job has left on each of the node's GPUs. Raises AgentError left_on_gpu when that is
        more than the limit on any of them, and internal when it cannot be told."""

        def complaints(seen: Occupancy) -> tuple[list[str], bool]:
            found = seen.unreadable(state.gpus)
            for gpu, size in seen.bytes_by_gpu(state.job_id).items():
                if size > limit_bytes:
                    found.append(
                        f"{size >> 20} MiB of job {state.job_id} stay on GPU {gpu},"
                        f" allowed are {limit_bytes >> 20} MiB"
                    )
            for gpu in state.gpus:
                # Listed, but of no job we can name: perhaps ours, just ended, or in another namespace.
                found += [str(holder) for holder in seen.on(gpu) if holder.job_id is None]
            return found, True

        deadline = Deadline(SETTLE_SECONDS)  # even when the request's is over: the answer hangs on it
        left, seen = self._settled(complaints, deadline)
        if left or seen is None:
            read = seen is not None and not seen.unreadable(state.gpus)
            raise AgentError(ErrorKind.LEFT_ON_GPU if read else ErrorKind.INTERNAL, "; ".join(left[:4]))
        return seen.bytes_by_gpu(state.job_id)

    def memory_is_off(
        self, block: ControlBlock, state: JobState, left_on: Mapping[int, int], begin: float
    ) -> protocol.Offload:
        """Write down that the job's memory is off its GPUs, only after `verify_gone`. `begin`: when the verb
        began, by the monotonic clock."""
        state = block.change(
            state,
            phase=NodePhase.PAUSING,
            off=True,
            left_bytes=sum(left_on.values()),
            left_on=dict(left_on),
            offload_seconds=time.monotonic() - begin,
            error="",
        )
        return self.already_off(state)

    @staticmethod
    def already_off(state: JobState) -> protocol.Offload:
        """The answer to `offload` and `checkpoint`, the first time and every time they are asked again."""
        return protocol.Offload(
            state.left_bytes, state.offload_seconds, state.stopped_step, state.empty, state.left_on
        )


def _short(seen: Occupancy, job_id: int, needed: Mapping[int, int]) -> list[str]:
    """Complaints about GPUs without so much memory for the job."""
    found = []
    for gpu, size in needed.items():
        reading = seen.reading.gpu(gpu)
        own = seen.bytes_by_gpu(job_id).get(gpu, 0)
        if reading is not None and reading.memory_free_bytes + own < size:
            free = (reading.memory_free_bytes + own) >> 20
            others = sum(holder.memory_bytes for holder in seen.on(gpu) if holder.job_id != job_id) >> 20
            why = f"; other jobs have {others} MiB there" if others else ""
            found.append(f"GPU {gpu} has {free} MiB free, job {job_id} needs {size >> 20} MiB{why}")
    return found
