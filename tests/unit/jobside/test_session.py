# SPDX-License-Identifier: GPL-2.0-or-later
"""The session against an agent played by the test."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import gandiva
from gandiva import Session, layout
from gandiva.layout import State, Verb

from .conftest import PATIENCE_SECONDS, Block

ROOT = Path(__file__).resolve().parents[3]


class Trainer(threading.Thread):
    """Calls step() until it is told to stop."""

    def __init__(self, session: Session, before_step: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.error: BaseException | None = None
        self._before_step = before_step
        self._stop_it = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._stop_it.wait(0.001):
                self._before_step(self.session.steps_done)
                self.session.step(samples=4)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._stop_it.set()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()


class Part:
    """State with hooks, that notes what happens to it."""

    def __init__(self, name: str, story: list[str], left: int | None = None) -> None:
        self.name = name
        self.story = story
        self.left = left
        self.fail_in = ""
        self.state_bytes = 1000

    def offload(self) -> int | None:
        if self.fail_in == "offload":
            raise RuntimeError(f"{self.name} cannot")
        self.story.append(f"{self.name} off")
        return self.left

    def restore(self) -> None:
        if self.fail_in == "restore":
            raise RuntimeError(f"{self.name} cannot return")
        self.story.append(f"{self.name} back")


def test_outside_slurm_everything_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANDIVA_CONTROL_DIR", raising=False)
    monkeypatch.setattr(gandiva, "_current", None)
    with gandiva.attach() as session:
        session.register(object(), 3, name="nothing")
        session.step(samples=8)
        assert list(session.steps(["a", "bc"], samples=len)) == ["a", "bc"]
        assert not session.active
        assert not session.offloaded
        assert session.visible_positions() is None


def test_what_a_rank_publishes(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    session = gandiva.attach()
    assert session.active
    assert gandiva.attach() is session
    part = Part("model", [])
    session.register(part)
    for _ in range(7):
        session.step(samples=2.5)
    found = block.rank(3)
    assert (found.steps_done, found.samples_done) == (7, 17.5)
    assert (found.state, found.world_size, found.pid) == (State.RUNNING, 8, os.getpid())
    own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert found.start_time_ticks == int(own[19])
    assert found.state_bytes == 1000
    session.finish()
    assert block.rank(3).state == State.FINISHED
    assert not session.active
    session.step()  # a script need not know
    assert block.rank(3).steps_done == 7


def test_a_rank_blocks_at_the_target_and_nowhere_else(block: Block) -> None:
    session = gandiva.attach()
    sequence = block.command(Verb.PAUSE, 25)
    trainer = Trainer(session)
    assert block.wait_for(State.BLOCKED, sequence=sequence).steps_done == 25
    # A higher target: it goes on to there, as other ranks may already be past this boundary.
    sequence = block.command(Verb.PAUSE, 31)
    assert block.wait_for(State.BLOCKED, sequence=sequence).steps_done == 31
    # The same target under a new number is answered anew.
    sequence = block.command(Verb.PAUSE, 31)
    assert block.wait_for(State.BLOCKED, sequence=sequence).steps_done == 31
    sequence = block.command(Verb.RUN)
    assert block.wait_for(State.RUNNING, sequence=sequence).steps_done >= 31
    trainer.finish()


def test_a_target_that_has_passed_blocks_at_the_next_boundary(block: Block) -> None:
    session = gandiva.attach()
    for _ in range(10):
        session.step()
    block.command(Verb.PAUSE, 4)
    trainer = Trainer(session)
    assert block.wait_for(State.BLOCKED).steps_done == 11
    block.command(Verb.RUN)
    trainer.finish()


def test_offload_and_restore_run_the_hooks_in_order(block: Block) -> None:
    story: list[str] = []
    session = gandiva.attach()
    session.register(Part("first", story, left=100), Part("second", story, left=23), name="state")
    block.command(Verb.PAUSE, 5)
    trainer = Trainer(session)
    block.wait_for(State.BLOCKED)
    sequence = block.command(Verb.OFFLOAD, 5)
    found = block.wait_for(State.OFFLOADED, sequence=sequence)
    assert (found.left_bytes, found.steps_done) == (123, 5)
    assert session.offloaded
    assert story == ["second off", "first off"]
    sequence = block.command(Verb.RUN)
    assert block.wait_for(State.RUNNING, sequence=sequence).left_bytes == 0
    trainer.finish()
    assert story == ["second off", "first off", "first back", "second back"]
    assert not session.offloaded


def test_a_hook_that_fails_keeps_the_job_on_its_gpu_and_training(block: Block) -> None:
    story: list[str] = []
    session = gandiva.attach()
    bad, good = Part("bad", story), Part("good", story)
    bad.fail_in = "offload"
    session.register(bad, good)
    with pytest.warns(RuntimeWarning, match="cannot leave the GPU"):
        trainer = Trainer(session)
        block.command(Verb.PAUSE, 3)
        block.wait_for(State.BLOCKED)
        sequence = block.command(Verb.OFFLOAD, 3)
        found = block.wait_for(State.FAILED, sequence=sequence)
    assert found.error.rstrip(b"\0").decode() == "RuntimeError: bad cannot"
    assert story == ["good off", "good back"]
    at = block.rank().steps_done
    block.wait(lambda: record if (record := block.rank()).steps_done > at + 5 else None)
    bad.fail_in = ""
    block.command(Verb.RUN)
    block.wait_for(State.RUNNING)
    # The next time it works: FAILED is a state, not a verdict.
    block.command(Verb.PAUSE, block.rank().steps_done + 1)
    blocked = block.wait_for(State.BLOCKED)
    block.command(Verb.OFFLOAD, blocked.steps_done)
    block.wait_for(State.OFFLOADED)
    block.command(Verb.RUN)
    block.wait_for(State.RUNNING)
    trainer.finish()
    assert trainer.error is None


def test_a_restore_that_fails_reaches_the_user(block: Block) -> None:
    session = gandiva.attach()
    part = Part("model", [])
    session.register(part, name="net")
    trainer = Trainer(session)
    block.command(Verb.PAUSE, 3)
    block.wait_for(State.BLOCKED)
    block.command(Verb.OFFLOAD, 3)
    block.wait_for(State.OFFLOADED)
    part.fail_in = "restore"
    sequence = block.command(Verb.RUN)
    found = block.wait_for(State.FAILED, sequence=sequence)
    assert b"cannot restore net" in found.error
    trainer.join(PATIENCE_SECONDS)
    assert isinstance(trainer.error, gandiva.RestoreError)
    assert "net: RuntimeError: model cannot return" in str(trainer.error)


def test_a_half_written_command_changes_nothing(block: Block) -> None:
    story: list[str] = []
    session = gandiva.attach()
    session.register(Part("model", story))
    trainer = Trainer(session)
    # While training: trains on.
    block.command(Verb.PAUSE, 1, half_written=True)
    at = block.rank().steps_done
    block.wait(lambda: record if (record := block.rank()).steps_done > at + 3 else None)
    # While off the GPU: stays off, whoever the GPU belongs to now.
    target = block.rank().steps_done + 2
    block.command(Verb.PAUSE, target)
    blocked = block.wait_for(State.BLOCKED)
    block.command(Verb.OFFLOAD, blocked.steps_done)
    block.wait_for(State.OFFLOADED)
    block.command(Verb.RUN, half_written=True)
    trainer.join(0.3)
    assert block.rank().state == State.OFFLOADED
    assert story == ["model off"]
    block.command(Verb.RUN)
    block.wait_for(State.RUNNING)
    trainer.finish()


def test_time_off_the_gpu_is_no_step_time(block: Block) -> None:
    session = gandiva.attach()
    clock = FakeClock()
    session._progress._clock = clock  # type: ignore[attr-defined]
    session._progress._boundary = 0.0  # type: ignore[attr-defined]
    for number in range(40):
        # Five slow steps at first, as compilers and caches have them.
        clock.now += 10.0 if number < 5 else 2.0
        session.step()
    assert block.rank().step_seconds == 2.0
    session._progress._boundary = clock.now  # type: ignore[attr-defined]
    for _ in range(11):
        clock.now += 3.0
        session.step()
    assert block.rank().step_seconds == 3.0


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_steps_counts_passes_and_lets_go_of_the_batch(block: Block) -> None:
    session = gandiva.attach()
    for batch in session.steps([[1, 2], [3], [4, 5, 6]], samples=len):
        if batch == [4, 5, 6]:
            break
    assert session.steps_done == 2
    assert block.rank().samples_done == 3


@pytest.mark.parametrize(
    ("ruin", "complaint"),
    [
        (lambda path: (path / "command").write_bytes(b"junk" * 1024), "control block of version 1"),
        (lambda path: (path / "command").write_bytes(b"GNDC"), "wrong size"),
        (lambda path: (path / "command").unlink(), "No such file"),
        (lambda path: (path / "ranks").rmdir(), "No such file"),
        (lambda path: (path / "ranks" / "0").symlink_to("/etc/passwd"), "symbolic links"),
        (lambda path: (path / "ranks" / "0").mkdir(), "directory"),
    ],
)
def test_a_block_that_is_unusable_gives_a_warning_and_no_session(
    block: Block, ruin: Callable[[Path], object], complaint: str
) -> None:
    ruin(block.directory)
    with pytest.warns(RuntimeWarning, match=complaint):
        session = gandiva.attach()
    assert not session.active
    session.step()


def test_a_second_process_is_not_the_same_rank(block: Block) -> None:
    session = gandiva.attach()
    session.step()
    code = (
        "import warnings, gandiva\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    session = gandiva.attach()\n"
        "session.step()\n"
        "assert not session.active\n"
        "print(caught[0].message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert "another live process of this job is rank 0 already" in done.stdout, done.stderr
    assert block.rank().pid == os.getpid()


def test_a_forked_worker_does_not_speak_for_its_parent(block: Block) -> None:
    code = (
        "import os, sys, gandiva\n"
        "session = gandiva.attach()\n"
        "session.step()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    inner = gandiva.attach()\n"
        "    for _ in range(100): session.step(); inner.step()\n"
        "    session.finish()\n"
        "    os._exit(1 if session.active or inner.active else 0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert session.active\n"
        "session.step()\n"
        "os._exit(0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    found = block.rank()
    assert (found.steps_done, found.state) == (2, State.RUNNING)


def test_a_process_that_ends_says_so(block: Block) -> None:
    subprocess.run(
        [sys.executable, "-c", "import gandiva; gandiva.attach().step()"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert block.rank().state == State.FINISHED
    # The next step of the same job takes the number over and starts at nought.
    assert gandiva.attach().active
    assert (block.rank().state, block.rank().steps_done) == (State.RUNNING, 0)


@pytest.mark.usefixtures("block")
def test_what_cannot_be_moved_is_refused_at_once() -> None:
    class OnlyState:
        def state_dict(self) -> dict[str, int]:
            return {}

        def to(self, device: str) -> None: ...

    session = gandiva.attach()
    with pytest.raises(TypeError, match="it needs offload"):
        session.register(object())
    with pytest.raises(TypeError, match="no attribute `device`"):
        session.register(OnlyState())


def test_an_object_with_to_goes_to_its_device_and_back(block: Block) -> None:
    class Movable:
        device = "gpu:3"
        places: list[str] = []  # noqa: RUF012

        def state_dict(self) -> dict[str, int]:
            return {}

        def to(self, device: str) -> None:
            self.device = device
            self.places.append(device)

    session = gandiva.attach()
    thing = Movable()
    session.register(thing)
    trainer = Trainer(session)
    block.command(Verb.PAUSE, 2)
    block.wait_for(State.BLOCKED)
    block.command(Verb.OFFLOAD, 2)
    block.wait_for(State.OFFLOADED)
    block.command(Verb.RUN)
    block.wait_for(State.RUNNING)
    trainer.finish()
    assert thing.places == ["cpu", "gpu:3"]


def test_a_blocked_rank_says_how_much_host_memory_it_needs(block: Block) -> None:
    session = gandiva.attach()
    part = Part("model", [])
    session.register(part)
    trainer = Trainer(session)

    def said() -> int:
        """Some steps on from where it is."""
        sequence = block.command(Verb.PAUSE, block.rank().steps_done + 3)
        block.wait_for(State.BLOCKED, sequence=sequence)
        return block.wait(
            lambda: r if (r := block.rank()).host_bytes != layout.HOST_BYTES_UNKNOWN else None
        ).host_bytes

    assert block.rank().flags & layout.FLAG_STATES_HOST_BYTES
    assert said() == 1000
    part.state_bytes = 5000
    assert said() == 5000  # measured anew, as steps were done in between
    sequence = block.command(Verb.OFFLOAD, block.rank().steps_done)
    assert block.wait_for(State.OFFLOADED, sequence=sequence).host_bytes == 0
    sequence = block.command(Verb.RUN)
    assert block.wait_for(State.RUNNING, sequence=sequence).host_bytes == layout.HOST_BYTES_UNKNOWN
    trainer.finish()


def test_errors_are_cut_between_characters() -> None:
    assert layout.encode_error("ä" * 40) == ("ä" * 30).encode()
    assert layout.encode_error("x" + "ä" * 40) == ("x" + "ä" * 29).encode()


def test_records_are_where_the_contract_says() -> None:
    record = layout.RANK.pack(
        b"GNDR", 1, 4, 6, 8, 10, 1.5, 0.25, 7, 0.5, 99, 3, 12345, 11, 12, 1, b"oops", 77, 40, 5
    )
    assert layout.RANK.size == 184
    assert record[40:48] == struct.pack("<d", 0.25)
    assert int.from_bytes(record[64:68], "little") == 99
    assert int.from_bytes(record[72:80], "little") == 12345
    assert record[100:104] == b"oops"
    assert int.from_bytes(record[160:168], "little") == 77
    assert int.from_bytes(record[168:176], "little") == 40
    assert int.from_bytes(record[176:184], "little") == 5
    parsed = layout.parse_rank(record)
    assert parsed is not None
    assert (parsed.state, parsed.left_bytes, parsed.flags) == (State.FAILED, 7, 1)


@pytest.mark.parametrize("size", [0, 1, 183])
def test_a_record_that_is_cut_short_is_none(size: int) -> None:
    assert layout.parse_rank(bytes(size)) is None
    assert layout.parse_command(bytes(size)[: layout.COMMAND.size - 1]) is None


def test_a_script_is_told_of_another_number_of_gpus_before_its_state_comes_back(block: Block) -> None:
    story: list[str] = []
    block.command(Verb.RUN, gpus=1)
    session = gandiva.attach()
    session.register(Part("part", story))
    assert not block.rank().flags & layout.FLAG_RESIZES
    session.on_resize(lambda gpus: story.append(f"{gpus} GPUs"))
    assert block.rank().flags & layout.FLAG_RESIZES and session.gpus == 1
    trainer = Trainer(session)
    for gpus in (2, 2, 0):
        block.wait_for(State.OFFLOADED, sequence=block.command(Verb.OFFLOAD, gpus=session.gpus))
        block.wait_for(State.RUNNING, sequence=block.command(Verb.RUN, gpus=gpus))
    trainer.finish()
    assert story == ["part off", "2 GPUs", "part back", "part off", "part back", "part off", "part back"]
    assert session.gpus == 2, "an older agent does not say it"


def test_a_script_that_cannot_go_on_with_so_many_ends(block: Block) -> None:
    def refuse(gpus: int) -> None:
        raise ValueError(f"three parts, {gpus} GPUs")

    session = gandiva.attach()
    session.on_resize(refuse)
    trainer = Trainer(session)
    block.wait_for(State.OFFLOADED, sequence=block.command(Verb.OFFLOAD))
    block.wait_for(State.FAILED, sequence=block.command(Verb.RUN, gpus=2))
    trainer.join(PATIENCE_SECONDS)
    assert isinstance(trainer.error, gandiva.RestoreError)
    assert "cannot go on with 2 GPUs: ValueError('three parts, 2 GPUs')" in str(trainer.error)


def test_the_batch_of_a_rank_or_of_all_is_kept() -> None:
    kept = gandiva.Batch(per_rank=32)
    assert [(kept.of_rank(n), kept.of_all(n)) for n in (1, 2, 4)] == [(32, 32), (32, 64), (32, 128)]
    kept = gandiva.Batch(overall=32)
    assert [(kept.of_rank(n), kept.of_all(n)) for n in (1, 2, 4)] == [(32, 32), (16, 32), (8, 32)]
    assert [kept.of_rank(3, rank) for rank in range(3)] == [11, 11, 10]
    for wrong in ({}, {"per_rank": 1, "overall": 1}, {"per_rank": -1}, {"per_rank": -1, "overall": 2}):
        with pytest.raises(ValueError, match="either per_rank or overall"):
            gandiva.Batch(**wrong)
    with pytest.raises(ValueError, match="too few for 64 ranks"):
        kept.of_rank(64)
    with pytest.raises(ValueError, match="rank 4 of 4"):
        kept.of_rank(4, 4)
