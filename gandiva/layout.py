# SPDX-License-Identifier: MIT
"""The two shared-memory records through which a node agent and a training script talk.

`command` is written by the agent and read by the sessions; `ranks/<rank>` is written by one session and
read by the agent (docs/interfaces.md, section 3). Both are 4,096 bytes, little-endian, versioned, and
guarded by a sequence number which is odd while the record is being written (a seqlock). The two fields
that change at every mini-batch, `steps_done` and `samples_done`, lie outside that guard, and so does the
`memory_limit_bytes` of a command: each is one aligned 8-byte store.

This module is the only place that knows the offsets; the agent imports it from here.
"""

import enum
import struct
import sys
from typing import NamedTuple, Optional

VERSION = 1
RECORD_BYTES = 4096
"""Size of `command` and of every rank file."""

COMMAND_MAGIC = b"GNDC"
RANK_MAGIC = b"GNDR"

ERROR_BYTES = 60
"""Room for the last error in a rank file, as zero-padded UTF-8."""

FLAG_RELEASES_CONTEXT = 1
"""Offload destroys the CUDA context too: nothing of the process stays on the GPU."""
FLAG_STATES_HOST_BYTES = 2
"""The field host_bytes is written. Sessions from before it existed leave other bytes there."""
FLAG_HAS_STORE = 4
"""The session has a checkpoint store and obeys SAVE; saved_step and saved_generation are written."""
FLAG_RESIZES = 8
"""After an OFFLOAD the session goes on with any number of GPUs."""
FLAG_STARTS_PROCESSES = 16
"""The session speaks for processes on GPUs that have no session: its own process starts and ends them."""
FLAG_SAVES_OFFLOADED = 32
"""The session has a checkpoint store and obeys SAVE while it is OFFLOADED: it reads its host copy."""
HOST_BYTES_UNKNOWN = 2**64 - 1
"""In host_bytes: not measured yet."""

COMMAND = struct.Struct("<4sHHQQQQ")
RANK = struct.Struct("<4sHHQQQddQdIIQQQI60sQQQ")

# Positions of the hot fields when a record is seen as an array of 8-byte words.
WORD_HEAD = 0
WORD_SEQUENCE = 1
WORD_TARGET = 2
WORD_GPUS = 3
WORD_MEMORY_LIMIT = 4
WORD_ANSWERED = 2
WORD_STEPS = 3
WORD_SAMPLES = 4

LITTLE_ENDIAN = sys.byteorder == "little"
"""Records are accessed as native words; big-endian machines are not supported."""


class Verb(enum.IntEnum):
    """What the agent asks of all sessions of a job."""

    RUN = 0
    PAUSE = 1
    OFFLOAD = 2
    SAVE = 3
    """Blocked or offloaded at the target, write the state into the checkpoint store, and stay so."""


class State(enum.IntEnum):
    """What one session is doing."""

    RUNNING = 0
    BLOCKED = 1
    OFFLOADED = 2
    RESTORING = 3
    FAILED = 4
    FINISHED = 5


class Command(NamedTuple):
    """A consistent copy of the `command` record."""

    verb: Verb
    sequence: int
    target_step: int
    gpus: int = 0
    """How many the job uses on this node, from the next RUN on. 0: an older agent does not say."""
    memory_limit_bytes: int = 0
    """The most that the job may take of each of its GPUs. 0: no limit."""


class RankRecord(NamedTuple):
    """The fields of a rank file, as a session begins with them, or as found there and not yet checked."""

    state: int = State.RUNNING
    sequence: int = 0
    answered_sequence: int = 0
    steps_done: int = 0
    samples_done: float = 0.0
    step_seconds: float = 0.0
    left_bytes: int = 0
    offload_seconds: float = 0.0
    pid: int = 0
    world_size: int = 0
    start_time_ticks: int = 0
    state_bytes: int = 0
    largest_tensor_bytes: int = 0
    flags: int = 0
    error: bytes = b""
    host_bytes: int = HOST_BYTES_UNKNOWN
    saved_step: int = 0
    saved_generation: int = 0


def head_word(verb: Verb) -> int:
    """The first 8 bytes of a `command` record with this verb, as a native word."""
    word: int = struct.unpack("=Q", struct.pack("<4sHH", COMMAND_MAGIC, VERSION, verb))[0]
    return word


def parse_command(data: bytes) -> Optional[Command]:
    """Decode a `command` record. None: cut short, not one, of another version or verb, or in mid-write."""
    if len(data) < COMMAND.size:
        return None
    magic, version, verb, sequence, *fields = COMMAND.unpack_from(data)
    if magic != COMMAND_MAGIC or version != VERSION or sequence % 2:
        return None
    try:
        return Command(Verb(verb), sequence, *fields)
    except ValueError:
        return None


def parse_rank(data: bytes) -> Optional[RankRecord]:
    """Decode a rank file. None: cut short, not one, of another version, or in mid-write. Checks no value."""
    if len(data) < RANK.size:
        return None
    magic, version, *fields = RANK.unpack_from(data)
    record = RankRecord._make(fields)
    if magic != RANK_MAGIC or version != VERSION or record.sequence % 2:
        return None
    return record


def encode_error(text: str) -> bytes:
    """UTF-8 in at most ERROR_BYTES, cut between characters."""
    return text.encode("utf-8", "replace")[:ERROR_BYTES].decode("utf-8", "ignore").encode("utf-8")
