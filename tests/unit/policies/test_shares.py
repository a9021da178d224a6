# SPDX-License-Identifier: GPL-2.0-or-later
"""Users share by Slurm's shares, however many jobs they have. Each plan is compared with one from nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.model import ALL_CHANGED, Changes, Job, Memory, Plan, Reason, Share, Snapshot, reason_of
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.policies.share_tree import Member, fractions
from controller.policies.share_weights import DividedWeights
from controller.policies.shares import ByShares
from controller.settings.policies import PolicySettings
from tests.unit.policies.ideal import Ideal, cluster, make_job, make_node
from tests.unit.policies.presets import preset, tables


def shared(name: str, **settings: Any) -> Callable[[], Policy]:
    made = PolicySettings.model_validate({"fair_share": True, **tables(name, settings)})
    return lambda: make_policy(made)


def tree(*shares: Share) -> Mapping[str, Share]:
    return {share.name: share for share in (Share("root", None, 1.0), *shares)}


class World(Ideal):
    """With shares."""

    shares: Mapping[str, Share] = {}

    def snapshot(self, changed: Any) -> Snapshot:
        return replace(super().snapshot(changed), shares=self.shares)


def jobs_of(user: str, count: int, first: int, duration: float = 600.0, **changes: Any) -> list[Job]:
    return [make_job(first + i, 1, duration, user=user, **changes) for i in range(count)]


def slowdown(world: Ideal, job: Job) -> float:
    assert job.request.duration_seconds is not None
    return (world.timeline.ends[int(job.id)] - job.submit_time) / job.request.duration_seconds


# -- the tree ------------------------------------------------------------------------------------------

ALICE, BOB, CAROL = Member("vision", "alice"), Member("vision", "bob"), Member("speech", "carol")
SITE = tree(
    Share("vision", "root", 3.0),
    Share("speech", "root", 1.0),
    Share("vision/alice", "vision", 2.0),
    Share("vision/bob", "vision", 1.0),
    Share("speech/carol", "speech", 7.0),
)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([ALICE, BOB, CAROL], [1 / 2, 1 / 4, 1 / 4]),
        ([ALICE, CAROL], [3 / 4, 1 / 4]),
        ([ALICE, BOB], [2 / 3, 1 / 3]),
        ([BOB], [1.0]),
        ([CAROL, Member("nowhere", "dave")], [1 / 2, 1 / 2]),
        ([ALICE, Member("vision", "dave")], [2 / 3, 1 / 3]),
    ],
)
def test_parts_follow_the_accounts_of_those_who_are_there(
    members: list[Member], expected: list[float]
) -> None:
    found = fractions(SITE, members)
    assert [found[member] for member in members] == pytest.approx(expected)


def test_accounts_in_a_circle_and_users_without_shares_have_parts_all_the_same() -> None:
    circle = tree(Share("a", "b", 1.0), Share("b", "a", 1.0), Share("c", "root", 0.0))
    found = fractions(circle, [Member("a", "x"), Member("c", "y")])
    assert all(part > 0 for part in found.values())


# -- weights -------------------------------------------------------------------------------------------


ROOMY = {"max_jobs_per_gpu": 16}


def test_twelve_jobs_of_one_user_slow_a_job_of_another_down_to_half() -> None:
    many, one = jobs_of("alice", 12, 1), make_job(100, 1, 600.0, user="bob", submit=30.0)
    world = World(shared("gandiva", **ROOMY), cluster(1, 1), [*many, one], bound=True)
    world.run()
    assert slowdown(world, one) == pytest.approx(2.0, rel=0.1)
    without = World(preset("gandiva", **ROOMY), cluster(1, 1), [*many, one], bound=True)
    without.run()
    assert slowdown(without, one) > 11


def test_jobs_of_one_user_alone_share_as_without_shares() -> None:
    jobs = jobs_of("alice", 5, 1)
    worlds = [World(make("gandiva", **ROOMY), cluster(1, 1), jobs, bound=True) for make in (shared, preset)]
    one, other = [world.run().runs for world in worlds]
    assert one == other


def test_a_full_node_takes_the_first_job_of_another_user() -> None:
    """With the default of four jobs for each GPU eight of the twelve jobs wait in the queue."""
    many, one = jobs_of("alice", 12, 1), make_job(100, 1, 600.0, user="bob", submit=30.0)
    second = make_job(101, 1, 600.0, user="bob", submit=30.0)
    world = World(shared("gandiva"), cluster(1, 1), [*many, one, second], bound=True)
    world.run(until=31.0)
    bound = {int(job.id) for job in world.jobs.values() if job.allocation}
    assert bound == {1, 2, 3, 4, 100}
    world.run()
    assert slowdown(world, one) == pytest.approx(2.0, rel=0.1)


def test_slurms_shares_count_and_weights_divide_them() -> None:
    """vision is due three quarters. alice has two jobs there, one of twice the weight."""
    heavy, light = jobs_of("alice", 2, 1, account="vision", duration=1e6)
    heavy = make_job(1, 1, 1e6, user="alice", account="vision", weight=2.0)
    carol = jobs_of("carol", 3, 10, account="speech", duration=1e6)
    world = World(shared("gandiva", max_jobs_per_gpu=16), cluster(1, 1), [heavy, light, *carol], bound=True)
    world.shares = SITE
    world.run(until=60.0 * 600)
    ran = {int(i): usage.ran(world.now) / world.now for i, usage in world.usage.items()}
    assert ran[1] == pytest.approx(1 / 2, abs=0.02)
    assert ran[2] == pytest.approx(1 / 4, abs=0.02)
    assert [ran[i] for i in (10, 11, 12)] == pytest.approx([1 / 12] * 3, abs=0.02)


def test_the_reason_says_what_the_share_is() -> None:
    many, one = jobs_of("alice", 3, 1), make_job(100, 1, 600.0, user="bob")
    world = World(shared("gandiva", max_jobs_per_gpu=16), cluster(1, 1), [*many, one], bound=True)
    world.run(until=300.0)
    said = [why for why in world.reasons.values() if "share" in why]
    assert any("alice's share there is 50%, for 3 jobs" in why for why in said), world.reasons
    assert {reason_of(why) for why in world.reasons.values()} <= {
        Reason.ITS_TURN,
        Reason.WAITS_FOR_TURN,
        Reason.TURN_OVER,
    }


def test_new_shares_count_from_the_next_plan_on() -> None:
    jobs = [*jobs_of("alice", 1, 1, 1e6, account="vision"), *jobs_of("carol", 1, 2, 1e6, account="speech")]
    world = World(shared("gandiva"), cluster(1, 1), jobs, bound=True)
    world.run(until=6000.0)
    before = world.usage[jobs[0].id].ran(world.now)
    assert before == pytest.approx(3000.0, abs=61)
    world.shares = SITE
    world.run(until=6000.0 + 60 * 400)
    assert world.usage[jobs[0].id].ran(world.now) - before == pytest.approx(0.75 * 24000, rel=0.03)


def test_in_the_cluster_a_job_that_comes_changes_the_weights_of_its_user_only() -> None:
    rule = DividedWeights(by_node=False)
    rule.reset({})
    jobs = {job.id: job for job in [*jobs_of("alice", 3, 1), *jobs_of("bob", 1, 10)]}
    assert rule.follow(set(jobs), jobs) == set(jobs)
    assert [rule.seen(job).request.weight for job in jobs.values()] == pytest.approx([1 / 3] * 3 + [1])
    late = make_job(4, 1, 600.0, user="alice")
    assert rule.follow({late.id}, {**jobs, late.id: late}) == {1, 2, 3, 4}
    assert rule.seen(late).request.weight == pytest.approx(1 / 4)
    assert rule.follow({late.id}, jobs) == {1, 2, 3, 4}, "it is gone"


def test_new_usage_alone_changes_no_weight() -> None:
    """Slurm tells of other usage every few minutes."""
    changed: list[frozenset[int]] = []

    class Seen:
        def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
            changed.append(snapshot.changed.jobs)
            return Plan({})

    policy = ByShares(Seen(), DividedWeights(by_node=False))
    jobs = {job.id: job for job in jobs_of("alice", 3, 1, account="vision")}
    first = Snapshot(time=0.0, nodes={}, jobs=jobs, shares=SITE, changed=ALL_CHANGED)
    policy.plan(first, Memory())
    used = {name: replace(share, usage_fraction=0.5, fair_share=0.5) for name, share in SITE.items()}
    nothing = Changes(frozenset(), frozenset())
    policy.plan(replace(first, shares=used, changed=nothing), Memory())
    late = make_job(4, 1, 600.0, user="bob", account="vision")
    came = Changes(frozenset({late.id}), frozenset())
    policy.plan(replace(first, jobs={**jobs, late.id: late}, shares=used, changed=came), Memory())
    assert changed[1:] == [frozenset(), {1, 2, 3, 4}]


# -- orders --------------------------------------------------------------------------------------------

FACTORS = tree(
    Share("lab", "root", 1.0),
    Share("lab/alice", "lab", 1.0, 0.9, 0.1),
    Share("lab/bob", "lab", 1.0, 0.1, 0.6),
)


@pytest.mark.parametrize(
    "name", ["fifo", "fifo-skip", "sjf", "srtf", "srsf", "tiresias-las", "tiresias-gittins"]
)
def test_every_other_order_takes_the_user_first_who_has_used_less(name: str) -> None:
    jobs = [
        *jobs_of("alice", 12, 1, account="lab"),
        make_job(100, 1, 600.0, user="bob", account="lab", submit=1.0),
    ]
    world = World(shared(name), cluster(1, 1), jobs)
    world.shares = FACTORS
    world.run()
    one = jobs[-1]
    assert slowdown(world, one) <= 2.01, "at most one job is before it"
    world = World(shared(name), cluster(1, 1), jobs)
    world.run()
    assert len(world.timeline.ends) == 13, "without shares it is the order itself"


def test_a_class_comes_before_the_factor_and_equal_factors_leave_the_order() -> None:
    jobs = [
        make_job(1, 1, 60.0, user="bob", account="lab"),
        make_job(2, 1, 60.0, user="alice", account="lab", priority_class=1),
        make_job(3, 1, 60.0, user="bob", account="lab", submit=1.0),
    ]
    world = World(shared("fifo"), cluster(1, 1), jobs)
    world.shares = FACTORS
    world.run()
    ends = world.timeline.ends
    assert ends[2] < ends[1] < ends[3]


def test_the_reason_names_the_factor() -> None:
    jobs = jobs_of("alice", 2, 1, account="lab")
    world = World(shared("fifo"), cluster(1, 1), jobs)
    world.shares = FACTORS
    world.run(until=10.0)
    assert world.reasons[jobs[1].id].endswith("; Slurm's fair-share factor of alice is 0.10")


# -- gangs over nodes --------------------------------------------------------------------------------


def test_a_gang_over_two_nodes_has_the_lesser_of_its_parts() -> None:
    """alice is alone on n1, and has half of n2, where bob has three jobs."""
    gang = make_job(1, 2, 1e6, user="alice", nodes=2)
    others = jobs_of("bob", 3, 2, 1e6, required_nodes=frozenset({"n2"}), submit=1.0)
    nodes = [make_node("n1", 1), make_node("n2", 1)]
    world = World(shared("gandiva"), nodes, [gang, *others], bound=True)
    world.run(until=60.0 * 600)
    assert {job.id for job in world.jobs.values() if job.allocation} == {1, 2, 3, 4}
    assert world.usage[gang.id].ran(world.now) == pytest.approx(world.now / 2, rel=0.05)
