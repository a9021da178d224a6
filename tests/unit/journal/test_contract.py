# SPDX-License-Identifier: GPL-2.0-or-later
"""What both journals do, the file and the memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.journal import Journal, MemoryJournal
from controller.journal.records import JobRecord
from controller.model import GpuId, JobId, Usage


@pytest.fixture(params=["file", "memory"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    with Journal(tmp_path / "journal.sqlite") as file:
        yield file


ONE = JobId(1)
A0 = frozenset({GpuId("n1", 0)})


def record(**changes: Any) -> JobRecord:
    return JobRecord(**{"id": ONE, "user": "alice", "gpus": 1, "submit_time": 100.0, **changes})


def test_waiting_is_time_between_slices_and_since_the_last_one(journal: Journal) -> None:
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


def test_a_job_that_goes_on_elsewhere_has_not_waited(journal: Journal) -> None:
    journal.open_slice(ONE, A0, 110.0)
    journal.open_slice(ONE, frozenset({GpuId("n2", 0)}), 150.0)
    journal.close_slice(ONE, 160.0, "job ended")
    totals = journal.totals()[ONE]
    assert (totals.run_seconds, totals.waited_seconds, totals.slices) == (50, 0, 2)


def test_what_waits_for_a_slice_in_a_new_file_is_carried_over(journal: Journal) -> None:
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


def test_notes_are_of_one_policy_and_of_jobs_that_live(journal: Journal) -> None:
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
def test_what_is_not_json_is_refused_at_once(journal: Journal, value: object) -> None:
    with pytest.raises(TypeError):
        journal.save_state("policy:own", {"set": value})
    with pytest.raises(TypeError):
        journal.save_note("own", ONE, (value,))


def test_later_changes_of_a_saved_value_are_not_saved(journal: Journal) -> None:
    value = {"turn": [1]}
    journal.save_state("policy:own", value)
    value["turn"].append(2)
    journal.load_state("policy:own")["turn"].append(3)
    assert journal.load_state("policy:own") == {"turn": [1]}
