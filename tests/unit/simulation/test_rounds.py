# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions in rounds: when a policy is asked, and what that means for jobs. Times worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from controller.errors import SettingsError
from controller.loop.loop import Cycle
from controller.model import Changes, JobId, Memory, Placement, Plan, Snapshot, Target, Usage
from controller.policies.assemble import make_policy
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from controller.simulation.rounds import InRounds
from controller.simulation.traces import TraceJob
from tests.unit.policies.ideal import make_job
from tests.unit.simulation.afresh import Afresh
from tests.unit.simulation.test_simulation import IDEAL, POLICIES, check, run, trace

ROUNDS = IDEAL + "round_seconds = 60.0\n"
FLOOR = ROUNDS + "reset_floor_seconds = 150.0\n"
"""Three rounds: the first boundary so long after another is 180 s later."""


# -- jobs -----------------------------------------------------------------------------------------------


def test_a_job_that_comes_waits_for_the_next_decision_though_gpus_are_idle() -> None:
    jobs = [TraceJob("a", 0, 1, 600, 2), TraceJob("b", 30, 1, 50, 3)]
    a, b = run(jobs, FLOOR, "fifo", "v100:2", 2).jobs
    assert (a.start_seconds, a.end_seconds) == (0, 600)
    assert (b.start_seconds, b.end_seconds) == (180, 240)
    a, b = run(jobs, ROUNDS, "fifo", "v100:2", 2).jobs
    assert (b.start_seconds, b.end_seconds) == (60, 120)


def test_a_gpu_that_becomes_free_is_idle_until_the_next_decision() -> None:
    jobs = [TraceJob("a", 0, 1, 90, 2), TraceJob("b", 0, 1, 50, 3)]
    a, b = run(jobs, FLOOR, "fifo", "v100:1", 1).jobs
    assert (a.end_seconds, b.start_seconds, b.end_seconds) == (120, 180, 240)
    a, b = run(jobs, ROUNDS, "fifo", "v100:1", 1).jobs
    assert (a.end_seconds, b.start_seconds, b.end_seconds) == (120, 120, 180)


def test_the_floor_counts_from_the_last_decision() -> None:
    jobs = [
        TraceJob("long", 0, 1, 3000, 2),
        TraceJob("a", 30, 1, 50, 3),
        # The end of `a` at 240 is decided about at 360; then nothing happens, and who comes need not wait.
        TraceJob("b", 770, 1, 50, 4),
        TraceJob("c", 800, 1, 50, 5),
    ]
    _, a, b, c = run(jobs, FLOOR, "fifo", "v100:3", 3).jobs
    assert [job.start_seconds for job in (a, b, c)] == [180, 780, 960]


def test_where_no_job_is_nothing_is_decided() -> None:
    jobs = [TraceJob("a", 70, 1, 50, 2)]
    assert run(jobs, FLOOR, "fifo", "v100:1", 1).jobs[0].start_seconds == 120


@pytest.mark.parametrize(("text", "start"), [(IDEAL, 100), (ROUNDS, 120), (FLOOR, 180)])
def test_a_timer_of_the_policy_decides_at_a_boundary(text: str, start: float) -> None:
    """`a` has had its share of the first queue after 100 s."""
    text += "[policy.tiresias]\nqueue_limits = [100.0]\ninterval_seconds = 0.0\n"
    jobs = [TraceJob("a", 0, 1, 1000, 2), TraceJob("b", 0, 1, 20, 3)]
    assert run(jobs, text, "tiresias-las", "v100:1", 1).jobs[1].start_seconds == start


@pytest.mark.parametrize("policy", [*POLICIES, "gandiva"])
@pytest.mark.parametrize("costs", [IDEAL, "[simulation]\n"])
@pytest.mark.parametrize("floor", [0, 150])
def test_every_policy_finishes_every_job_in_rounds(policy: str, costs: str, floor: float) -> None:
    jobs = trace(30, sizes=(1, 1, 2, 4))
    text = costs + f"round_seconds = 60.0\nreset_floor_seconds = {floor:.1f}\n"
    decided: list[float] = []

    def decision(cycle: Cycle) -> None:
        if cycle.snapshot.jobs:
            decided.append(cycle.snapshot.time)

    made = parse_settings(text)
    made = made.model_copy(update={"policy": made.policy.model_copy(update={"name": policy})})
    outcome = Simulation(Path("t"), jobs, parse_cluster("v100:16", 4), made, on_cycle=decision).run()
    check(outcome, jobs)
    # A look at Slurm takes 5 ms, and the event may fall into another one.
    assert all(time % 60 <= 0.01 + 1e-6 or time % 60 >= 60 - 1e-6 for time in decided)
    boundaries = sorted({round(time / 60) * 60 for time in decided})
    gaps = [b - a for a, b in pairwise(boundaries)]
    assert min(gaps) == (180 if floor else 60)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias-las", "gandiva"])
@pytest.mark.parametrize("costs", [IDEAL, "[simulation]\n"])
def test_what_the_policy_did_not_see_is_told_it(policy: str, costs: str) -> None:
    jobs = trace(40, 3, sizes=(1, 1, 2, 4))
    text = costs + "round_seconds = 60.0\nreset_floor_seconds = 150.0\n"
    told = run(jobs, text, policy)
    from_scratch = run(jobs, text, policy, wrap=lambda settings: Afresh(lambda: make_policy(settings)))
    assert told.jobs == from_scratch.jobs and told.usage == from_scratch.usage


# -- when the policy is asked ---------------------------------------------------------------------------


class Scripted:
    """Wants to be asked again when it is told to."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []
        self.wake_at = math.inf

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        self.seen.append(snapshot)
        return Plan({job_id: Target(Placement()) for job_id in snapshot.jobs}, wake_at=self.wake_at)

    @property
    def times(self) -> list[float]:
        return [snapshot.time for snapshot in self.seen]


NOTHING = Memory()


def at(time: float, *changed: int) -> Snapshot:
    told = Changes(frozenset(map(JobId, changed)), frozenset(f"n{number}" for number in changed))
    return Snapshot(time=time, nodes={}, jobs={JobId(1): make_job(1)}, changed=told)


def test_between_two_moments_jobs_stay_as_they_are() -> None:
    policy = Scripted()
    rounds = InRounds(policy, 60.0, 150.0)
    assert rounds.plan(at(120), NOTHING).targets
    assert rounds.decided
    for time in (121, 180, 299):
        again = rounds.plan(at(time), NOTHING)
        assert not rounds.decided
        assert again == Plan({}, wake_at=300)
    rounds.plan(at(300 - 1e-9), NOTHING)
    assert policy.times == [120, 300 - 1e-9]


def test_all_that_is_asked_at_one_moment_is_decided() -> None:
    policy = Scripted()
    rounds = InRounds(policy, 60.0, 150.0, late_seconds=0.01)
    for time in (0.0, 0.0, 0.005, 0.01):
        rounds.plan(at(time), NOTHING)
    rounds.plan(at(0.02), NOTHING)
    assert policy.times == [0, 0, 0.005, 0.01]


def test_a_policy_that_is_not_through_goes_on() -> None:
    policy = Scripted()
    rounds = InRounds(policy, 60.0)
    policy.wake_at = 60.0
    assert rounds.plan(at(60), NOTHING).wake_at == 60
    policy.wake_at = 60.5
    assert rounds.plan(at(60.5), NOTHING).wake_at == 60.5
    policy.wake_at = math.inf
    assert rounds.plan(at(61), NOTHING).wake_at == math.inf
    rounds.plan(at(62), NOTHING)
    assert policy.times == [60, 60.5, 61]


@pytest.mark.parametrize(
    ("floor", "wanted", "given"),
    [
        (0.0, 61.0, 120.0),
        (0.0, 120.0, 120.0),
        (0.0, 120.005, 120.0),
        (150.0, 61.0, 240.0),
        (150.0, 301.0, 360.0),
    ],
)
def test_its_own_times_are_those_of_the_next_moment(floor: float, wanted: float, given: float) -> None:
    policy = Scripted()
    policy.wake_at = wanted
    assert InRounds(policy, 60.0, floor, late_seconds=0.01).plan(at(60), NOTHING).wake_at == given


def test_what_is_due_right_after_a_look_at_a_boundary_does_not_wait_for_the_next_one() -> None:
    policy = Scripted()
    policy.wake_at = 60.005
    rounds = InRounds(policy, 60.0, late_seconds=0.01)
    assert rounds.plan(at(60), NOTHING).wake_at == 60.005
    rounds.plan(at(60.005), NOTHING)
    assert policy.times == [60, 60.005]


def test_the_policy_hears_of_all_that_changed_since_it_was_asked() -> None:
    policy = Scripted()
    rounds = InRounds(policy, 60.0)
    for snapshot in (at(0, 1), at(10, 2), at(20, 3, 4), at(60, 5), at(120, 6)):
        rounds.plan(snapshot, NOTHING)
    assert [s.changed for s in policy.seen] == [
        at(0, 1).changed,
        Changes(frozenset(map(JobId, (2, 3, 4, 5))), frozenset({"n2", "n3", "n4", "n5"})),
        at(120, 6).changed,
    ]


def test_where_everything_changed_everything_is_looked_at() -> None:
    policy = Scripted()
    rounds = InRounds(policy, 60.0)
    everything = Changes(frozenset(), frozenset(), everything=True)
    for snapshot in (at(0, 1), replace(at(10), changed=everything), at(60, 5)):
        rounds.plan(snapshot, NOTHING)
    assert policy.seen[1].changed.everything


def test_the_usage_of_jobs_that_went_meanwhile_is_there_at_the_next_decision() -> None:
    """Orders learn from it."""
    policy = Scripted()
    rounds = InRounds(policy, 60.0)
    had = Usage(seconds=7.0)
    for snapshot in (at(0, 1), replace(at(10, 2), usage={JobId(2): had}), at(60), at(120)):
        rounds.plan(snapshot, NOTHING)
    assert [s.usage.get(JobId(2)) for s in policy.seen] == [None, had, None]


# -- settings -------------------------------------------------------------------------------------------


def test_a_floor_needs_rounds() -> None:
    with pytest.raises(SettingsError, match=r"reset_floor_seconds is 150 but round_seconds is 0"):
        parse_settings("[simulation]\nreset_floor_seconds = 150.0\n")
    with pytest.raises(SettingsError, match=r"simulation\.reset_floor_seconds = -1"):
        parse_settings("[simulation]\nround_seconds = 60.0\nreset_floor_seconds = -1.0\n")
