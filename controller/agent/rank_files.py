# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading what sessions write: hostile input.

The folder `ranks/` belongs to the job's user, who can put anything there and change it at any moment: links,
pipes, devices, other users' files, files that shrink while they are read, millions of names. So: nothing is
followed or waited for, sizes and counts are bounded, files are read and never mapped (a mapping of a file
that shrinks is SIGBUS), every value is checked, and a rank counts only when the process it names is alive,
is the user's and is in the job.
"""

import contextlib
import math
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from controller.agent import rank_room
from controller.agent.processes import Processes, ProcessId
from controller.nodes.protocol import MAX_BYTES, MAX_RANKS, MAX_STEP, RankSample, RankState
from gandiva import layout

MAX_NAMES = 4096
MAX_STEP_SECONDS = 86_400.0
MAX_WORLD_SIZE = 65_536
GLANCE_SECONDS = 0.005
"""For a look: a session that writes just now is read at the next one."""
PATIENCE_SECONDS = 0.5
"""For a switch: on a busy node a session may be off its core in the middle of writing."""

_NAME = re.compile(r"0|[1-9]\d{0,4}")


class BadRankFile(Exception):
    """A rank file that says nothing usable, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank(RankSample):
    """One session whose every value has been checked."""

    answered_sequence: int
    left_bytes: int
    offload_seconds: float
    process: ProcessId
    releases_context: bool
    resizes: bool
    """It goes on with any number of GPUs."""
    starts_processes: bool
    """It speaks for processes of its job that have no session."""
    states_host_bytes: bool
    """False: a session of an older release, which does not say it."""
    host_bytes: int | None
    """Host memory that its next offload takes. None: it does not say it, or has not measured it yet."""
    has_store: bool
    saves_offloaded: bool
    """It can save while it is offloaded."""
    saved_step: int
    """Of the generation that it published last. 0, and no generation: none yet."""
    saved_generation: int

    @property
    def next_boundary(self) -> int:
        """The earliest step at which this rank can stop: where it is if blocked, else the next one."""
        return self.steps_done if self.state is RankState.BLOCKED else self.steps_done + 1


@dataclass(frozen=True, slots=True)
class Ranks:
    """All sessions of a job on this node, and the files that are none."""

    live: tuple[Rank, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def working(self) -> tuple[Rank, ...]:
        return tuple(rank for rank in self.live if rank.state is not RankState.FINISHED)

    @property
    def pids(self) -> frozenset[int]:
        """Processes that a session speaks for."""
        return frozenset(rank.process.pid for rank in self.live)


def read_ranks(
    directory: Path, uid: int, job_id: int, processes: Processes, patience_seconds: float = GLANCE_SECONDS
) -> Ranks:
    """Read `ranks/` of a job. Never raises for anything its user can do, and waits for files that are being
    written no longer than `patience_seconds` in all."""
    until = time.monotonic() + patience_seconds
    try:
        with rank_room.open_folder(directory) as folder:
            live, problems = [], []
            for name in _names(folder):
                try:
                    rank = _read_one(folder, name, uid, until)
                    if _is_alive(rank, uid, job_id, processes):
                        live.append(rank)
                except BadRankFile as error:
                    problems.append(f"rank {name}: {error}")
            return Ranks(tuple(sorted(live, key=lambda rank: rank.rank)), tuple(problems[:MAX_RANKS]))
    except FileNotFoundError:
        return Ranks()
    except OSError as error:
        return Ranks(problems=(f"{directory}: {error.strerror}",))


def _names(folder: int) -> list[str]:
    """Names that are ranks, lowest first: at most MAX_RANKS, looking at no more than MAX_NAMES."""
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count >= MAX_NAMES:
                break
            if _NAME.fullmatch(entry.name):
                found.append(entry.name)
    return sorted(found, key=int)[:MAX_RANKS]


def _read_one(folder: int, name: str, uid: int, until: float) -> Rank:
    try:
        with rank_room.open_file(folder, name) as file:
            return check_record(int(name), _read_record(file, uid, until))
    except OSError as error:
        raise BadRankFile(f"cannot be read: {error.strerror}") from None


def _read_record(file: int, uid: int, until: float) -> layout.RankRecord:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise BadRankFile("not a regular file")
    if status.st_uid != uid:
        raise BadRankFile(f"owner is {status.st_uid}, the job's user is {uid}")
    if status.st_nlink > 1:
        raise BadRankFile("has a second name")
    if status.st_size != layout.RECORD_BYTES:
        raise BadRankFile(f"size is {status.st_size}, not {layout.RECORD_BYTES}")
    while True:
        first, second = _pread(file), _pread(file)
        record, again = layout.parse_rank(first), layout.parse_rank(second)
        if record is None and first[: len(layout.RANK_MAGIC)] != layout.RANK_MAGIC:
            raise BadRankFile("not a rank file")
        # The same even number before and after: nothing was written in between but steps and samples.
        if record is not None and again is not None and record.sequence == again.sequence:
            return record
        if time.monotonic() >= until:
            raise BadRankFile("is being written all the time, or is of another version")
        time.sleep(0.001)


def _pread(file: int) -> bytes:
    data = os.pread(file, layout.RANK.size, 0)
    if len(data) != layout.RANK.size:
        raise BadRankFile("shrank while it was read")
    return data


def check_record(rank: int, record: layout.RankRecord) -> Rank:
    """Range-check every field. Raises BadRankFile naming the first one that is out of range."""

    def whole(name: str, value: int, limit: int) -> int:
        if not 0 <= value <= limit:
            raise BadRankFile(f"{name} is {value}, allowed are 0 to {limit}")
        return value

    def real(name: str, value: float, limit: float) -> float:
        if not (math.isfinite(value) and 0 <= value <= limit):
            raise BadRankFile(f"{name} is {value}, allowed are 0 to {limit:g}")
        return value

    try:
        state = RankState[layout.State(record.state).name]
    except ValueError:
        raise BadRankFile(f"state is {record.state}, allowed are 0 to {max(layout.State)}") from None
    if not rank < record.world_size <= MAX_WORLD_SIZE:
        raise BadRankFile(f"world size is {record.world_size}, allowed are {rank + 1} to {MAX_WORLD_SIZE}")
    states_host_bytes = bool(record.flags & layout.FLAG_STATES_HOST_BYTES)
    has_store = bool(record.flags & layout.FLAG_HAS_STORE)
    unknown = not states_host_bytes or record.host_bytes == layout.HOST_BYTES_UNKNOWN
    return Rank(
        rank=rank,
        state=state,
        answered_sequence=record.answered_sequence,
        steps_done=whole("steps_done", record.steps_done, MAX_STEP),
        samples_done=real("samples_done", record.samples_done, 1e18),
        step_seconds=real("step seconds", record.step_seconds, MAX_STEP_SECONDS),
        left_bytes=whole("bytes left", record.left_bytes, MAX_BYTES),
        offload_seconds=real("offload seconds", record.offload_seconds, MAX_STEP_SECONDS),
        process=ProcessId(whole("pid", record.pid, 2**22), record.start_time_ticks),
        world_size=record.world_size,
        state_bytes=whole("state bytes", record.state_bytes, MAX_BYTES),
        largest_tensor_bytes=whole("largest tensor bytes", record.largest_tensor_bytes, MAX_BYTES),
        releases_context=bool(record.flags & layout.FLAG_RELEASES_CONTEXT),
        resizes=bool(record.flags & layout.FLAG_RESIZES),
        starts_processes=bool(record.flags & layout.FLAG_STARTS_PROCESSES),
        error=_printable(record.error),
        states_host_bytes=states_host_bytes,
        host_bytes=None if unknown else whole("host bytes", record.host_bytes, MAX_BYTES),
        has_store=has_store,
        saves_offloaded=has_store and bool(record.flags & layout.FLAG_SAVES_OFFLOADED),
        saved_step=whole("saved step", record.saved_step, MAX_STEP) if has_store else 0,
        saved_generation=whole("saved generation", record.saved_generation, MAX_STEP) if has_store else 0,
    )


def _printable(raw: bytes) -> str:
    text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "?" for character in text)


def _is_alive(rank: Rank, uid: int, job_id: int, processes: Processes) -> bool:
    """False: it said that it had finished, and has ended since. Raises BadRankFile."""
    pid = rank.process.pid
    if pid == 0 or not processes.alive(rank.process):
        if rank.state is RankState.FINISHED:
            return False
        raise BadRankFile(f"its process {pid} has ended")
    if processes.uid(pid) != uid:
        raise BadRankFile(f"process {pid} is not the job's user's")
    if processes.job_of(pid) != job_id:
        raise BadRankFile(f"process {pid} is not in job {job_id}")
    return True
