# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever policies read of a job, a difference in it is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.model import GpuId, Job, JobId, Phase, Request
from controller.policies.differences import as_before
from controller.policies.gangs.member import WAITING, Member
from controller.policies.gangs.untold import differing

JOB = Job(JobId(1), "alice", Request(1), Phase.SUSPENDED, 5.0)
OTHER: dict[str, Any] = {
    "phase": Phase.QUEUED,
    "request": Request(2),
    "submit_time": 6.0,
    "binding": frozenset({GpuId("n1", 0)}),
    "running_on": frozenset({GpuId("n1", 0)}),
    "not_before": 7.0,
    "movable": True,
    "suspendable": False,
    "priority_class": 3,
    "memory_per_node_bytes": 4,
    "cpus_per_node": 5,
    "excluded_nodes": frozenset({"n1"}),
    "required_nodes": frozenset({"n1"}),
    "run_seconds": 8.0,
}


def found(now: Job) -> set[JobId]:
    """Of a cluster with this job, which was `JOB` before."""
    member: Member[None] = Member(JOB, None, standing=WAITING)
    return differing(
        {now.id: now},
        {JOB.id: member},
        100.0,
        profiled=lambda _: None,
        first_seen=lambda _: False,
        reshaped=lambda _: False,
        reshapes=False,
    )


@pytest.mark.parametrize("field", OTHER)
def test_one_field_that_differs_is_found(field: str) -> None:
    assert found(replace(JOB, **{field: OTHER[field]})) == {JOB.id}


def test_the_same_job_made_anew_is_not() -> None:
    assert found(replace(JOB)) == set()
    assert found(replace(JOB, name="another", start_time=4.0)) == set()


def test_these_are_all_fields_that_are_compared() -> None:
    compared = set(as_before.__code__.co_names) & set(Job.__slots__)
    assert compared == set(OTHER) - {"run_seconds"}
