# SPDX-License-Identifier: GPL-2.0-or-later
"""What happens in a simulation, kept in memory: the executor's recorder and the loop's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.actions import Action, Requeue, Suspend
from controller.executor import Outcome, Step
from controller.journal.records import JobRecord, JobTotals, OpenOperation
from controller.model import GpuSet, JobId


@dataclass(slots=True)
class History:
    """One job's time on GPUs."""

    first_start: float | None = None
    run_seconds: float = 0.0
    since: float | None = None
    gpus: GpuSet = frozenset()
    preemptions: int = 0
    migrations: int = 0


@dataclass
class SimulationRecords:
    """Implements `Recorder` and `Records`. Times are virtual seconds."""

    keeps_jobs = False
    """The loop need not describe jobs for us."""
    keeps_steps = False
    """Nobody can die in a simulation, and so nobody asks which step was the last."""

    histories: dict[JobId, History] = field(default_factory=dict)
    usage: list[tuple[float, int]] = field(default_factory=list)
    """(time, GPUs in use from then on), in order."""
    gpu_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._in_use = 0

    # -- Recorder -------------------------------------------------------------------------------------

    def operation_begins(self, action: Action, gpus: GpuSet, now: float) -> int:
        if isinstance(action, Suspend | Requeue):
            self._history(action.job_id).preemptions += 1
        return 0

    def operation_step(self, operation: int, step: Step, now: float) -> None:
        """(`keeps_steps`)"""

    def operation_ends(self, operation: int, outcome: Outcome, error: str, now: float) -> None:
        if outcome is Outcome.FAILED:
            self.failures[error] += 1

    def slice_begins(self, job_id: JobId, gpus: GpuSet, now: float) -> None:
        history = self._history(job_id)
        if history.first_start is None:
            history.first_start = now
        elif gpus != history.gpus:
            history.migrations += 1
        history.since, history.gpus = now, gpus
        self._use(now, len(gpus))

    def slice_ends(self, job_id: JobId, reason: str, now: float) -> None:
        history = self._history(job_id)
        if history.since is not None:
            history.run_seconds += now - history.since
            self.gpu_seconds += (now - history.since) * len(history.gpus)
            history.since = None
            self._use(now, -len(history.gpus))

    def event(self, kind: str, message: str, now: float, job_id: JobId | None = None) -> None:
        """Nobody reads them."""

    def _history(self, job_id: JobId) -> History:
        history = self.histories.get(job_id)
        if history is None:
            history = self.histories[job_id] = History()
        return history

    def _use(self, now: float, change: int) -> None:
        self._in_use += change
        if self.usage and self.usage[-1][0] == now:
            self.usage[-1] = (now, self._in_use)
        else:
            self.usage.append((now, self._in_use))

    # -- Records: every simulation begins from nothing ----------------------------------------------------

    def load_state(self, key: str) -> Any:
        return None

    def save_state(self, key: str, value: Any) -> None:
        """The loop has it."""

    def totals(self) -> Mapping[JobId, JobTotals]:
        return {}

    def last_heartbeat(self) -> float | None:
        return None

    def heartbeat(self, time: float) -> None:
        """Nobody looks."""

    def open_operations(self) -> Sequence[OpenOperation]:
        return ()

    def end_operation(self, op_id: int, outcome: str, time: float, error: str = "") -> None:
        """There are none left over."""

    def close_open_slices(self, time: float) -> Sequence[JobId]:
        return ()

    def upsert_job(self, job: JobRecord) -> None:
        """The histories say what is asked for."""

    def commit(self) -> None:
        """Nothing to write."""
