# SPDX-License-Identifier: GPL-2.0-or-later
"""How long GPUs are promised to a job that a plan sends elsewhere."""

from __future__ import annotations

from dataclasses import replace

from controller.journal.memory import MemoryJournal
from controller.loop.state_store import StateStore
from controller.model import Job, JobId, Phase, Placement, StateAt, Target
from controller.observe.measured import Measured
from controller.observe.memory import JobMemories
from tests.unit.policies.ideal import gpu_set, make_job, running

HERE, THERE = gpu_set("n1:0"), gpu_set("n2:0")
MIGRATES = {JobId(1): Target(Placement(THERE, THERE), StateAt.STORE)}


def promised(job: Job) -> bool:
    """After a plan that does not want the job elsewhere, as the one before did."""
    memory = JobMemories()
    keeping = StateStore(MemoryJournal(), memory, Measured({}, {}, {}, {}))
    keeping.take(MIGRATES, {job.id: running(make_job(1), HERE)})
    assert memory.of(job.id).promised == THERE
    keeping.take({}, {job.id: job})
    return bool(memory.of(job.id).promised)


def test_a_job_that_stayed_where_it_was_has_no_promise() -> None:
    """Its migration has failed. Requeued by its owner, it would wait for GPUs that others have now."""
    assert not promised(running(make_job(1), HERE))


def test_a_job_on_its_way_keeps_the_promise() -> None:
    there = running(make_job(1), HERE)
    assert promised(replace(there, switching=True)) and promised(replace(there, leaving=True))


def test_a_job_that_waits_for_them_keeps_the_promise() -> None:
    assert promised(replace(make_job(1), phase=Phase.QUEUED))
