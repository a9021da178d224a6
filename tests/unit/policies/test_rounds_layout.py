# SPDX-License-Identifier: GPL-2.0-or-later
"""What a round has laid out is said by a later plan, as far as it still holds then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.model import NOWHERE, Job, JobId, Placement
from controller.policies.mechanisms.rounds.layout import PendingLayout
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.row import FIXED, RUNNING, WAITING, Standing
from controller.policies.placement.draft import Draft
from tests.unit.policies.ideal import gpu_set, make_job, running
from tests.unit.policies.test_pack_trials import Nothing

ONE, TWO, THREE = map(JobId, (1, 2, 3))
LEFT, RIGHT = gpu_set("n1:0"), gpu_set("n1:1")
ALL = {ONE: NOWHERE, TWO: Placement(LEFT, LEFT), THREE: Placement(RIGHT, RIGHT)}
"""One leaves its GPU to two; three starts on another one."""


class World:
    """The three jobs, laid out and not said."""

    def __init__(self) -> None:
        self.members = {ONE: Member(running(make_job(1), LEFT)), TWO: Member(make_job(2))}
        self.members[THREE] = Member(make_job(3))
        self.members[ONE].standing = RUNNING
        self.members[TWO].standing = self.members[THREE].standing = WAITING
        self.draft = Draft(Nothing())
        self.draft.hold(ONE, self.members[ONE].job.placement)
        for job_id, placement in ALL.items():
            self.draft.put(job_id, placement)
        self.laid = PendingLayout(self.draft)
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
    said = world.laid.say(world.members)
    assert said == {job_id: ALL[job_id] for job_id in holds}
    left = {job_id: member.job.placement for job_id, member in world.members.items()} | said
    assert {job_id: world.draft.of(job_id) for job_id in world.members} == {i: left[i] for i in world.members}
