# SPDX-License-Identifier: GPL-2.0-or-later
"""A decision in a file: what was seen, what the policy remembered, and what it decided. `gandiva replay`
makes it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from controller.errors import GandivaError
from controller.loop import Tick
from controller.model import Assignment, GpuId, Job, JobId, Node, Plan, Snapshot
from controller.settings.policies import PolicySettings

MAX_FILE_BYTES = 1 << 28


class SnapshotFileError(GandivaError):
    """The file is not a recorded decision, or not a whole one."""


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid")

    run: bool
    gpus: list[GpuId]
    binding: list[GpuId]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    gandiva_snapshot: Literal[1] = 1
    policy: Annotated[str, Field(max_length=64)]
    settings: dict[str, Any]
    state: dict[str, Any]
    time: float
    nodes: dict[str, Node]
    jobs: list[Job]
    busy: list[JobId]
    assignments: dict[JobId, _Decision]
    reasons: dict[JobId, str]
    wake_at: float | None


_FILE = TypeAdapter(_File)


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """The content of a file."""

    policy: PolicySettings
    snapshot: Snapshot
    state: Mapping[str, Any]
    plan: Plan


def dump_decision(decision: RecordedDecision) -> bytes:
    """As JSON. Times that accrue are brought up to date, so that the snapshot stands for itself."""
    snapshot, plan = decision.snapshot, decision.plan
    jobs = [
        replace(
            job,
            run_seconds=job.run_seconds_at(snapshot.time),
            gpu_seconds=job.gpu_seconds_at(snapshot.time),
            accrues_since=None,
        )
        for job in snapshot.jobs.values()
    ]
    file = _File(
        policy=decision.policy.name,
        settings=decision.policy.chosen.model_dump(mode="json"),
        state={key: dict(v) if isinstance(v, Mapping) else v for key, v in decision.state.items()},
        time=snapshot.time,
        nodes=dict(snapshot.nodes),
        jobs=jobs,
        busy=sorted(snapshot.busy),
        assignments={
            job_id: _Decision(run=a.run, gpus=sorted(a.gpus), binding=sorted(a.binding))
            for job_id, a in plan.assignments.items()
        },
        reasons={job_id: plan.reasons[job_id] for job_id in plan.reasons},
        wake_at=plan.wake_at,
    )
    return _FILE.dump_json(file)


def read_decision(path: Path) -> RecordedDecision:
    """Raises SnapshotFileError."""
    try:
        with path.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SnapshotFileError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise SnapshotFileError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        file = _FILE.validate_json(raw)
        table = {"name": file.policy, file.policy: file.settings}
        policy = PolicySettings.model_validate(table, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise SnapshotFileError(f"{path}: not a recorded decision: {where}: {first['msg']}") from None
    jobs = {job.id: job for job in file.jobs}
    plan = Plan(
        {
            job_id: Assignment(a.run, frozenset(a.gpus), frozenset(a.binding))
            for job_id, a in file.assignments.items()
        },
        file.reasons,
        wake_at=file.wake_at,
    )
    snapshot = Snapshot(file.time, file.nodes, jobs, busy=frozenset(file.busy) & jobs.keys())
    return RecordedDecision(policy, snapshot, file.state, plan)


class SnapshotWriter:
    """Writes a decision every so many seconds of the loop's time."""

    def __init__(self, folder: Path, policy: PolicySettings, every_seconds: float) -> None:
        self._folder = folder
        self._policy = policy
        self._every_seconds = every_seconds
        self._next = float("-inf")
        self._state: Mapping[str, Any] = {}

    def see(self, tick: Tick) -> None:
        """To be called with every tick, since a decision needs the state that the one before left."""
        state, self._state = self._state, tick.plan.state
        time = tick.snapshot.time
        if time < self._next:
            return
        self._next = time + self._every_seconds
        decision = RecordedDecision(self._policy, tick.snapshot, state, tick.plan)
        path = self._folder / f"{time:.0f}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(dump_decision(decision))
        except OSError as error:
            raise SnapshotFileError(f"cannot write {path}: {error.strerror}") from error
