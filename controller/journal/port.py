# SPDX-License-Identifier: GPL-2.0-or-later
"""What the loop asks of a journal. `Journal` writes a file, `MemoryJournal` keeps the same in memory.

Times are seconds since the epoch; in a simulation, virtual seconds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

from controller.journal.records import JobRecord, JobTotals, OpenOperation
from controller.model import GpuSet, JobId, Note, Usage


class JournalPort(Protocol):
    """Calls that record only queue what they are told, until `commit`. Reading sees what is queued.

    Reading and `commit` raise JournalError where the journal cannot be read or written; what is queued stays
    queued then.
    """

    @property
    def generation(self) -> int:
        """Grows when a new file takes the place of one that was damaged or removed."""
        ...

    def commit(self) -> None:
        """Write what is queued. Once per turn of the loop."""
        ...

    # -- the controller's own state

    def load_state(self, key: str) -> Any:
        """The value saved under this name, or None."""
        ...

    def save_state(self, key: str, value: Any) -> None:
        """Keep a JSON value under a name, instead of the one before. Raises TypeError: not JSON."""
        ...

    def notes(self, policy: str) -> dict[JobId, Note]:
        """What was saved of jobs that have not ended. `policy`: its name, or that of a part of the loop."""
        ...

    def save_note(self, policy: str, job_id: JobId, note: Note) -> None:
        """What it remembers of a job from now on; None: nothing. Raises TypeError: not JSON."""
        ...

    def heartbeat(self, time: float) -> None:
        """The controller is alive. Once per turn of the loop."""
        ...

    def last_heartbeat(self) -> float | None:
        """When a controller was last known to be alive. None in a new journal."""
        ...

    # -- operations, written ahead

    def new_operation_id(self) -> int:
        """A number that no operation in this journal has."""
        ...

    def begin_operation(
        self, op_id: int, job_id: JobId, kind: str, time: float, gpus: GpuSet, reason: str
    ) -> None:
        """The controller is about to do this. On disk when it returns, unless the disk takes nothing."""
        ...

    def step_operation(self, op_id: int, step: str, time: float) -> None:
        """This step is about to be taken. On disk when it returns, unless the disk takes nothing."""
        ...

    def end_operation(self, op_id: int, outcome: str, time: float, error: str = "") -> None:
        """The operation is over. Nothing happens where it was over before."""
        ...

    def open_operations(self) -> Sequence[OpenOperation]:
        """Operations that were begun and never ended, oldest first."""
        ...

    # -- time on GPUs

    def open_slice(self, job_id: JobId, gpus: GpuSet, time: float) -> None:
        """The job is on these GPUs from now on. A slice that is still open ends here."""
        ...

    def close_slice(self, job_id: JobId, time: float, reason: str) -> None:
        """The job is off its GPUs; its totals grow by the slice. Nothing happens where none is open."""
        ...

    def open_places(self) -> Mapping[JobId, GpuSet]:
        """The GPUs of all jobs with an open slice."""
        ...

    def close_open_slices(self, time: float) -> Sequence[JobId]:
        """At start: end the slices that a killed controller left open, at its last heartbeat, so that no time
        counts that was not observed. Returns the jobs, by id."""
        ...

    def carry_over(self, job_id: JobId, usage: Usage, time: float) -> None:
        """Into a new file: what a living job has used up to now. Counts as one slice without details. Nothing
        happens where the file has totals of the job."""
        ...

    def totals(self) -> Mapping[JobId, JobTotals]:
        """What all jobs that have not ended have used so far, closed slices only."""
        ...

    # -- jobs

    def upsert_job(self, job: JobRecord) -> None:
        """A job is new or has changed. `records.merged` says what stays of an earlier record."""
        ...

    def suspended(self) -> Sequence[JobId]:
        """Jobs that were suspended in Slurm when they were last seen, by id."""
        ...

    def submissions(self, job_ids: Iterable[JobId]) -> Mapping[JobId, tuple[str, float]]:
        """User and submit time of those of these jobs that are recorded."""
        ...

    def begin_again(self, job_id: JobId) -> None:
        """The next record of this id is of another job: Slurm gave the id out again. What is recorded of the
        earlier job is dropped, as `sacct` shows the newest job of an id alone. Notes stay: only those who
        save them know whether they still hold."""
        ...

    def end_gone(self, present: Container[JobId], time: float) -> Sequence[JobId]:
        """At start: jobs whose end was never recorded and that Slurm does not know any more end now, in state
        UNKNOWN. Returns them, by id."""
        ...

    # -- decisions and events

    def record_decision(self, time: float, job_id: JobId, action: str, reason: str, gpus: GpuSet) -> None:
        """A decision and why. The same decision twice in a row is recorded once."""
        ...

    def record_event(
        self, time: float, job_id: JobId | None, node: str | None, kind: str, message: str
    ) -> None:
        """Something that happened to the controller, a node or a job, and is not a decision."""
        ...
