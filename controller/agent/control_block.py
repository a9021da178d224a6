# SPDX-License-Identifier: GPL-2.0-or-later
"""The root side of the control block: making it, commanding through it, taking it away.

The block's folder, `command`, `visible`, `turn` and `agent.json` belong to root; only `ranks/` belongs to
the job's user (see `rank_files`), and is a file system of its own (see `rank_room`). `command` is changed in
place and never replaced: sessions have it mapped.
"""

import contextlib
import logging
import mmap
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.agent import rank_room
from controller.agent.deadline import Deadline, polls
from controller.agent.files import opened, text_of, try_lock, write_atomically
from controller.agent.identity import SlurmJobs
from controller.agent.processes import Processes, ProcessId
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase
from gandiva import layout

MAX_STATE_BYTES = 65_536
REMOVE_SECONDS = 30.0
HUNG_SECONDS = 10.0
"""An agent that is so late with a verb will not finish it."""
KILLED_SECONDS = 0.05

log = logging.getLogger(__name__)
_PROCESSES = Processes(SlurmJobs("", lambda _job: None))
"""For questions about agents, which belong to no job."""


class CheckpointedProcess(BaseModel):
    """A process whose GPU memory the driver holds in host memory. NVML does not list it any more."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    pid: Annotated[int, Field(gt=0)]
    start_time_ticks: Annotated[int, Field(ge=0)]
    gpus: protocol.GpuIndices
    """The job's GPUs at that time."""
    memory_bytes: dict[int, protocol.ByteCount]
    """What it held, by GPU index: that much must be free before it is restored."""


class JobState(BaseModel):
    """What the agent must still know after it was killed: `agent.json`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = 1
    job_id: protocol.JobIdField
    uid: protocol.UidField
    phase: NodePhase = NodePhase.RUNNING
    gpus: protocol.GpuIndices = ()
    binding: protocol.GpuIndices = ()
    beside: protocol.JobIds = ()
    """Jobs that may have memory on its GPUs while it has."""
    target_step: protocol.Step = 0
    """Of the pause under way; it never falls within one pause."""
    stopped_step: protocol.Step | None = None
    left_bytes: protocol.ByteCount = 0
    left_on: dict[int, protocol.ByteCount] = Field(default_factory=dict)
    """The same by GPU."""
    residual_bytes: protocol.ByteCount = 0
    """What the job may keep on each GPU while it is off them."""
    held_bytes: dict[int, protocol.ByteCount] = Field(default_factory=dict)
    """The most it held on each GPU when its sessions left: so much must be there for it to come back."""
    host_bytes: protocol.ByteCount = 0
    """What its sessions may have taken of host memory for that: their buffers stay when it comes back."""
    peak_bytes: protocol.ByteCount = 0
    """The most it was ever seen to hold on one GPU, in this run."""
    offload_seconds: float = 0.0
    empty: bool = False
    """It had nothing on any GPU when it was asked to leave."""
    off: bool = False
    """Its memory is off its GPUs. It has left them (`yielded`) when its processes are stopped too: until then
    one of them may start CUDA at any moment."""
    stopped: bool = False
    """The agent itself has stopped its processes."""
    movable: bool = False
    resizable: bool = False
    """Off its GPUs, it can come back on another number of them."""
    mapped: bool = False
    """The driver has brought its process back on other GPUs: the numbers by which the process knows its GPUs
    are not those of `visible` any more, and it must not choose among them itself."""
    map_refused: bool = False
    """The driver has refused to bring its process back on other GPUs: it is not asked to again."""
    checkpointed: tuple[CheckpointedProcess, ...] = ()
    error: str = ""

    @property
    def is_off(self) -> bool:
        """Whether its memory is off its GPUs."""
        return self.off or self.phase is NodePhase.YIELDED

    @property
    def in_host_memory(self) -> int:
        """Bytes: what its sessions keep there for their copies, and what the driver has there now."""
        held = (sum(process.memory_bytes.values()) for process in self.checkpointed if self.is_off)
        return self.host_bytes + sum(held)

    def shares_with(self, other: "JobState") -> bool:
        """Whether the two may have memory on the same GPUs at the same time: one of them was told so."""
        return other.job_id in self.beside or self.job_id in other.beside

    def but(self, **changes: object) -> "JobState":
        """A copy with changes, validated."""
        return JobState.model_validate({**self.model_dump(), **changes})


class ControlBlocks:
    def __init__(self, run_dir: Path, *, apart: bool = True) -> None:
        """`apart`: several users' jobs have blocks here (`rank_room`)."""
        self.run_dir, self._apart = run_dir, apart

    def block(self, job_id: int) -> "ControlBlock":
        """The block of a job, whether it exists or not."""
        return ControlBlock(self.run_dir, job_id, apart=self._apart)

    def job_ids(self) -> list[int]:
        """Jobs that have a block, in order."""
        try:
            names = [entry.name for entry in self.run_dir.iterdir()]
        except FileNotFoundError:
            return []
        numbers = (int(name) for name in names if re.fullmatch(r"[1-9]\d{0,9}", name))
        return sorted(number for number in numbers if number <= protocol.MAX_JOB_ID)

    def states(self) -> list[JobState]:
        return list(filter(None, (self.block(job_id).load_state() for job_id in self.job_ids())))

    def trash(self) -> list[Path]:
        """What an agent that was killed, or an epilog that ran out of time, had only put aside."""
        try:
            return [e for e in self.run_dir.iterdir() if e.name.startswith((".trash-", ".gone."))]
        except OSError:
            return []

    def empty(self, trash: Sequence[Path]) -> None:
        """Remove it. May take long: jobs' users may have made it large."""
        for path in trash:
            with contextlib.suppress(OSError):
                _remove_tree(path)


class ControlBlock:
    def __init__(self, run_dir: Path, job_id: int, *, apart: bool = True) -> None:
        self.job_id, self._apart = job_id, apart
        self.path = run_dir / str(job_id)
        self._command = self.path / "command"
        self.ranks = self.path / "ranks"

    def missing(self) -> str:
        """What to say where there is none."""
        return (
            f"no control block {self.path}: the job was not prepared here, or the node has lost it since;"
            f" after a restart of the node the controller requeues it,"
            " else requeue it, or end it and start it again"
        )

    def exists(self) -> bool:
        """Whether there is one that an agent or a prolog has finished making."""
        return self._command.exists()

    def uid(self) -> int | None:
        """Whose job it is: as an agent wrote it down, else (the prolog made the block) the owner of `ranks/`,
        which root gave to the job's user; None without a block."""
        state = self.load_state()
        return state.uid if state is not None else rank_room.owner(self.ranks)

    def create(self, uid: int) -> None:
        """Make the block, or complete one. Raises OSError."""
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.path.mkdir(exist_ok=True)
        self.path.chmod(0o755)  # whatever the umask says
        if rank_room.owner(self.ranks) != uid:
            self._make_ranks(uid)
        self.write_command(layout.Verb.RUN, 0)

    def clear_ranks(self, uid: int) -> None:
        """Forget the sessions of an earlier run of the job. Raises OSError."""
        if not rank_room.is_fresh(self.ranks, uid, apart=self._apart):
            self._make_ranks(uid)

    def _make_ranks(self, uid: int) -> None:
        if self._apart:
            rank_room.drop(self.ranks)
        self.put_aside(self.ranks)
        self.ranks.mkdir(mode=0o700)
        rank_room.furnish(self.ranks, uid, apart=self._apart)

    def remove(self) -> None:
        """Take the block away; sessions that wait are told to go on first. Raises OSError."""
        if self.exists():
            self.write_command(layout.Verb.RUN, 0)
        self.put_aside(self.path)

    def put_aside(self, path: Path) -> None:
        """Remove a tree that its user may still be writing to: out of sight at once, then deleted."""
        for number in range(100):
            trash = self.path.parent / f".trash-{self.job_id}-{os.getpid()}-{number}"
            try:
                path.rename(trash)
            except FileNotFoundError:
                return
            except OSError:
                if trash.exists():
                    continue
                raise
            if self._apart:
                _remove_tree(trash)
            else:
                shutil.rmtree(trash, ignore_errors=True)
            return

    def write_command(self, verb: layout.Verb, target_step: int, gpus: int | None = None) -> int:
        """Give all sessions a command; the same one again changes nothing. Returns its sequence number.
        `gpus`: how many the job uses here; None: as many as before."""
        current = self.read_command()
        if gpus is None:
            gpus = current.gpus if current is not None else 0
        wanted = (verb, target_step, gpus)
        if current is not None and wanted == (current.verb, current.target_step, current.gpus):
            return current.sequence
        with self._words(os.O_CREAT) as words:
            # Odd while it changes. If we are killed half-way, sessions stay as they are until the next
            # agent writes.
            sequence = (words[layout.WORD_SEQUENCE] | 1) & (2**63 - 1)
            words[layout.WORD_SEQUENCE] = sequence
            words[layout.WORD_TARGET] = target_step
            words[layout.WORD_GPUS] = gpus
            words[layout.WORD_HEAD] = layout.head_word(verb)
            words[layout.WORD_SEQUENCE] = sequence + 1
            return sequence + 1

    def write_memory_limit(self, limit_bytes: int) -> None:
        """Say how much the job may take of each of its GPUs; 0: no limit. It is no part of a command: the
        sequence stays, and no session answers. Raises OSError."""
        current = self.read_command()
        if current is None or current.memory_limit_bytes == limit_bytes:
            return
        with self._words() as words:
            words[layout.WORD_MEMORY_LIMIT] = limit_bytes

    @contextlib.contextmanager
    def _words(self, create: int = 0) -> Iterator[memoryview]:
        """What sessions have mapped, as numbers."""
        with opened(self._command, os.O_RDWR | create, 0o644) as file:
            os.fchmod(file, 0o644)
            if os.fstat(file).st_size != layout.RECORD_BYTES:
                os.ftruncate(file, 0)
                os.posix_fallocate(file, 0, layout.RECORD_BYTES)
            with mmap.mmap(file, layout.RECORD_BYTES) as mapped, memoryview(mapped).cast("Q") as words:
                yield words

    def read_command(self) -> layout.Command | None:
        """The command in force; None without one that can be read."""
        try:
            data = self._command.read_bytes()
        except OSError:
            return None
        return layout.parse_command(data) if len(data) == layout.RECORD_BYTES else None

    def write_visible(self, positions: Sequence[int] | None) -> None:
        """Say which of the devices that the job can open it uses now, as CUDA counts them: `visible`. None:
        all. Raises OSError."""
        path = self.path / "visible"
        if positions is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, ",".join(map(str, positions)) + "\n", 0o644)

    def write_turn(self, on: bool, opened: Sequence[str], closed: Sequence[str]) -> None:
        """Say whether the job is on its GPUs now, and which devices (MAJOR:MINOR) it may open then, and may
        not: `turn`. Raises AgentError unknown_job."""
        words = ["on" if on else "off", *(f"+{name}" for name in opened), *(f"-{name}" for name in closed)]
        self._write("turn", " ".join(words) + "\n", 0o644)

    def opened(self) -> frozenset[str]:
        """The devices (MAJOR:MINOR) that the job may open now, as `turn` says."""
        words = text_of(self.path / "turn").split()
        return frozenset(word[1:] for word in words if word[0] == "+")

    def is_on(self) -> bool | None:
        """What `turn` says; None: nobody has prepared this start of the job."""
        words = text_of(self.path / "turn").split()
        return words[0] == "on" if words else None

    def load_state(self) -> JobState | None:
        """What an agent wrote last; None when no agent ever did, or what it wrote is unreadable."""
        try:
            text = (self.path / "agent.json").read_bytes()
            if len(text) > MAX_STATE_BYTES:
                return None
            state = JobState.model_validate_json(text)
        except (OSError, ValidationError):
            return None
        return state if state.job_id == self.job_id else None

    def save_state(self, state: JobState) -> JobState:
        """Write it down. Raises AgentError unknown_job when the block has gone."""
        self._write("agent.json", state.model_dump_json(), 0o600)
        return state

    def _write(self, name: str, text: str, mode: int) -> None:
        try:
            write_atomically(self.path / name, text, mode)
        except FileNotFoundError:
            raise AgentError(ErrorKind.UNKNOWN_JOB, f"the control block {self.path} has gone") from None

    def change(self, state: JobState, **changes: object) -> JobState:
        """Write down a state with changes, and return it. Raises AgentError unknown_job."""
        return self.save_state(state.but(**changes))

    @contextlib.contextmanager
    def locked(self, deadline: Deadline) -> Iterator[None]:
        """Keep other agents away from this job: one that lost its channel may still be finishing. One that
        hangs is ended.

        Raises AgentError: unknown_job without a block, deadline when the other one does not finish.
        """
        path = self.path / "agent.lock"
        with contextlib.ExitStack() as stack:
            try:
                # In a folder of root's and mode 0600: a user who could open it could hold the lock for ever.
                file = stack.enter_context(opened(path, os.O_RDWR | os.O_CREAT))
            except FileNotFoundError:
                raise AgentError(ErrorKind.UNKNOWN_JOB, self.missing()) from None
            for _ in polls(deadline):
                if try_lock(file) or (_end_hung_agent(file, self.job_id) and try_lock(file)):
                    break
            else:
                raise AgentError(
                    ErrorKind.DEADLINE, f"another agent is still at work on job {self.job_id}; try again"
                )
            me, until = os.getpid(), time.monotonic() + deadline.left_seconds
            os.pwrite(file, f"{me} {_PROCESSES.start_time_ticks(me)} {until:015.3f}\n".encode(), 0)
            try:
                yield
            finally:
                # Who comes next has the lock a moment before its pid is there. Mine must not be then: it
                # would be this process that is taken for hung, long at work on another job.
                with contextlib.suppress(OSError):
                    os.ftruncate(file, 0)


def _end_hung_agent(lock: int, job_id: int) -> bool:
    """Kill the agent that holds this lock when it is stopped, or has had its time and more: no other agent
    could do anything to the job. Every verb may be cut short anywhere. True: look again."""
    try:
        pid, start, until = os.pread(lock, 64, 0).decode("ascii", "replace").split()
        holder, overdue = ProcessId(int(pid), int(start)), time.monotonic() > float(until) + HUNG_SECONDS
        command = Path("/proc", pid, "cmdline").read_bytes()
    except (OSError, ValueError):
        return False
    stopped = _PROCESSES.halted(holder.pid) == "stopped"
    is_agent = any(name in command for name in (b"gandiva-agent", b"controller.agent.main"))
    if holder.pid == os.getpid() or not is_agent or not _PROCESSES.alive(holder) or not (stopped or overdue):
        return False
    state = "is stopped" if stopped else "hangs"
    log.warning("job %d: agent %d %s while it holds the job's lock: killed", job_id, holder.pid, state)
    _PROCESSES.send([holder], signal.SIGKILL)
    time.sleep(KILLED_SECONDS)
    return True


def _remove_tree(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.lstat().st_uid == os.geteuid():  # a whole block, not something of a user's that was in one
            rank_room.drop(path / "ranks")
    # rm, because it copes with folders nested thousands deep and with a user who changes links meanwhile.
    with contextlib.suppress(subprocess.TimeoutExpired):
        command = ["rm", "-rf", "--one-file-system", "--", str(path)]
        subprocess.run(command, timeout=REMOVE_SECONDS, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
