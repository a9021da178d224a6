# SPDX-License-Identifier: GPL-2.0-or-later
"""What a round has laid out is said by later plans, as far as it still holds then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.model import NOWHERE, Job, JobId, Placement
from controller.policies.mechanisms.rounds.layout import PendingLayout
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.row import FIXED, RUNNING, WAITING, Standing
from controller.policies.placement.draft import Draft
from controller.policies.placement.free import Free
from tests.unit.policies.ideal import gpu_set, make_job, make_node, running

ONE, TWO, THREE = map(JobId, (1, 2, 3))
LEFT, RIGHT = gpu_set("n1:0"), gpu_set("n1:1")
ALL = {ONE: NOWHERE, TWO: Placement(LEFT, LEFT), THREE: Placement(RIGHT, RIGHT)}
"""One leaves its GPU to two; three starts on another one."""


class Room:
    """Who has which GPUs."""

    def __init__(self) -> None:
        self.gpus = Free({"n1": make_node("n1", 2)})

    def change(self, job_id: JobId, _: Placement, after: Placement) -> None:
        self.gpus.hold(job_id, after.gpus)

    def restore(self, *_: object) -> None: ...


class World:
    """The three jobs, laid out and not said."""

    def __init__(self) -> None:
        self.members = {ONE: Member(running(make_job(1), LEFT)), TWO: Member(make_job(2))}
        self.members[THREE] = Member(make_job(3))
        self.members[ONE].standing = RUNNING
        self.members[TWO].standing = self.members[THREE].standing = WAITING
        self.room = Room()
        self.draft = Draft(self.room)
        self.draft.hold(ONE, self.members[ONE].job.placement)
        for job_id, placement in ALL.items():
            self.draft.put(job_id, placement)
        self.laid = PendingLayout(self.draft, self.room.gpus)
        self.draft.begin({})

    def see(self, job: Job, standing: Standing) -> None:
        """As the frame follows a job."""
        member = self.members[job.id]
        self.laid.leave(member)
        member.job, member.standing = job, standing
        self.draft.hold(job.id, job.placement)

    def same(self) -> None:
        """It is seen, and is what it was."""
        self.see(self.members[ONE].job, RUNNING)

    def busy(self) -> None:
        """An operation on it begins."""
        self.see(replace(self.members[ONE].job, switching=True, may_stop=False), FIXED)

    def ends(self) -> None:
        self.laid.leave(self.members.pop(ONE))
        self.draft.hold(ONE, NOWHERE)

    def starts(self) -> None:
        """Somebody else has started it there."""
        self.see(running(make_job(2), RIGHT), RUNNING)

    def starts_and_waits(self) -> None:
        self.starts()
        self.see(make_job(2), WAITING)


@pytest.mark.parametrize(
    ("happens", "holds"),
    [
        (World.same, {ONE, TWO, THREE}),
        (World.busy, {THREE}),
        (World.ends, {TWO, THREE}),
        (World.starts, {ONE}),
        (World.starts_and_waits, {ONE, TWO, THREE}),
    ],
)
def test_what_is_said_late_holds_still(happens: Callable[[World], None], holds: set[JobId]) -> None:
    world = World()
    happens(world)
    said = world.laid.say(world.members, 9)
    assert said == {job_id: ALL[job_id] for job_id in holds}
    left = {job_id: member.job.placement for job_id, member in world.members.items()} | said
    assert {job_id: world.draft.of(job_id) for job_id in world.members} == {i: left[i] for i in world.members}


def test_it_is_said_in_portions_first_who_leaves_and_partners_at_once() -> None:
    world = World()
    world.members[JobId(4)] = Member(make_job(4))
    pair = {i: Placement(RIGHT, RIGHT, frozenset({THREE, JobId(4)}) - {i}) for i in (THREE, JobId(4))}
    world.draft.hold(ONE, world.members[ONE].job.placement)
    for job_id, placement in {TWO: ALL[TWO], **pair, ONE: NOWHERE}.items():
        world.draft.put(job_id, NOWHERE)
        world.draft.put(job_id, placement)
    laid = world.laid = PendingLayout(world.draft, world.room.gpus)
    assert laid.say(world.members, 1) == {ONE: NOWHERE}
    world.ends()
    assert laid.say(world.members, 1) == {TWO: ALL[TWO]}
    assert laid and laid.say(world.members, 1) == pair
    assert not laid and laid.say(world.members, 1) == {}


def test_no_job_is_to_start_where_one_that_was_to_leave_still_is() -> None:
    world = World()
    assert world.laid.say(world.members, 1) == {ONE: NOWHERE}
    world.same()
    assert world.laid.say(world.members, 9) == {THREE: ALL[THREE]}
    assert world.draft.of(TWO) == NOWHERE


def test_who_is_seen_before_its_portion_is_said_with_it() -> None:
    world = World()
    world.see(world.members[THREE].job, WAITING)
    assert world.laid.say(world.members, 1) == {ONE: NOWHERE}
    assert world.draft.changes() == {} and world.draft.of(THREE) == ALL[THREE]


def test_what_a_later_portion_would_give_is_looked_at_again() -> None:
    world = World()
    assert world.laid.say(world.members, 1) == {ONE: NOWHERE}
    world.members[TWO].job = running(make_job(2), RIGHT)
    world.see(make_job(2), WAITING)
    assert world.laid.say(world.members, 9) == {THREE: ALL[THREE]}


def test_of_a_pair_neither_starts_where_one_is_otherwise() -> None:
    world = World()
    world.draft.put(TWO, Placement(RIGHT, RIGHT, frozenset({THREE})))
    world.draft.put(THREE, Placement(RIGHT, RIGHT, frozenset({TWO})))
    laid = world.laid = PendingLayout(world.draft, world.room.gpus)
    world.see(replace(world.members[TWO].job, may_start=False), FIXED)
    assert laid.say(world.members, 9) == {}
    assert world.draft.of(TWO) == world.draft.of(THREE) == NOWHERE


def test_a_guest_that_stays_keeps_its_gpus_from_others() -> None:
    """It is counted with its host, which leaves."""
    world = World()
    world.busy()
    world.room.gpus.hold(ONE, frozenset())
    assert world.laid.say(world.members, 9) == {THREE: ALL[THREE]}
