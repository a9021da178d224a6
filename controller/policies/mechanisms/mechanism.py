# SPDX-License-Identifier: GPL-2.0-or-later
"""What a mechanism says to the frame."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from controller.model import Changes, Job, JobId, Note, Placement, Problem, Snapshot, Usage, Why
from controller.model.value import empty
from controller.policies.mechanisms.row import Row
from controller.policies.placement.draft import Draft, Room


class Mechanism(Room, Protocol):
    """Who runs where. The calls come in this order; all of a plan are at the time of its snapshot."""

    changed: Collection[JobId]
    """Jobs of which something else may be true than before this plan."""

    problems: Mapping[str, Problem] = empty()
    """To be solved."""
    refused: Mapping[str, str] = empty()
    """Problems that could not be stated, or whose solution is of no use: why."""

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any], rows: Mapping[JobId, Row]) -> None:
        """Begin anew. `common`: as `common()` gave it, or damaged. `rows`: all jobs, none of them yet; it
        follows what is observed."""

    def nodes_changed(self, snapshot: Snapshot, changed: Changes) -> bool:
        """False: they offer other GPUs than before, so begin anew."""

    def begin(self, snapshot: Snapshot) -> None:
        """A plan begins."""

    def row(self, job: Job, usage: Usage, note: Note) -> Row:
        """Of a job that was not seen before. `note`: as it was remembered, or damaged."""

    def leave(self, row: Row) -> None:
        """The job is about to be seen as it is now."""
        return

    def ended(self, job_id: JobId, row: Row | None, note: Note, usage: Usage) -> None:
        """A job has left the cluster. `row`: None where it was never seen."""

    def held(self, job: Job) -> Placement:
        """What a job has as far as others are concerned."""

    def follow(self, rows: Sequence[Row]) -> None:
        """These jobs are as they were observed, in the order of their ids."""

    def decide(self, snapshot: Snapshot, draft: Draft) -> Mapping[JobId, Placement] | None:
        """Who runs where, after what changes by itself or was solved: changes the draft, whose budget says
        whether there is more to decide. Returns placements that are to be said besides: an earlier plan put
        them into the draft, and may have put more there for later plans to say. None: all that is in the
        draft is for those."""

    def settle(self, changes: Mapping[JobId, Placement], *, whole: bool) -> None:
        """This is what the plan changes, moves included. It will be observed before it is decided about
        again. `whole`: about all other jobs it was decided that they stay as they are."""
        return

    def to_store(self, row: Row, to: Placement) -> bool:
        """Whether the job's state goes into its store, so that it can start anywhere."""

    def starts(self, row: Row) -> Why:
        """Why the plan starts a job."""

    def stops(self, row: Row) -> Why:
        """Why the plan stops it."""

    def stays(self, row: Row, to: Placement) -> Why | None:
        """Why it goes on beside other jobs than before, or elsewhere. None: that is for moves to say."""

    def waits(self, row: Row) -> Why:
        """Why it waits."""

    def common(self) -> Mapping[str, Any]:
        """What is to be remembered beyond jobs: JSON by name."""

    def notes(self) -> Mapping[JobId, Note]:
        """Notes that are others than before this plan. None: to be forgotten."""

    def wake(self) -> float:
        """When to plan again, even if nothing happens."""
