# SPDX-License-Identifier: GPL-2.0-or-later
"""What users' processes write on a node, and what sessions read there."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tempfile
from pathlib import Path

from controller.agent import rank_files
from controller.agent.control_block import MAX_STATE_BYTES, ControlBlock, JobState
from controller.agent.identity import SlurmJobs
from controller.agent.processes import Processes
from controller.nodes import protocol
from controller.nodes.protocol import MAX_RANKS
from gandiva import _environment, layout
from gandiva._session import LiveSession
from tests.fuzz import mutations
from tests.fuzz.target import Target

_PID = os.getpid()
GOOD_RANK = layout.RANK.pack(
    *(b"GNDR", 1, 0, 4, 2, 17, 34.0, 0.25, 0, 0.5, _PID, 1),
    *(_environment.start_time_ticks(_PID), 1000, 500, 6, b"an error", 1000, 17, 3),
).ljust(layout.RECORD_BYTES, b"\0")
GOOD_COMMAND = layout.COMMAND.pack(b"GNDC", 1, 0, 2, 0, 0, 0).ljust(layout.RECORD_BYTES, b"\0")
GOOD_STATE = json.dumps(
    {"job_id": 7, "uid": os.getuid(), "gpus": [0, 1], "binding": [0, 1], "phase": "yielded"}
)


def _record(dice: random.Random, good: bytes) -> bytes:
    """A record with a field or two changed, or damaged anywhere."""
    data = bytearray(good)
    assert len(data) == layout.RECORD_BYTES
    for _ in range(dice.randint(1, 3)):
        size = dice.choice((2, 4, 8))
        at = dice.choice((dice.randrange(0, 104, size), 160, 168, 176))
        number = dice.choice((0, 1, 2, 5, 6, 2**16 - 1, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1))
        packed = struct.pack("<d", dice.choice((float("nan"), float("inf"), -1.0, 1e300)))
        data[at : at + size] = (
            packed if size == 8 and dice.random() < 0.3 else struct.pack("<Q", number)[:size]
        )
    return mutations.raw(dice, bytes(data), 2) if dice.random() < 0.2 else bytes(data)


def _send(ranks: tuple[rank_files.Rank, ...]) -> None:
    """They fit into a message, and the other side reads it."""
    message = protocol.result_as_json(protocol.Pause(0, True, ranks))
    assert len(protocol.read_result(protocol.Pause, message).ranks) == len(ranks)


def _ranks(dice: random.Random, folder: Path) -> bool:
    """Never raises, follows nothing, changes nothing; what it believes has been range-checked."""
    ranks = folder / "ranks"
    shutil.rmtree(ranks, ignore_errors=True)
    ranks.mkdir()
    other = folder / "another's"
    other.write_bytes(GOOD_RANK)
    for number in range(dice.randint(1, 4)):
        name = dice.choice((str(number), str(number), "01", "-1", "1e3", "99999", "x" * 200, "\udcff", "٣"))
        path = ranks / name
        if os.path.lexists(path):
            continue  # never write through what is there: it may be a link
        match dice.randrange(12):
            case 0:
                path.symlink_to(dice.choice(("/dev/zero", str(other), name, ".")))
            case 1:
                os.mkfifo(path)
            case 2:
                path.mkdir()
            case 3:
                os.link(other, path)
            case 4:
                with path.open("xb") as file:
                    file.truncate(dice.choice((0, 4095, 4097, 2**40)))
            case _:
                path.write_bytes(_record(dice, GOOD_RANK))
    found = rank_files.read_ranks(ranks, os.getuid(), 7, Processes(SlurmJobs("n1", lambda _job: os.getuid())))
    assert other.read_bytes() == GOOD_RANK
    assert len(found.live) <= MAX_RANKS and len(found.problems) <= MAX_RANKS
    _send(found.live)
    # Of the records themselves, whatever process they name:
    record = layout.parse_rank(_record(dice, GOOD_RANK).ljust(layout.RECORD_BYTES, b"\0"))
    if record is None:
        return False
    try:
        _send((rank_files.check_record(dice.choice((0, 1, 70_000)), record),))
    except rank_files.BadRankFile as error:
        assert len(str(error)) < 500
        return False
    return True


def _block(dice: random.Random, folder: Path) -> bool:
    """`command` and `agent.json` damaged: nothing or something valid, and both can be written again."""
    shutil.rmtree(folder / "7", ignore_errors=True)
    block = ControlBlock(folder, 7)
    block.path.mkdir()
    block.ranks.mkdir()
    (block.path / "command").write_bytes(_record(dice, GOOD_COMMAND))
    text = mutations.dumped(dice, json.loads(GOOD_STATE)).encode("utf-8", "surrogatepass")
    (block.path / "agent.json").write_bytes(text if dice.random() < 0.95 else text + b" " * MAX_STATE_BYTES)
    state = block.load_state()
    assert state is None or (isinstance(state, JobState) and state.job_id == 7)
    block.read_command()
    block.write_command(layout.Verb.PAUSE, 5)
    command = block.read_command()
    assert command is not None and (command.verb, command.target_step) == (layout.Verb.PAUSE, 5)
    block.save_state(JobState(job_id=7, uid=1))
    assert block.load_state() is not None
    return state is not None


def _session(dice: random.Random, folder: Path) -> bool:
    """A session on a damaged command page, with odd surroundings: refuses it, or trains on."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        directory = Path(own)
        (directory / "ranks").mkdir()
        page = _record(dice, GOOD_COMMAND)
        (directory / "command").write_bytes(page)
        visible = mutations.text(dice, "0,1\n").encode("utf-8", "surrogatepass")
        (directory / "visible").write_bytes(visible)
        environ = {
            name: mutations.pick(dice, good)
            for name, good in (("RANK", ("0", "1")), ("WORLD_SIZE", ("1", "4")), ("SLURM_PROCID", ("0",)))
        }
        try:
            _environment.visible_positions(directory)
            _environment.control_dir({"GANDIVA_CONTROL_DIR": mutations.text(dice, "/run/gandiva/7")})
            session = LiveSession(directory, _environment.place(environ))
        except (OSError, ValueError) as error:
            assert str(error), "no message"
            return False
        try:
            command = layout.parse_command(page) if len(page) == layout.RECORD_BYTES else None
            if command is None or command.verb is layout.Verb.RUN:  # else it must wait, for good
                for _ in range(3):
                    session.step(samples=1)
            assert (directory / "command").read_bytes() == page, "a session wrote into the agent's file"
        finally:
            session.finish()
    return True


TARGETS = (
    Target("ranks", "rank files of users", _ranks),
    Target("block", "command page and agent.json", _block),
    Target("session", "command page, visible and environment, read by a session", _session, 6),
)
