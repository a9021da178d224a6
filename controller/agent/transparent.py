# SPDX-License-Identifier: GPL-2.0-or-later
"""One process off its GPU and back through the CUDA driver's checkpoint calls, with every way out.

What counts is the state the driver reports, never what an earlier call was meant to do: the agent may have
been killed in between. After an error here the process is RUNNING again, or the error says that it is not.
"""

import logging
from collections.abc import Mapping, Sequence

from checkpointing.cuda_driver import NOT_READY, CudaError, ProcessState
from checkpointing.driver_process import DriverDeadline, DriverProcesses
from controller.agent.control_block import CheckpointedProcess
from controller.agent.deadline import Deadline, polls
from controller.agent.processes import Processes, ProcessId
from controller.nodes.protocol import AgentError, ErrorKind

STATE_SECONDS = 10.0
UNLOCK_SECONDS = 30.0
LAST_CHANCE_SECONDS = 5.0
"""How long an undo may take after the deadline has passed: the alternative is a job that hangs for ever."""
INVALID_VALUE = 1
Maps = Sequence[Mapping[str, str]]
"""UUIDs of a process's GPUs -> those that it is to have, in the order of trying."""
UNDER_WAY = (ProcessState.CHECKPOINTING, ProcessState.RESTORING)

log = logging.getLogger(__name__)


def wait_until_runnable(
    pids: Sequence[int], processes: Processes, job_id: int, deadline: Deadline, what: str
) -> None:
    """The driver works through a thread of the target, so a stopped or frozen process never answers.

    Raises AgentError `deadline`, naming process and state, when it stays so.
    """
    for _ in polls(deadline):
        halted = [(pid, state) for pid in pids if (state := processes.halted(pid)) is not None]
        if not halted:
            return
    pid, state = halted[0]
    raise AgentError(
        ErrorKind.DEADLINE,
        f"process {pid} is {state}: the driver cannot {what} it; whoever stopped job {job_id} must resume it",
    )


def settled_state(driver: DriverProcesses, pid: int, deadline: Deadline) -> ProcessState:
    """The process's state once no call of another agent's is under way on it. Raises CudaError, also when
    that call has no end by the deadline."""
    for _ in polls(deadline):
        state = driver.state(pid, STATE_SECONDS)
        if state not in UNDER_WAY:
            return state
    raise CudaError("cuCheckpointProcessGetState", 0, f"CU_PROCESS_STATE_{state.name}")


def suspend(driver: DriverProcesses, process: ProcessId, lock_seconds: float, deadline: Deadline) -> None:
    """RUNNING -> CHECKPOINTED. Raises AgentError `deadline` when the process did not reach a point where it
    can be locked, `driver` for everything else; unless the message says otherwise it runs on."""
    pid = process.pid
    try:
        state = settled_state(driver, pid, deadline)
        if state is ProcessState.RUNNING:
            driver.lock(pid, lock_seconds, lock_seconds + LAST_CHANCE_SECONDS)
            state = ProcessState.LOCKED
        if state is ProcessState.LOCKED:
            driver.checkpoint(pid, deadline.at_least(LAST_CHANCE_SECONDS).left_seconds)
            state = ProcessState.CHECKPOINTED
        if state is not ProcessState.CHECKPOINTED:
            raise CudaError("cuCheckpointProcessGetState", 0, "CU_PROCESS_STATE_FAILED")
    except CudaError as error:
        after = _undo(driver, pid)
        if isinstance(error, DriverDeadline) and error.call == "lock" and after == ProcessState.RUNNING.name:
            after = "in an unknown state (the lock is still under way)"
        kind = ErrorKind.DEADLINE if error.code == NOT_READY else ErrorKind.DRIVER
        raise AgentError(kind, f"process {pid}: {error}; it is {after} now") from error


def _undo(driver: DriverProcesses, pid: int) -> str:
    """Make the process run on after a failed suspend; says in words what it is now."""
    try:
        _run_on(driver, pid, (), Deadline(UNLOCK_SECONDS))
        return ProcessState.RUNNING.name
    except CudaError as error:
        log.error("process %d cannot be brought back: %s; its job keeps its GPUs", pid, error)
        return f"in an unknown state ({error})"


def bring_back(
    driver: DriverProcesses, process: CheckpointedProcess, job_id: int, gpu_maps: Maps, deadline: Deadline
) -> None:
    """Whatever state -> RUNNING, on its old GPUs when `gpu_maps` is empty, else by the first map that the
    driver accepts (it wants every GPU the process could open, and which those are only the driver knows).

    Raises AgentError: `unsupported` when the driver has refused all maps and says that the process is
    checkpointed as before, `driver` for everything else. Its GPUs are then to be taken for busy until NVML
    says otherwise.
    """
    pid = process.pid
    try:
        _run_on(driver, pid, gpu_maps, deadline)
    except CudaError as error:
        # A call that was abandoned (its code is negative) may be carried out later.
        if gpu_maps and error.code > 0 and is_checkpointed(driver, pid):
            text = f"the driver does not restore process {pid} there: {error}"
            raise AgentError(ErrorKind.UNSUPPORTED, text) from error
        raise AgentError(ErrorKind.DRIVER, f"process {pid} of job {job_id}: {error}") from error


def _run_on(driver: DriverProcesses, pid: int, gpu_maps: Maps, deadline: Deadline) -> None:
    """Whatever state -> RUNNING. Raises CudaError."""
    state = settled_state(driver, pid, deadline.at_least(UNLOCK_SECONDS))
    if state is ProcessState.CHECKPOINTED:
        _restore(driver, pid, gpu_maps, deadline)
        state = ProcessState.LOCKED
    if state is ProcessState.LOCKED:
        driver.unlock(pid, deadline.at_least(UNLOCK_SECONDS).left_seconds)
        state = ProcessState.RUNNING
    if state is not ProcessState.RUNNING:
        raise CudaError("cuCheckpointProcessGetState", 0, "CU_PROCESS_STATE_FAILED")


def _restore(driver: DriverProcesses, pid: int, gpu_maps: Maps, deadline: Deadline) -> None:
    candidates: list[Mapping[str, str] | None] = list(gpu_maps) or [None]
    for number, candidate in enumerate(candidates):
        try:
            driver.restore(pid, candidate, deadline.at_least(LAST_CHANCE_SECONDS).left_seconds)
            return
        except DriverDeadline:
            raise
        except CudaError as error:
            last = number == len(candidates) - 1
            # Refused before anything happened: only then may another map be tried.
            if last or error.code != INVALID_VALUE or not is_checkpointed(driver, pid):
                raise


def is_checkpointed(driver: DriverProcesses, pid: int) -> bool:
    """Whether the driver holds its memory in host memory now; False also where it does not say."""
    try:
        return driver.state(pid, STATE_SECONDS) is ProcessState.CHECKPOINTED
    except CudaError:
        return False


def permutation(old: Sequence[int], new: Sequence[int], among: Sequence[int]) -> dict[int, int]:
    """A map of all GPUs in `among` onto themselves that takes each of `old` to its place in `new` and moves
    as few others as possible."""
    moves = dict(zip(old, new, strict=True))
    sources = [gpu for gpu in among if gpu not in moves]
    targets = [gpu for gpu in among if gpu not in moves.values()]
    for gpu in list(sources):
        if gpu in targets:
            moves[gpu] = gpu
            sources.remove(gpu)
            targets.remove(gpu)
    moves.update(zip(sources, targets, strict=True))
    return moves
