# SPDX-License-Identifier: GPL-2.0-or-later
"""What the frame says of jobs, whatever the mechanism."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.model import JobId, Snapshot
from controller.policies import budget
from controller.policies.mechanisms.rounds.given import NO_TERMS, make_given
from controller.policies.mechanisms.rounds.member import Member
from tests.unit.policies.ideal import Ideal, cluster, make_job
from tests.unit.policies.presets import preset


def test_what_a_lane_says_stays_where_more_jobs_change_than_are_told_of_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def said(at_once: int) -> list[str]:
        monkeypatch.setattr(budget, "WORDS", budget.LOOKS // at_once)
        jobs = [make_job(n, 1, 1e6) for n in range(1, 20)]
        made = preset("gandiva", slice_seconds=20.0, max_jobs_per_gpu=2)
        ideal = Ideal(made, cluster(1, 2), jobs, bound=True)
        ideal.run(until=1.0)
        return [ideal.reasons[job.id] for job in jobs]

    assert sum(words.startswith("no node has a free GPU") for words in said(1000)) == 15
    assert said(2) == said(1000)


def test_a_requeued_job_is_stated_with_its_new_arrival() -> None:
    member = Member(make_job(1))
    snapshot = Snapshot(time=600.0, nodes={}, jobs={})

    def arrival() -> float:
        (stated,) = make_given(snapshot, [member], {"v100": 1}, NO_TERMS).jobs
        return stated.arrival

    before = arrival()
    member.job = replace(member.job, submit_time=500.0)
    assert (before, arrival()) == (make_job(1).submit_time, 500.0)


def test_a_job_that_goes_on_beside_another_is_not_told_otherwise_a_plan_later() -> None:
    ideal = Ideal(preset("gavel-las"), cluster(1, 1), [make_job(1, 1, 1e6)], check=False)
    ideal.run(until=1.0)
    made = ideal.policy.policy  # type: ignore[attr-defined]
    row, to = made._rows[JobId(1)], ideal.jobs[JobId(1)].placement
    made._off_gpus.add(row.id)
    made._why(row, replace(to, shares_with=frozenset({JobId(2)})))
    assert made._why(row, None) is None
