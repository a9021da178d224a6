# SPDX-License-Identifier: GPL-2.0-or-later
"""Every message between the controller and a node agent (docs/interfaces.md, section 4).

JSON, one object per line of at most MAX_LINE_BYTES. Both ends validate what they receive with these models:
sizes are bounded and unknown fields are refused in requests, and ignored in answers (a newer agent may say
more). The node port answers with the same types.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

if TYPE_CHECKING:
    from controller.model import JobId as JobId
else:
    JobId = int  # a node agent loads nothing of the model

Result = TypeVar("Result")

VERSION = 4
MAX_LINE_BYTES = 1 << 20
MAX_GPUS, MAX_RANKS, MAX_BESIDE, MAX_JOBS, MAX_FILES = 64, 128, 64, 1024, 256
MAX_STEP, MAX_BYTES, MAX_JOB_ID = 2**53, 2**53, 2**32 - 1
MAX_MESSAGE_CHARS, MAX_CONTROLLER_CHARS, MAX_PATH_CHARS, MAX_REASON_CHARS = 2000, 200, 512, 200
MAX_DEADLINE_SECONDS, MAX_LEASE_SECONDS = 3600.0, 300.0

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
APART = "apart"
"""`HelloResult.rank_files` where each job's have a file system of their own; else it says why not."""
COMMAND = re.compile(rf"gandiva-agent ({NODE_NAME.pattern})")
"""What the controller asks sshd to run, and all that the forced command accepts of it."""


class RankState(str, enum.Enum):
    """State of one session (interfaces.md section 3)."""

    RUNNING = "running"
    BLOCKED = "blocked"
    OFFLOADED = "offloaded"
    RESTORING = "restoring"
    FAILED = "failed"
    FINISHED = "finished"


class NodePhase(str, enum.Enum):
    """What a job is doing on one node, as the agent knows it."""

    RUNNING = "running"
    PAUSING = "pausing"
    YIELDED = "yielded"
    FAILED = "failed"


class ErrorKind(str, enum.Enum):
    """Why a verb was not carried out."""

    BAD_REQUEST = "bad_request"
    UNKNOWN_JOB = "unknown_job"
    GPU_BUSY = "gpu_busy"
    DEADLINE = "deadline"
    NOT_COOPERATIVE = "not_cooperative"
    UNSUPPORTED = "unsupported"
    DRIVER = "driver"
    LEFT_ON_GPU = "left_on_gpu"
    NOT_LEADER = "not_leader"
    HOST_MEMORY = "host_memory"
    HALTED = "halted"
    INTERNAL = "internal"


class AgentError(Exception):
    """A verb failed, for a reason the controller can act on."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message[:MAX_MESSAGE_CHARS]


def _unique(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(numbers)) != len(numbers):
        raise ValueError("the same GPU or job twice")
    return numbers


JobIdField = Annotated[int, Field(ge=1, le=MAX_JOB_ID)]
UidField = Annotated[int, Field(ge=0, le=2**32 - 2)]
GpuIndices = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=MAX_GPUS)], ...], Field(max_length=MAX_GPUS), AfterValidator(_unique)
]
JobIds = Annotated[tuple[JobIdField, ...], Field(max_length=MAX_BESIDE), AfterValidator(_unique)]
Seconds = Annotated[float, Field(ge=0, le=MAX_DEADLINE_SECONDS, allow_inf_nan=False)]
ByteCount = Annotated[int, Field(ge=0, le=MAX_BYTES)]
Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Path = Annotated[str, Field(pattern=rf"^/[^\x00]{{1,{MAX_PATH_CHARS}}}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, defer_build=True)


class _Open(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class Request(_Strict):
    """One line from the controller."""

    id: int = Field(ge=0, le=2**53)
    verb: str = Field(max_length=32)
    args: dict[str, Any] = Field(default_factory=dict)
    deadline_seconds: Annotated[float, Field(gt=0, le=MAX_DEADLINE_SECONDS, allow_inf_nan=False)]


class HelloArgs(_Strict):
    """`hello`. Without a name the session may look, and act while no controller has the lease."""

    controller: Annotated[str, Field(pattern=rf"^[!-~]{{1,{MAX_CONTROLLER_CHARS}}}$")] | None = None
    """Whose session this is: the same for all sessions of one controller, and after its restart."""
    lease_seconds: Annotated[float, Field(ge=1, le=MAX_LEASE_SECONDS, allow_inf_nan=False)] = 10.0


class JobArgs(_Strict):
    job_id: JobIdField


class _Placement(JobArgs):
    gpus: GpuIndices = Field(min_length=1)
    """Physical indices the job may use now."""
    binding: GpuIndices = ()
    """Physical indices Slurm allocated; `gpus` is a part of it. Empty: the same as `gpus`."""
    beside: JobIds = ()
    """Jobs that may have memory on the same GPUs at the same time (packing)."""

    @model_validator(mode="after")
    def _check(self) -> "_Placement":
        if self.job_id in self.beside:
            raise ValueError(f"job {self.job_id} beside itself")
        if self.binding and not set(self.gpus) <= set(self.binding):
            raise ValueError(f"gpus {list(self.gpus)} are not all in the binding {list(self.binding)}")
        return self


class PrepareArgs(_Placement):
    uid: UidField


class ResumeArgs(_Placement):
    deadline_seconds: Seconds


class PauseArgs(JobArgs):
    floor_step: Step = 0
    wait_seconds: Seconds = 0.0
    sole: bool = False


class OffloadArgs(JobArgs):
    deadline_seconds: Seconds
    residual_limit_bytes: ByteCount
    release_context: bool = False


class CheckpointArgs(JobArgs):
    lock_deadline_seconds: Seconds
    residual_limit_bytes: ByteCount


class SaveArgs(JobArgs):
    deadline_seconds: Seconds


class StopArgs(JobArgs):
    wait_seconds: Seconds


class WarmArgs(_Strict):
    uid: UidField
    files: Annotated[tuple[Path, ...], Field(max_length=MAX_FILES)]


VERBS: dict[str, type[_Strict]] = {
    "hello": HelloArgs,
    "observe": _Strict,
    "lead": _Strict,
    "prepare": PrepareArgs,
    "pause": PauseArgs,
    "offload": OffloadArgs,
    "checkpoint": CheckpointArgs,
    "save": SaveArgs,
    "stop": StopArgs,
    "open": ResumeArgs,
    "resume": ResumeArgs,
    "forget": JobArgs,
    "living": JobArgs,
    "mapped": JobArgs,
    "warm": WarmArgs,
}


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU as `hello` lists it. `model`: the product's whole name."""

    index: Annotated[int, Field(ge=0, lt=MAX_GPUS)]
    """The minor number, N of /dev/nvidiaN, as Slurm has it. NVML's own counts in PCI order what is there."""
    uuid: Annotated[str, Field(max_length=96)]
    model: Annotated[str, Field(max_length=MAX_REASON_CHARS)]
    memory_bytes: ByteCount
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)] = field(default="", kw_only=True)
    """Why no job is given it, such as memory errors; empty where it is healthy."""


class LeaderInfo(_Open):
    """Who has the lease of a node, and for how long still."""

    controller: str = Field(max_length=MAX_CONTROLLER_CHARS)
    seconds: float


class HelloResult(_Open):
    protocol: Literal["gandiva-agent"]
    version: int
    node: str = Field(max_length=64)
    boot_id: str = Field(max_length=64)
    driver_version: str = Field(max_length=80)
    checkpoint_supported: bool
    device_map_supported: bool
    gpus: tuple[GpuInfo, ...] = Field(max_length=MAX_GPUS)
    leader: LeaderInfo | None = None
    software_version: str = Field(default="", max_length=40)
    """Of this package on the node. This and what follows is for `gandiva check`; empty or None: not told."""
    time: float | None = None
    """Seconds since the epoch on the node's clock."""
    run_dir: str = Field(default="", max_length=400)
    run_dir_filesystem: str = Field(default="", max_length=40)
    rank_files: str = Field(default="", max_length=200)
    plugin_built_for: str = Field(default="", max_length=200)
    """The Slurm release of the node's SPANK plugin, `none` where there is no plugin, or what is wrong."""
    unconfined: str = Field(default="", max_length=400)
    keys_from_anywhere: int | None = None
    """Keys in the agent's own `~/.ssh/authorized_keys` that start it without a `from=`; None: not told."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has memory on a GPU. Job and user are None where the agent cannot tell."""

    pid: int
    job_id: Annotated[JobId, Field(ge=1, le=MAX_JOB_ID)] | None
    uid: int | None
    memory_bytes: ByteCount


@dataclass(frozen=True, slots=True)
class GpuSample(GpuInfo):
    """One GPU at one instant. Not healthy: the figures are the last ones known."""

    memory_used_bytes: ByteCount
    utilization_fraction: Annotated[float, Field(ge=0, le=1)]
    healthy: bool
    processes: Annotated[tuple[GpuProcess, ...], Field(max_length=4096)] = ()


@dataclass(frozen=True, slots=True)
class RankSample:
    """One session."""

    rank: Annotated[int, Field(ge=0)]
    state: RankState
    steps_done: Step
    samples_done: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    step_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    world_size: Annotated[int, Field(ge=1)]
    state_bytes: ByteCount
    largest_tensor_bytes: ByteCount
    error: Annotated[str, Field(max_length=200)] = ""


Ranks = Annotated[tuple[RankSample, ...], Field(max_length=MAX_RANKS)]


@dataclass(frozen=True, slots=True)
class NodeJob:
    """A job's control block on one node."""

    job_id: Annotated[JobId, Field(ge=1, le=MAX_JOB_ID)]
    phase: NodePhase
    gpus: GpuIndices
    """GPUs it uses, or used last."""
    ranks: Ranks = ()
    left_bytes: ByteCount = 0
    movable: bool = False
    has_store: bool = False
    """Every session of it has a checkpoint store, and can `save`."""
    saves_yielded: bool = False
    """It is yielded, and can `save` as it is."""
    resizable: bool = False
    """It may be resumed on another number of GPUs of the node."""
    error: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)] = ""
    trespasses: GpuIndices = ()
    """GPUs on which it has more memory than it may have there now."""


@dataclass(frozen=True, slots=True)
class ObserveResult:
    """`observe`; `time` is seconds since the epoch on the node's clock. `unconfined`: as of `NodeSample`."""

    time: float
    gpus: Annotated[tuple[GpuSample, ...], Field(max_length=MAX_GPUS)]
    jobs: Annotated[tuple[NodeJob, ...], Field(max_length=MAX_JOBS)]
    unconfined: Annotated[str, Field(max_length=400)] = ""


@dataclass(frozen=True, slots=True)
class Living:
    processes: Annotated[int, Field(ge=0, le=2**22)]
    """Processes of the job on the node, Slurm's own for it included."""
    booted_at: float
    """When the node (or the container that is one) was started, in seconds since the epoch on its clock."""
    halted: bool = False
    """Of a trial: its processes there are stopped, all of them."""


@dataclass(frozen=True, slots=True)
class Pause:
    target_step: Step
    all_blocked: bool
    ranks: Ranks = ()


@dataclass(frozen=True, slots=True)
class Offload:
    """`offload` and `checkpoint`: the job's memory is off the GPUs of this node."""

    left_bytes: ByteCount
    seconds: Annotated[float, Field(ge=0)]
    stopped_step: Step | None = None
    empty: bool = False
    """It had no process on any GPU."""
    left_on: Annotated[Mapping[int, ByteCount], Field(max_length=MAX_GPUS)] = field(default_factory=dict)
    """`left_bytes` by GPU index."""


@dataclass(frozen=True, slots=True)
class Saved:
    """`save`: this generation of the job's checkpoint store is published."""

    step: Step
    generation: Annotated[int, Field(ge=1, le=MAX_STEP)]
    seconds: Annotated[float, Field(ge=0)]


@cache
def _results() -> Mapping[Any, TypeAdapter[Any]]:
    """Built when the first one is needed: simulations need none."""
    return {k: TypeAdapter(k) for k in (HelloResult, ObserveResult, Living, Pause, Offload, Saved, dict)}


def read_result(kind: type[Result], content: object) -> Result:
    """A result as one of the types above. Raises ValidationError."""
    return cast(Result, _results()[kind].validate_python(content))


def result_as_json(result: object) -> dict[str, Any]:
    """What goes over the wire; None stands for a verb that only says that it is done."""
    return {} if result is None else dict(_results()[type(result)].dump_python(result, mode="json"))


class ErrorBody(_Open):
    kind: ErrorKind
    message: str = Field(max_length=MAX_MESSAGE_CHARS)
    job_id: int | None = None


class Answer(_Open):
    """One line from the agent. `id` is null when the request could not be read."""

    id: int | None
    ok: bool
    result: dict[str, Any] | None = None
    error: ErrorBody | None = None

    @model_validator(mode="after")
    def _check_one_of(self) -> "Answer":
        if (self.result is None) == self.ok or (self.error is None) != self.ok:
            raise ValueError("an answer has a result when ok, an error when not")
        return self


def encode(message: BaseModel) -> bytes:
    """A message as one line, with its newline."""
    return message.model_dump_json(exclude_none=False).encode() + b"\n"
