# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent's side of a control block, played by the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gandiva
from gandiva import layout
from gandiva.layout import RankRecord, State, Verb

PATIENCE_SECONDS = 60.0


class Block:
    """A control block in a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sequence = 0
        self.memory_limit_bytes = 0
        (directory / "ranks").mkdir(parents=True)
        self.command(Verb.RUN)

    def command(self, verb: Verb, target_step: int = 0, *, half_written: bool = False, gpus: int = 0) -> int:
        """Write a command, in place; returns its sequence number."""
        self.sequence += 2
        number = self.sequence - 1 if half_written else self.sequence
        head = (layout.COMMAND_MAGIC, layout.VERSION, verb, number, target_step, gpus)
        record = layout.COMMAND.pack(*head, self.memory_limit_bytes)
        path = self.directory / "command"
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.write(record.ljust(layout.RECORD_BYTES, b"\0") if path.stat().st_size == 0 else record)
        return self.sequence

    def limit(self, limit_bytes: int) -> None:
        """Write a memory limit, which is no command."""
        self.memory_limit_bytes = limit_bytes
        with (self.directory / "command").open("r+b") as file:
            file.seek(8 * layout.WORD_MEMORY_LIMIT)
            file.write(limit_bytes.to_bytes(8, "little"))

    def rank(self, rank: int = 0) -> RankRecord:
        """What a session has published."""
        return self.wait(lambda: layout.parse_rank((self.directory / "ranks" / str(rank)).read_bytes()))

    def wait_for(self, state: State, rank: int = 0, sequence: int = 0) -> RankRecord:
        """Wait until a session is in a state, under a command not older than `sequence`."""

        def reached() -> RankRecord | None:
            path = self.directory / "ranks" / str(rank)
            record = layout.parse_rank(path.read_bytes()) if path.exists() else None
            if record is None or record.state != state or record.answered_sequence < sequence:
                return None
            return record

        return self.wait(reached)

    @staticmethod
    def wait(condition: Callable[[], RankRecord | None]) -> RankRecord:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            found = condition()
            if found is not None:
                return found
            time.sleep(0.002)
        raise AssertionError("waited in vain for a session")


@pytest.fixture
def block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Block]:
    """A control block that `gandiva.attach()` in this process would find."""
    made = Block(tmp_path / "12")
    for name in (
        "RANK",
        "WORLD_SIZE",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_JOB_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GANDIVA_CONTROL_DIR", str(made.directory))
    monkeypatch.setattr(gandiva, "_current", None)
    yield made
    made.command(Verb.RUN)
    session = gandiva._current
    if session is not None:
        session.finish()
