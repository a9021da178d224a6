# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever a user puts into `ranks/`, the agent survives and believes none of it."""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.agent.identity import SlurmJobs
from controller.agent.processes import Processes, ProcessId
from controller.agent.rank_files import (
    GLANCE_SECONDS,
    PATIENCE_SECONDS,
    BadRankFile,
    Ranks,
    check_record,
    read_ranks,
)
from controller.nodes import protocol
from controller.nodes.protocol import MAX_RANKS, MAX_STEP, RankState
from gandiva import layout
from tests.unit.draws import WITH_FIXTURES, draws

JOB = 12


class ThisProcess(Processes):
    """A process table with one process, ours, in job 12."""

    def __init__(self, uid: int | None = None, job: int | None = JOB) -> None:
        super().__init__(SlurmJobs("n1", lambda _: None))
        self._its_uid = os.getuid() if uid is None else uid
        self._its_job = job

    def alive(self, process: ProcessId) -> bool:
        return process == ProcessId(os.getpid(), 555)

    def uid(self, pid: int) -> int | None:
        return self._its_uid

    def job_of(self, pid: int) -> int | None:
        return self._its_job


def record(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "magic": b"GNDR",
        "version": 1,
        "state": 0,
        "sequence": 8,
        "answered": 2,
        "steps": 10,
        "samples": 320.0,
        "step_seconds": 0.25,
        "left": 0,
        "offload_seconds": 0.1,
        "pid": os.getpid(),
        "world": 1000,
        "start": 555,
        "state_bytes": 5,
        "largest": 4,
        "flags": 0,
        "error": b"",
        "host": 0,
        "saved_step": 0,
        "saved_generation": 0,
    }
    assert set(changes) <= set(fields)
    fields.update(changes)
    return layout.RANK.pack(*fields.values()).ljust(layout.RECORD_BYTES, b"\0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "ranks"
    made.mkdir()
    return made


def read(folder: Path, processes: Processes | None = None, uid: int | None = None) -> Ranks:
    return read_ranks(
        folder,
        os.getuid() if uid is None else uid,
        JOB,
        ThisProcess() if processes is None else processes,
    )


def test_a_good_file_is_read(folder: Path) -> None:
    (folder / "3").write_bytes(record(state=4, flags=1, error="kaputt ä".encode()))
    found = read(folder)
    assert found.problems == ()
    (rank,) = found.live
    assert (rank.rank, rank.state, rank.steps_done, rank.samples_done) == (3, RankState.FAILED, 10, 320.0)
    assert (rank.releases_context, rank.error, rank.world_size) == (True, "kaputt ä", 1000)
    assert found.pids == {os.getpid()}


def test_the_host_memory_that_a_session_needs_is_read_where_it_says_it(folder: Path) -> None:
    for number, (flags, host) in enumerate([(0, 9), (2, 9), (2, 2**64 - 1), (2, 2**64 - 2)]):
        (folder / str(number)).write_bytes(record(flags=flags, host=host))
    found = read(folder)
    assert [(rank.states_host_bytes, rank.host_bytes) for rank in found.live] == [
        (False, None),  # an older release: whatever stands there
        (True, 9),
        (True, None),  # not measured yet
    ]
    assert [problem.partition(" is ")[0] for problem in found.problems] == ["rank 3: host bytes"]


def test_what_a_session_has_saved_is_read_where_it_has_a_store(folder: Path) -> None:
    for number, (flags, step, generation) in enumerate([(0, 9, 2**64 - 1), (4, 9, 3), (4, 2**60, 3)]):
        saved = {"saved_step": step, "saved_generation": generation}
        (folder / str(number)).write_bytes(record(flags=flags, **saved))
    found = read(folder)
    assert [(rank.has_store, rank.saved_step, rank.saved_generation) for rank in found.live] == [
        (False, 0, 0),  # without one whatever stands there
        (True, 9, 3),
    ]
    assert [problem.partition(" is ")[0] for problem in found.problems] == ["rank 2: saved step"]


def test_what_is_no_regular_file_of_the_users_is_refused(folder: Path, tmp_path: Path) -> None:
    good = record()
    (tmp_path / "elsewhere").write_bytes(good)
    (folder / "0").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "1")
    (folder / "2").mkdir()
    (folder / "3").hardlink_to(tmp_path / "elsewhere")
    (folder / "4").write_bytes(good[:-1])
    with (folder / "5").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with (folder / "6").open("wb") as empty:
        empty.truncate(layout.RECORD_BYTES)
    (folder / "7").symlink_to(folder / "7")
    (folder / "8").write_bytes(good)
    found = read(folder)
    assert [rank.rank for rank in found.live] == [8]
    complaints = dict(problem.split(": ", 1) for problem in found.problems)
    assert "symbolic links" in complaints["rank 0"]
    assert complaints["rank 1"] == "not a regular file"
    assert complaints["rank 2"] == "not a regular file"
    assert complaints["rank 3"] == "has a second name"
    assert complaints["rank 4"] == "size is 4095, not 4096"
    assert complaints["rank 5"] == f"size is {1 << 40}, not 4096"
    assert complaints["rank 6"] == "not a rank file"
    assert "symbolic links" in complaints["rank 7"]


def test_a_file_of_somebody_else_is_refused(folder: Path) -> None:
    (folder / "0").write_bytes(record())
    (problem,) = read(folder, uid=os.getuid() + 1).problems
    assert f"owner is {os.getuid()}, the job's user is {os.getuid() + 1}" in problem


def test_a_folder_that_is_a_link_or_missing_is_no_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "0").write_bytes(record())
    (tmp_path / "link").symlink_to(folder)
    assert read(tmp_path / "link").live == ()
    assert read(tmp_path / "nothing") == Ranks()


@pytest.mark.parametrize(
    ("processes", "complaint"),
    [
        (ThisProcess(uid=4711), "not the job's user's"),
        (ThisProcess(job=13), "not in job 12"),
        (ThisProcess(job=None), "not in job 12"),
    ],
)
def test_a_rank_that_names_a_process_of_somebody_else_is_refused(
    folder: Path, processes: Processes, complaint: str
) -> None:
    (folder / "0").write_bytes(record())
    found = read(folder, processes)
    assert found.live == ()
    assert complaint in found.problems[0]


def test_a_pid_that_was_used_again_is_not_the_session(folder: Path) -> None:
    (folder / "0").write_bytes(record(start=556))
    (folder / "1").write_bytes(record(pid=0))
    assert [problem.partition(": ")[2] for problem in read(folder).problems] == [
        f"its process {os.getpid()} has ended",
        "its process 0 has ended",
    ]
    # One that had finished before is not worth a word.
    (folder / "0").write_bytes(record(start=556, state=5))
    assert len(read(folder).problems) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"state": 6}, "state is 6, allowed are 0 to 5"),
        ({"steps": 2**63}, "steps_done"),
        ({"samples": float("nan")}, "samples_done is nan"),
        ({"samples": -1.0}, "samples_done"),
        ({"step_seconds": float("inf")}, "step seconds"),
        ({"step_seconds": 1e9}, "step seconds"),
        ({"left": 2**60}, "bytes left"),
        ({"pid": 2**31}, "pid"),
        ({"world": 0}, "world size is 0, allowed are 8 to"),
        ({"world": 7}, "world size"),
        ({"world": 2**31}, "world size"),
        ({"state_bytes": 2**60}, "state bytes"),
        ({"largest": 2**60}, "largest tensor bytes"),
        ({"flags": 4, "saved_generation": 2**60}, "saved generation"),
        ({"version": 2}, "another version"),
        ({"sequence": 9}, "being written all the time"),
        ({"magic": b"GNDC"}, "not a rank file"),
    ],
)
def test_values_out_of_range_are_refused_by_name(
    folder: Path, change: dict[str, object], complaint: str
) -> None:
    (folder / "7").write_bytes(record(**change))
    found = read(folder)
    assert found.live == ()
    assert complaint in found.problems[0]


def test_errors_are_made_printable(folder: Path) -> None:
    (folder / "0").write_bytes(record(error=b"a\nb\x1b[31m\xff\0hidden"))
    assert read(folder).live[0].error == "a?b?[31m\ufffd"


def test_a_flood_of_names_is_bounded(folder: Path) -> None:
    good = record()
    for number in range(MAX_RANKS + 50):
        (folder / str(number)).write_bytes(good)
    for name in ("00", "-1", "1x", "999999", "..1", " 3"):
        (folder / name).write_bytes(good)
    assert [rank.rank for rank in read(folder).live] == list(range(MAX_RANKS))


def test_a_writer_that_lost_its_core_is_waited_for_at_a_switch_only(folder: Path) -> None:
    path = folder / "0"
    path.write_bytes(record(sequence=9))
    glance = read(folder)
    assert glance.live == () and "being written" in glance.problems[0]

    def go_on() -> None:
        with path.open("r+b") as file:  # (as sessions do: the file keeps its size)
            file.write(record(sequence=10))

    going_on = threading.Timer(0.1, go_on)
    going_on.start()
    found = read_ranks(folder, os.getuid(), JOB, ThisProcess(), PATIENCE_SECONDS)
    going_on.join()
    assert len(found.live) == 1, found.problems


def test_a_flood_of_torn_files_is_waited_for_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_RANKS):
        (folder / str(number)).write_bytes(record(sequence=9))
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(slept))
    assert len(read(folder).problems) == MAX_RANKS
    assert sum(slept) == pytest.approx(GLANCE_SECONDS, abs=0.0011)


def test_a_writer_in_a_hurry_is_read_consistently(folder: Path) -> None:
    path = folder / "0"
    path.write_bytes(record())
    stop = threading.Event()

    def write() -> None:
        sequence = 0
        with path.open("r+b", buffering=0) as file:
            while not stop.is_set():
                sequence += 2
                os.pwrite(file.fileno(), struct.pack("<Q", sequence - 1), 8)
                # Two fields that always agree in a consistent copy.
                os.pwrite(file.fileno(), struct.pack("<QQ", sequence, sequence), 80)
                os.pwrite(file.fileno(), struct.pack("<Q", sequence), 8)
                time.sleep(0.0002)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = 0
        until = time.monotonic() + 60
        while seen < 50:
            assert time.monotonic() < until, "never read a consistent copy"
            for rank in read(folder).live:
                if rank.state_bytes != 5:
                    assert rank.state_bytes == rank.largest_tensor_bytes
                    seen += 1
    finally:
        stop.set()
        writer.join()


@settings(max_examples=draws(100, 3000), suppress_health_check=WITH_FIXTURES)
@given(junk=st.binary(min_size=0, max_size=200), good_head=st.booleans())
def test_junk_never_raises_and_never_passes_unchecked(folder: Path, junk: bytes, good_head: bool) -> None:
    data = (b"GNDR\x01\x00" + junk if good_head else junk).ljust(layout.RECORD_BYTES, b"\0")
    (folder / "0").write_bytes(data[: layout.RECORD_BYTES])
    for rank in read(folder).live:
        assert 0 <= rank.steps_done <= MAX_STEP
        assert rank.rank < rank.world_size


@settings(max_examples=draws(100, 3000))
@given(
    state=st.integers(0, 2**16 - 1),
    steps=st.integers(0, 2**64 - 1),
    samples=st.floats(),
    step_seconds=st.floats(),
    world=st.integers(0, 2**32 - 1),
    pid=st.integers(0, 2**32 - 1),
    state_bytes=st.integers(0, 2**64 - 1),
    error=st.binary(max_size=60),
)
def test_a_record_is_either_refused_or_fits_the_wire(**fields: object) -> None:
    parsed = layout.parse_rank(record(**fields))
    assert parsed is not None
    try:
        rank = check_record(0, parsed)
    except BadRankFile:
        return
    wire = protocol.result_as_json(protocol.Pause(0, True, (rank,)))
    (read,) = protocol.read_result(protocol.Pause, wire).ranks  # every bound of the protocol holds
    assert (read.rank, read.steps_done, read.error) == (rank.rank, rank.steps_done, rank.error)
