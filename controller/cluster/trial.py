# SPDX-License-Identifier: GPL-2.0-or-later
"""A trial of a study: what is to run, and what has become of it, as `trials/N.json` keeps it."""

import enum
import os
import pwd
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from controller.cluster.family import Process
from controller.cluster.port import ClusterJob, JobState
from controller.errors import GandivaError
from controller.model import GpuId, GpuSet, JobId, by_node
from controller.settings.base import first_wrong


class Then(str, enum.Enum):
    """What becomes of a trial when its processes have been ended."""

    AGAIN = "again"
    """It waits, to be started again."""
    CANCELLED = "cancelled"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrialSpec(_Frozen):
    """What is to run."""

    name: str
    command: tuple[str, ...]
    directory: str
    environment: dict[str, str] = {}
    """Besides that of the supervisor."""
    request: str
    """As a job's `admin_comment` (docs/interfaces.md)."""
    word: str = ""
    """What its user says of it while it runs: the trial word (docs/interfaces.md), or nothing."""
    cpus: int = 1
    memory_bytes: int = 0
    """Host memory that it needs on a node; 0: not said."""


class Trial(_Frozen):
    """One trial. Times are seconds since the epoch."""

    format: Literal[1] = 1
    number: int
    spec: TrialSpec
    submit_time: float
    state: JobState = JobState.PENDING
    state_name: str = JobState.PENDING.value
    held: bool = True
    wanted: tuple[tuple[str, int], ...] = ()
    """GPUs that it is bound to, and starts on."""
    binding: tuple[tuple[str, int], ...] = ()
    """GPUs that it has."""
    start_time: float | None = None
    end_time: float | None = None
    exit_code: int = 0
    """128 and the signal's number where a signal has ended it."""
    restarts: int = 0
    then: Then | None = None
    """Its processes are being ended, and this follows."""
    reason: str = ""
    """Why it was cancelled, or why it failed besides its exit status."""
    process: Process | None = None
    """The first one, of its last start."""
    place: str = ""
    """What its processes live and die with (`controller.cluster.allocation`)."""
    home: str = ""
    """The study's run folder when it was started: another one after the study was moved or copied."""

    @property
    def id(self) -> JobId:
        return JobId(self.number)

    @property
    def gpus(self) -> GpuSet:
        """Those that it has."""
        return frozenset(GpuId(*gpu) for gpu in self.binding)

    def view(self) -> ClusterJob:
        """As the cluster port shows it."""
        user, uid = _me()
        return ClusterJob(
            id=self.id,
            user=user,
            uid=uid,
            name=self.spec.name,
            account="",
            partition="",
            qos="",
            state=self.state,
            state_name=self.state_name,
            reason=self.reason,
            held=self.held,
            user_hold=False,
            eligible=True,
            request=self.spec.request,
            trial=self.spec.word,
            submit_time=self.submit_time,
            start_time=self.start_time,
            end_time=self.end_time,
            binding=self.gpus,
            exclusive_gpus=False,
            nodes=tuple(by_node(self.gpus)),
            cpus_per_node=self.spec.cpus,
            memory_per_node_bytes=self.spec.memory_bytes,
            restart_count=self.restarts,
            excluded_nodes=frozenset(),
            exit_code=self.exit_code,
        )


def read_trial(path: Path) -> Trial:
    """Raises GandivaError naming file and key."""
    try:
        return Trial.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise GandivaError(
            f"file {path}: {first_wrong(error, 'trial')}: move it away to forget the trial"
        ) from None
    except OSError as error:
        raise GandivaError(f"file {path}: {error.strerror}") from error


def write_trial(path: Path, trial: Trial) -> None:
    """Renamed into place: whoever reads, and whoever is killed, has the old or the new one."""
    new = path.with_suffix(".new")
    new.write_text(trial.model_dump_json(exclude_defaults=True) + "\n")
    new.replace(path)


@lru_cache(maxsize=1)
def _me() -> tuple[str, int]:
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name, uid
    except KeyError:
        return str(uid), uid
