# SPDX-License-Identifier: GPL-2.0-or-later
"""`JournalPort`: whatever is recorded, the file and the memory say the same of it."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.journal import Journal, JournalPort, JournalReader, MemoryJournal
from controller.journal.records import JobRecord
from controller.model import GpuId, JobId, Reason, Usage, Why
from tests.unit.draws import draws

JOBS = (JobId(1), JobId(2))
POLICIES = ("gandiva", "fifo")
KEYS = ("policy:gandiva", "uptime")

jobs = st.sampled_from(JOBS)
times = st.integers(0, 40).map(lambda half: 1000 + half / 2)
"""In any order: a clock may be set back."""
gpus = st.sampled_from([frozenset({GpuId("n1", 0)}), frozenset({GpuId("n10", 1), GpuId("n2", 3)})])
words = st.sampled_from(["", "its slice is over", "a GPU is free", "Größe '\N{GREEK SMALL LETTER MU}'"])
whys = st.builds(Why, st.sampled_from([Reason.TURN_OVER, Reason.ITS_TURN]), words)
numbers = st.integers(1, 5)
kinds = st.sampled_from(["place", "suspend"])
json_values = st.sampled_from([None, True, 3, 0.1, 1e300, "é", [1, ["n1", 2.5]], {"turn": {"1": None}}, ()])
notes = st.sampled_from([None, (), (3, 0.1, "n1", None), (True,)])
maybe = st.sampled_from([None, 0, 1, 7])
usages = st.sampled_from(
    [
        Usage(),
        Usage(seconds=5.0, gpu_seconds=10.0, waited_seconds=7.0, idle_since=1004.0),
        Usage(seconds=5.0, gpu_seconds=10.0, waited_seconds=7.0, since=1004.0, gpus=2),
    ]
)
records = st.builds(
    JobRecord,
    id=jobs,
    user=words,
    gpus=numbers,
    submit_time=times,
    name=words,
    account=words,
    partition=words,
    start_time=st.none() | times,
    end_time=st.none() | st.none() | times,
    state=st.sampled_from(["PENDING", "RUNNING", "SUSPENDED"]),
    moves=numbers,
    suspends=numbers,
    step_seconds=maybe,
    exit_code=maybe,
    peak_memory_bytes=maybe,
    utilization_fraction=maybe,
)
calls: st.SearchStrategy[tuple[Any, ...]] = st.one_of(
    st.tuples(st.just("open_slice"), jobs, gpus, times),
    st.tuples(st.just("close_slice"), jobs, times, words),
    st.tuples(st.just("upsert_job"), records),
    st.tuples(st.just("record_decision"), times, jobs, kinds, words | whys, gpus),
    st.tuples(
        st.just("record_event"), times, st.none() | jobs, st.none() | words, kinds, words, st.none() | times
    ),
    st.tuples(st.just("begin_operation"), numbers, jobs, kinds, times, gpus, words),
    st.tuples(st.just("step_operation"), numbers, words, times),
    st.tuples(st.just("end_operation"), numbers, words, times, words),
    st.tuples(st.just("save_state"), st.sampled_from(KEYS), json_values),
    st.tuples(st.just("save_note"), st.sampled_from(POLICIES), jobs, notes),
    st.tuples(st.just("heartbeat"), times),
    st.tuples(st.just("carry_over"), jobs, usages, times),
    st.tuples(st.just("begin_again"), jobs),
    st.tuples(st.just("end_gone"), st.frozensets(jobs), times),
    st.tuples(st.just("close_open_slices"), times),
    st.tuples(st.just("commit")),
)
READS: tuple[tuple[Any, ...], ...] = (
    ("totals",),
    ("last_heartbeat",),
    ("open_operations",),
    ("open_places",),
    ("suspended",),
    ("submissions", [*JOBS, JobId(99)]),
    *(("notes", policy) for policy in POLICIES),
    *(("load_state", key) for key in (*KEYS, "unknown")),
)


def same_answer(file: Journal, memory: MemoryJournal, call: str, *arguments: Any) -> None:
    first, second = (getattr(journal, call)(*arguments) for journal in (file, memory))
    assert first == second, f"{call}{arguments}"


def same_records(file: Journal, memory: MemoryJournal) -> None:
    """What reports read is what a simulation reads."""
    reader = JournalReader(file.path)
    assert {row.record.id: row.record for row in reader.jobs()} == memory.jobs
    assert reader.events() == memory.events
    for job_id in JOBS:
        assert reader.decisions(job_id) == [d for d in memory.decisions if d.job_id == job_id]
        closed = [piece for piece in reader.slices(job_id) if piece.end is not None]
        of_job = [piece for piece in memory.slices if piece.job_id == job_id]
        assert sorted(closed, key=str) == sorted(of_job, key=str)
    with closing(sqlite3.connect(file.path)) as connection:
        rows = connection.execute(
            "SELECT op_id, job_id, kind, begin, step, step_time, end, coalesce(outcome, ''), error "
            "FROM operations"
        ).fetchall()
    assert sorted(rows) == sorted(
        (o.op_id, o.job_id, o.kind, o.begin, o.step, o.step_time, o.end, o.outcome, o.error)
        for o in memory.operations.values()
    )


class TestTheFileAndTheMemorySayTheSame:
    @settings(max_examples=draws(20, 600))
    @given(st.lists(calls, min_size=10, max_size=60))
    def test_whatever_was_recorded(self, recorded: list[tuple[Any, ...]]) -> None:
        memory = MemoryJournal()
        with (
            tempfile.TemporaryDirectory() as folder,
            Journal(Path(folder) / "journal.sqlite", retention_days=1e6, detail_days=1e6) as file,
        ):
            for call in recorded:
                same_answer(file, memory, *call)
            for call in READS:
                same_answer(file, memory, *call)
            same_answer(file, memory, "new_operation_id")
            same_records(file, memory)


# -- each of the two -------------------------------------------------------------------------------------


@pytest.fixture(params=["file", "memory"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalPort]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    with Journal(tmp_path / "journal.sqlite") as file:
        yield file


ONE = JobId(1)
A0 = frozenset({GpuId("n1", 0)})


def record(**changes: Any) -> JobRecord:
    return JobRecord(**{"id": ONE, "user": "alice", "gpus": 1, "submit_time": 100.0, **changes})


def test_waiting_is_time_between_slices_and_since_the_last_one(journal: JournalPort) -> None:
    journal.upsert_job(record())
    journal.heartbeat(105.0)
    assert journal.totals()[ONE].waited_seconds == 0, "before its first start it queues"
    journal.open_slice(ONE, A0, 110.0)
    journal.close_slice(ONE, 120.0, "its slice is over")
    journal.open_slice(ONE, A0, 150.0)
    assert journal.totals()[ONE].waited_seconds == 30
    journal.close_slice(ONE, 160.0, "its slice is over")
    journal.heartbeat(165.0)
    assert journal.totals()[ONE].waited_seconds == 35
    journal.open_slice(ONE, A0, 170.0)
    assert journal.totals()[ONE].waited_seconds == 40


def test_a_job_that_goes_on_elsewhere_has_not_waited(journal: JournalPort) -> None:
    journal.open_slice(ONE, A0, 110.0)
    journal.open_slice(ONE, frozenset({GpuId("n2", 0)}), 150.0)
    journal.close_slice(ONE, 160.0, "job ended")
    totals = journal.totals()[ONE]
    assert (totals.run_seconds, totals.waited_seconds, totals.slices) == (50, 0, 2)


def test_what_waits_for_a_slice_in_a_new_file_is_carried_over(journal: JournalPort) -> None:
    waits = Usage(seconds=50.0, gpu_seconds=100.0, waited_seconds=7.0, idle_since=190.0)
    runs = Usage(seconds=50.0, gpu_seconds=100.0, waited_seconds=7.0, since=190.0, gpus=2)
    for job_id, usage in ((ONE, waits), (JobId(2), runs), (JobId(3), Usage())):
        journal.carry_over(job_id, usage, 200.0)
    journal.open_slice(JobId(2), A0, 200.0)
    journal.open_slice(ONE, A0, 220.0)
    totals = journal.totals()
    assert [totals[JobId(number)].waited_seconds for number in (1, 2, 3)] == [7 + 10 + 20, 7, 0]
    assert [totals[JobId(number)].run_seconds for number in (1, 2, 3)] == [50, 60, 0]
    assert [totals[JobId(number)].slices for number in (1, 2, 3)] == [1, 1, 0]


def test_notes_are_of_one_policy_and_of_jobs_that_live(journal: JournalPort) -> None:
    journal.upsert_job(record())
    journal.save_note("gandiva", ONE, (3, 2.5, "n1", None))
    journal.save_note("gandiva", JobId(2), (1,))
    journal.save_note("fifo", ONE, (4,))
    assert journal.notes("gandiva") == {ONE: (3, 2.5, "n1", None), JobId(2): (1,)}
    journal.save_note("gandiva", JobId(2), None)
    journal.save_note("gandiva", JobId(3), None)
    assert journal.notes("gandiva") == {ONE: (3, 2.5, "n1", None)}
    journal.upsert_job(record(end_time=200.0, state="COMPLETED"))
    assert journal.notes("gandiva") == {}


@pytest.mark.parametrize("value", [{1, 2}, A0, object()])
def test_what_is_not_json_is_refused_at_once(journal: JournalPort, value: object) -> None:
    with pytest.raises(TypeError):
        journal.save_state("policy:own", {"set": value})
    with pytest.raises(TypeError):
        journal.save_note("own", ONE, (value,))


def test_later_changes_of_a_saved_value_are_not_saved(journal: JournalPort) -> None:
    value = {"turn": [1]}
    journal.save_state("policy:own", value)
    value["turn"].append(2)
    journal.load_state("policy:own")["turn"].append(3)
    assert journal.load_state("policy:own") == {"turn": [1]}
