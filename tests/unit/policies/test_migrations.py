# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard of all migrations: what they cost as measured, how long a gain counts, how many at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.model import Costs, JobId, Placement, Snapshot, Usage
from controller.policies.mechanisms.gang_lanes import GangLanes
from controller.policies.moves.migrations import NAME, Migrations
from controller.policies.orders.simple import Fifo
from controller.policies.placement.consolidation import Consolidation
from controller.policies.placement.draft import Draft
from controller.policies.settings import MigrationSettings
from tests.unit.policies.ideal import gpu_set, make_job, make_node, running, suspended

MEASURED = Costs(checkpoint_seconds=3.0, start_seconds=2.0, load_seconds=5.0)
HERE = gpu_set("n1:0", "n1:1")
NOW = 1000.0


def guard(
    costs: dict[str, Costs] | None = None, *, remembered: Any = None, changes: Any = (), **settings: Any
) -> tuple[Migrations, Draft, Snapshot]:
    """One job of two GPUs, of the model m."""
    job = replace(running(make_job(1, 2, 400.0, model="m", may_migrate=True), HERE), **dict(changes))
    nodes = {"n1": make_node("n1", 4)}
    usage = {job.id: Usage(since=NOW - 100.0, gpus=2)}
    snapshot = Snapshot(time=NOW, nodes=nodes, jobs={job.id: job}, usage=usage, costs=costs or {})
    lanes = GangLanes(Fifo(), Consolidation())
    lanes.reset(snapshot, {}, {})
    draft = Draft(lanes).begin({NAME: remembered})
    draft.hold(job.id, job.placement)
    return Migrations(snapshot, draft, MigrationSettings(**settings)), draft, snapshot


@pytest.mark.parametrize(
    ("costs", "seconds"),
    [
        ({}, 60.0),
        ({"m": MEASURED}, 10.0),
        ({"": MEASURED}, 10.0),
        ({"": MEASURED, "m": Costs(load_seconds=95.0)}, 100.0),
        ({"m": replace(MEASURED, load_seconds=None)}, 60.0),
        ({"m": replace(MEASURED, start_seconds=None), "": Costs(start_seconds=4.0)}, 12.0),
        ({"other": MEASURED}, 60.0),
    ],
)
def test_the_cost_is_what_was_measured_and_the_setting_until_then(
    costs: dict[str, Costs], seconds: float
) -> None:
    migrations, _, snapshot = guard(costs)
    jobs = list(snapshot.jobs.values())
    assert migrations.pays(3 * 2 * seconds + 0.1, jobs)
    assert not migrations.pays(3 * 2 * seconds, jobs)


def test_a_gain_counts_until_the_job_ends_and_no_longer_than_the_horizon() -> None:
    migrations, _, snapshot = guard()
    assert migrations.remaining_seconds(snapshot.jobs[JobId(1)]) == 300.0, "400 s declared, 100 s ran"
    migrations, _, snapshot = guard(horizon_seconds=50.0)
    assert migrations.remaining_seconds(snapshot.jobs[JobId(1)]) == 50.0


@pytest.mark.parametrize(
    ("changes", "remembered", "may"),
    [
        ({}, None, True),
        ({}, {"1": NOW - 600.0}, True),
        ({}, {"1": NOW - 599.0}, False),
        ({}, {"2": NOW - 1.0}, True),
        ({}, {"1": NOW + 1e6}, False),
        ({}, ["damaged"], True),
        ({}, {"one": "x"}, True),
        ({"may_migrate": False}, None, False),
        ({"may_stop": False}, None, False),
        ({"switching": True}, None, False),
    ],
)
def test_who_may_go(changes: dict[str, Any], remembered: Any, may: bool) -> None:
    migrations, draft, snapshot = guard(remembered=remembered, changes=changes)
    assert migrations.may_go(snapshot.jobs[JobId(1)]) is may
    if may or changes:
        assert draft.wake_at == float("inf")
    elif remembered["1"] < NOW:
        assert draft.wake_at == NOW + 1.0, "the plan is made again when the cool-down is over"


def test_after_a_clock_that_was_set_back_a_job_cools_down_once() -> None:
    migrations, draft, snapshot = guard(remembered={"1": NOW + 1e6})
    assert not migrations.may_go(snapshot.jobs[JobId(1)]) and draft.wake_at == NOW + 600.0
    migrations.save()
    assert draft.remembered[NAME] == {"1": NOW}


def test_those_on_their_way_count() -> None:
    """However long their way is."""
    assert guard(most_at_once=2, remembered={"1": NOW})[0].left == 2, "it has arrived"
    promised = {"promised": gpu_set("n1:2", "n1:3")}
    for at in (NOW, NOW - 1e4):
        migrations, draft, _ = guard(most_at_once=2, remembered={"1": at}, changes=promised)
        assert migrations.left == 1
        migrations.save()
        assert draft.remembered[NAME] == {"1": at}, "still on its way at the next plan"


def test_a_job_on_trial_does_not_go() -> None:
    _, draft, snapshot = guard()
    draft.remembered["trials"] = {"open": [["grow", "what", [1], [1.0], NOW, 0.0, False]], "judged": {}}
    migrations = Migrations(snapshot, draft, MigrationSettings())
    assert not migrations.may_go(snapshot.jobs[JobId(1)])


def test_what_was_remembered_is_read_again() -> None:
    migrations, draft, _ = guard(remembered={"7": NOW - 1e4, "8": NOW - 1.0})
    migrations.go("test", JobId(1), gpu_set("n1:2", "n1:3"), "there is room")
    migrations.save()
    assert draft.remembered[NAME] == {"1": NOW, "8": NOW - 1.0}
    assert migrations.left == 3
    assert draft.said[JobId(1)] == "continues on n1: there is room"


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"may_migrate": False}, False),
        ({"may_start": False}, False),
        ({"switching": True}, False),
    ],
)
def test_which_suspended_jobs_may_go(changes: dict[str, Any], may: bool) -> None:
    """Some lanes count what it is bound to, others do not."""
    off = {**vars_of(suspended(make_job(1, 2, may_migrate=True), HERE)), **changes}
    migrations, draft, snapshot = guard(changes=off)
    assert migrations.may_go(snapshot.jobs[JobId(1)]) is may
    draft._placements.pop(JobId(1))
    assert migrations.may_go(snapshot.jobs[JobId(1)]) is may


def vars_of(job: Any) -> dict[str, Any]:
    return {name: getattr(job, name) for name in ("phase", "placement", "last", "may_start", "may_stop")}


@pytest.mark.parametrize("planned", [Placement(HERE, HERE), Placement(frozenset(), gpu_set("n1:2", "n1:3"))])
def test_a_suspended_job_that_the_plan_starts_or_promises_gpus_does_not_go(planned: Placement) -> None:
    migrations, draft, snapshot = guard(changes=vars_of(suspended(make_job(1, 2), HERE)))
    draft._placements[JobId(1)] = planned
    assert not migrations.may_go(snapshot.jobs[JobId(1)])
