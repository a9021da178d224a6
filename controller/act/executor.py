# SPDX-License-Identifier: GPL-2.0-or-later
"""Carrying actions out: one task per job, each a fixed sequence of steps with deadlines.

Rules that hold at every step:

* GPUs are freed before they are claimed (`Ledger`), in parallel over disjoint GPUs.
* A job is suspended in Slurm only after its nodes acknowledged that its memory is off its GPUs, and its GPUs
  are free only after its nodes have stopped its processes and looked once more.
* What fails is undone as far as possible, and the job keeps its GPUs until its nodes say otherwise.
* Nothing depends on the executor's memory: it may die between any two steps. The next controller sees from
  Slurm and the nodes how far the job got (`Phase`) and goes on from there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from controller.act.actions import (
    Action,
    Cancel,
    Migrate,
    Place,
    Requeue,
    Resize,
    Resume,
    Save,
    Suspend,
    Withdraw,
)
from controller.act.context import PLACE_RETRY_SECONDS, Context, JobEnded, Operation
from controller.act.ledger import ClaimFailed
from controller.act.migrate import migrate
from controller.act.place import place
from controller.act.recorder import Outcome
from controller.act.requeue import cancel, requeue, withdraw
from controller.act.resize import resize
from controller.act.resume import resume
from controller.act.save import save
from controller.act.suspend import suspend
from controller.errors import GandivaError, UnknownJob
from controller.model import Job, JobId, Snapshot
from controller.observe.jobs import InFlight

log = logging.getLogger(__name__)

_OPERATIONS: Mapping[type[Any], Callable[[Operation, Any], Coroutine[Any, Any, None]]] = {
    Place: place,
    Suspend: suspend,
    Resume: resume,
    Resize: resize,
    Requeue: requeue,
    Migrate: migrate,
    Save: save,
    Cancel: cancel,
    Withdraw: withdraw,
}


class Executor:
    """Runs operations concurrently, at most one per job."""

    def __init__(self, context: Context, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change`: called when an operation has ended that has done anything."""
        self.context = context
        self._on_change = on_change
        self._operations: dict[JobId, Operation] = {}
        self._ended: dict[JobId, InFlight] = {}
        """Those whose transition ended since the last observation began."""

    def mark(self) -> None:
        """Call before an observation begins."""
        self._ended = {}

    def in_flight(self) -> Mapping[JobId, InFlight]:
        """Jobs in transition, and those whose transition ended since `mark`: what was seen of them may be out
        of date."""
        return {**self._ended, **{job_id: operation.flight for job_id, operation in self._operations.items()}}

    def sync(self, snapshot: Snapshot) -> None:
        self.context.ledger.sync(snapshot)
        self.context.seen = snapshot
        if self.context.left:
            flights = self.in_flight()
            self.context.left = {i: left for i, left in self.context.left.items() if i in flights}

    def apply(self, actions: Sequence[Action], snapshot: Snapshot) -> None:
        """Start the actions; returns at once."""
        for action in actions:
            job_id = action.job_id
            if job_id in self._operations:
                continue
            job = snapshot.jobs[job_id]
            if isinstance(action, Place) and job.failed_start and self._tries_again():
                # One at a time: each may keep GPUs idle until Slurm has refused it once more.
                self.context.memory.change(job_id).held_until = self.context.clock.now() + PLACE_RETRY_SECONDS
                continue
            flight = _flight(action, job)
            gpus = flight.starts_on or job.placement.gpus or job.last
            number = self.context.recorder.operation_begins(action, gpus, self.context.clock.now())
            if flight.leaves:
                self.context.ledger.leaving(job_id)
            operation = self._operations[job_id] = Operation(self.context, job, number, flight)
            operation.task = asyncio.create_task(self._run(operation, action), name=f"job-{job_id}")

    def _tries_again(self) -> bool:
        flights = ((each.job, each.flight) for each in self._operations.values())
        return any(job.failed_start and flight.starts_on is not None for job, flight in flights)

    async def drain(self, deadline_seconds: float) -> bool:
        """Wait for what is under way. False: something was still going on at the deadline."""
        if not (tasks := [each.task for each in self._operations.values()]):
            return True
        _, pending = await asyncio.wait(tasks, timeout=deadline_seconds)
        return not pending

    def abandon(self, job_id: JobId) -> None:
        """The job is gone, and its id is another job's now: do nothing more under this id."""
        if operation := self._operations.get(job_id):
            operation.abandoned = True
            operation.task.cancel()

    def cancel(self) -> None:
        """Drop what is under way, as a crash would; the next controller picks it up."""
        for operation in self._operations.values():
            operation.task.cancel()

    async def _run(self, operation: Operation, action: Action) -> None:
        outcome, error, context, in_vain = Outcome.DONE, "", self.context, False
        job_id = operation.job.id
        try:
            await _OPERATIONS[type(action)](operation, action)
        except (UnknownJob, JobEnded):
            outcome = Outcome.JOB_ENDED
        except GandivaError as failure:
            outcome, error, in_vain = Outcome.FAILED, str(failure), isinstance(failure, ClaimFailed)
            if not in_vain:
                kind = action.kind
                log.warning("job %s: %s failed: %s; see gandiva explain %s", job_id, kind, failure, job_id)
        except asyncio.CancelledError:
            if not operation.abandoned:
                raise
            outcome = Outcome.JOB_ENDED
            context.ledger.release(job_id)
        except Exception:
            # A bug must cost one operation, not the controller.
            log.exception("job %s: internal error in %s; please report it", job_id, action)
            outcome, error = Outcome.FAILED, "internal error, see the log"
            context.hold(job_id, PLACE_RETRY_SECONDS, "internal-error", error)
        finally:
            context.ledger.stays(job_id)
            self._operations.pop(job_id, None)
            self._ended[job_id] = operation.flight
        context.recorder.operation_ends(operation.number, outcome, error, context.clock.now())
        if not in_vain:
            self._on_change()


def _flight(action: Action, job: Job) -> InFlight:
    match action:
        case Place():
            return InFlight(action.gpus, action.allocation)
        case Resume() | Resize():
            return InFlight(action.gpus, job.placement.allocation, resumes=True)
        case Save():
            return InFlight(saves=True)
        case Withdraw():
            return InFlight()  # Slurm may be starting it all the same
        case _:
            return InFlight(leaves=True)
