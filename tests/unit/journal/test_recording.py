# SPDX-License-Identifier: GPL-2.0-or-later
"""What the executor records, in the journal's words."""

from __future__ import annotations

from controller.act.actions import Resume, Suspend
from controller.act.recorder import Outcome, Recorder, Step
from controller.journal import MemoryJournal
from controller.journal.records import Decision, Event, Slice
from controller.model import GpuId, JobId

ONE = JobId(1)
A0 = frozenset({GpuId("n1", 0)})


def test_operations_are_written_step_by_step() -> None:
    journal = MemoryJournal()
    recorder = Recorder(journal)
    number = recorder.operation_begins(Suspend(ONE, "its slice is over"), A0, 10.0)
    recorder.operation_step(number, Step.PAUSE, 11.0)
    (found,) = journal.open_operations()
    assert (found.job_id, found.kind, found.begin, found.step) == (ONE, "suspend", 10.0, "pause")
    recorder.operation_ends(number, Outcome.FAILED, "rank 1 did not stop", 12.0)
    assert journal.open_operations() == []
    rows = journal.read("SELECT detail, end, outcome, error FROM operations WHERE op_id = ?", number)
    detail = '{"gpus": ["n1:0"], "reason": "its slice is over"}'
    assert rows == [(detail, 12.0, "failed", "rank 1 did not stop")]


def test_an_operation_is_a_decision() -> None:
    journal = MemoryJournal()
    recorder = Recorder(journal)
    first = recorder.operation_begins(Suspend(ONE, "its slice is over"), A0, 10.0)
    recorder.operation_ends(first, Outcome.FAILED, "no answer", 12.0)
    second = recorder.operation_begins(Suspend(ONE, "its slice is over"), A0, 13.0)
    third = recorder.operation_begins(Resume(ONE, "a GPU is free", A0), A0, 14.0)
    assert first < second < third
    assert journal.decisions == [
        Decision(10.0, ONE, "suspend", "its slice is over", A0),
        Decision(14.0, ONE, "resume", "a GPU is free", A0),
    ]


def test_slices_and_events() -> None:
    journal = MemoryJournal()
    recorder = Recorder(journal)
    recorder.slice_begins(ONE, A0, 10.0)
    recorder.slice_ends(ONE, "job ended", 15.0)
    recorder.event("trouble", "Slurm cannot be observed", 16.0)
    recorder.event("id-reused", "is another job", 17.0, ONE)
    assert journal.slices == [Slice(ONE, A0, 10.0, 15.0, "job ended")]
    assert journal.events == [
        Event(16.0, None, None, "trouble", "Slurm cannot be observed"),
        Event(17.0, ONE, None, "id-reused", "is another job"),
    ]
