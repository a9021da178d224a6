# SPDX-License-Identifier: GPL-2.0-or-later
"""Plans that start no more than so many jobs at a time, or change the notes of so many."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.model import Plan, Snapshot
from controller.policies import budget
from controller.policies.mechanisms.frame import Frame
from controller.policies.mechanisms.gang_lanes import GangLanes
from controller.policies.orders.gittins import Gittins
from controller.policies.orders.order import Order
from controller.policies.orders.queues import Queues
from controller.policies.orders.simple import Continuous
from controller.policies.placement.consolidation import Consolidation
from controller.policies.placement.draft import Draft
from controller.policies.protocol import Policy
from controller.policies.settings import QueueSettings
from tests.unit.policies.ideal import Ideal, Timeline, cluster, make_job
from tests.unit.policies.presets import las
from tests.unit.policies.test_invariants import Shared, jobs_of
from tests.unit.policies.test_random import GITTINS
from tests.unit.policies.test_random import ORDERS as WITH_EPOCHS

ORDERS: dict[str, Callable[[], Order]] = {
    **WITH_EPOCHS,
    # Ranks hold for the moment only: within an epoch a job that is stopped gets another one.
    "continuous": lambda: Continuous(epoch_seconds=0.0),
    "gittins": lambda: Gittins(QueueSettings(queue_limits=[20.0], interval_seconds=0.0), GITTINS),
}
BY_ENTRY = {"las-entry", "las-entry-exact"}
"""Whose order is that in which jobs were stopped, so that it matters which plan stopped them."""


def make(name: str) -> Callable[[], Policy]:
    preempt = name != "fifo"
    return lambda: Frame(GangLanes(ORDERS[name](), Consolidation(), preempt=preempt))


def in_portions_of(patch: pytest.MonkeyPatch, *, due: int = 1000, starts: int = 1000) -> None:
    """One plan changes the notes of so many jobs whose time has come, and starts so many."""
    patch.setattr(budget, "ADVANCE", budget.LOOKS // due)
    patch.setattr(budget, "START", budget.LOOKS // starts)


def run(
    name: str, seed: int, portion: int, sizes: tuple[int, ...], due: int = 1000
) -> tuple[Timeline, list[int]]:
    """What happens with jobs of these sizes, and how many of them each plan starts."""
    starts: list[int] = []

    def count(snapshot: Snapshot, plan: Plan) -> None:
        begin = [
            i
            for i, target in plan.targets.items()
            if target.placement.gpus and not snapshot.jobs[i].placement.gpus
        ]
        starts.append(len(begin))

    ideal = Ideal(make(name), cluster(2, 4), jobs_of(seed, 20, sizes))
    ideal.on_plan = count
    with pytest.MonkeyPatch.context() as patch:
        in_portions_of(patch, due=due, starts=portion)
        return ideal.run(), starts


PORTIONS = {
    "seed": st.integers(0, 10**6),
    "name": st.sampled_from(sorted(ORDERS)),
    "portion": st.integers(1, 4),
    "due": st.integers(1, 4),
}


@Shared
@given(**PORTIONS)
def test_in_portions_all_comes_to_the_same(seed: int, name: str, portion: int, due: int) -> None:
    at_once, _ = run(name, seed, 1000, (1,))
    in_portions, starts = run(name, seed, portion, (1,), due)
    assert max(starts) <= portion
    if name in BY_ENTRY:
        assert in_portions.ends.keys() == at_once.ends.keys()
    else:
        assert in_portions.ends == at_once.ends
        assert in_portions.runs == at_once.runs


@Shared
@given(**PORTIONS)
def test_gangs_that_make_room_for_each_other_all_end(seed: int, name: str, portion: int, due: int) -> None:
    """With gangs of several sizes it matters which of them fit beside those of one portion."""
    timeline, starts = run(name, seed, portion, (1, 1, 2, 4, 8), due)
    assert max(starts) <= portion
    assert len(timeline.ends) == 20


def queues(due: int) -> tuple[list[tuple[int, int]], Timeline]:
    """Six jobs reach the limit of the first queue at once while six others wait: how many notes each plan at
    that moment changes of jobs that it does not start or stop, and how many it stops; and what happens."""
    seen: list[tuple[int, int]] = []

    def count(snapshot: Snapshot, plan: Plan) -> None:
        if snapshot.time == 10.0:
            stops = [i for i, target in plan.targets.items() if not target.placement.gpus]
            seen.append((len(plan.memory.jobs.keys() - plan.targets.keys()), len(stops)))

    with pytest.MonkeyPatch.context() as patch:
        in_portions_of(patch, due=due)
        jobs = [make_job(n, 1, 15.0) for n in range(1, 7)]
        jobs += [make_job(n, 1, 15.0, submit=1.0) for n in range(7, 11)]
        ideal = Ideal(las(queue_limits=[10.0]), cluster(1, 6), jobs)
        ideal.on_plan = count
        return seen, ideal.run()


def test_jobs_whose_time_has_come_are_advanced_in_portions_and_no_job_stops_before_all_are() -> None:
    at_once, timeline = queues(100)
    in_portions, same = queues(2)
    assert at_once[0] == (2, 4), "two of those demoted go on"
    assert in_portions[:3] == [(2, 0)] * 3
    assert [stops for _, stops in in_portions if stops] == [4]
    assert same.ends == timeline.ends and same.runs == timeline.runs


@pytest.mark.parametrize(
    ("due", "starts"),
    [(100, 100), (2, 100), (3, 100), (100, 2), (100, 3)],
    ids=["at-once", "2-due", "3-due", "2-starts", "3-starts"],
)
@pytest.mark.parametrize("restart", [False, True])
def test_jobs_demoted_in_portions_stand_behind_those_that_wait_in_their_queue(
    monkeypatch: pytest.MonkeyPatch, due: int, starts: int, restart: bool
) -> None:
    """At 20 s four running jobs enter the second queue, where four wait since 10 s. `restart`: the controller
    restarts after each plan."""
    settings = QueueSettings(queue_limits=[10.0], order="queue-entry", promote_knob_ratio=0.0)

    def policy() -> Policy:
        return Frame(GangLanes(Queues(settings), Consolidation()))

    in_portions_of(monkeypatch, due=due, starts=starts)
    first = [make_job(n, 1, 30.0) for n in range(1, 5)]
    second = [make_job(n, 1, 30.0, submit=1.0) for n in range(5, 9)]
    ideal = Ideal(policy, cluster(1, 4), first + second)
    if restart:
        ideal.on_plan = lambda _snapshot, _plan: ideal.restart()
    runs = ideal.run().runs
    assert [runs[n] for n in range(1, 5)] == [[(0.0, 10.0), (20.0, 40.0)]] * 4
    assert [runs[n] for n in range(5, 9)] == [[(10.0, 20.0), (40.0, 60.0)]] * 4


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_two_of_four_start_and_the_next_plan_is_made_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    in_portions_of(monkeypatch, starts=2)
    ideal = Ideal(make(name), cluster(1, 4), [make_job(n, 1, 10.0) for n in range(1, 5)])
    seen: list[tuple[int, bool]] = []
    ideal.on_plan = lambda snapshot, plan: seen.append((len(plan.targets), plan.wake_at == snapshot.time))
    timeline = ideal.run()
    assert seen[0] == (2, True)
    assert timeline.ends == dict.fromkeys(range(1, 5), 10.0)


def test_a_move_follows_when_the_one_before_it_is_through() -> None:
    plans: list[list[str]] = []

    class GoesOnOnce:
        def propose(self, snapshot: Snapshot, draft: Draft) -> None:
            plans.append(["first"])
            if not draft.remembered:
                draft.remember("first", True)
                draft.wake(snapshot.time)

    class Second:
        def propose(self, snapshot: Snapshot, draft: Draft) -> None:
            plans[-1].append("second")
            draft.wake(snapshot.time + 1.0)

    def policy() -> Policy:
        lanes = GangLanes(ORDERS["continuous"](), Consolidation())
        return Frame(lanes, [GoesOnOnce(), Second(), Second()])

    c = Ideal(policy, cluster(1, 4), [make_job(1, 1, 1e4)], check=False)
    c.step()
    assert plans[:2] == [["first"], ["first", "second", "second"]]


def test_moves_follow_when_all_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    in_portions_of(monkeypatch, starts=1)
    seen: list[int] = []

    class Count:
        def propose(self, snapshot: Snapshot, draft: Draft) -> None:
            seen.append(sum(bool(placement.gpus) for placement in draft.placements.values()))

    def policy() -> Policy:
        return Frame(GangLanes(ORDERS["continuous"](), Consolidation()), [Count()])

    c = Ideal(policy, cluster(1, 4), [make_job(n, 1, 1e4) for n in range(1, 5)])
    c.step()
    assert seen and set(seen) == {4}
