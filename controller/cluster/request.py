# SPDX-License-Identifier: GPL-2.0-or-later
"""What a job's user asked for, as the job_submit module wrote it into `admin_comment`.

The format is in docs/interfaces.md, section 2. Only Slurm operators can write that field; it is checked all
the same, because another tool might.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from controller.cluster.hostlist import checked
from controller.cluster.raw import PREFIX
from controller.errors import GandivaError
from controller.model import GPU_MODEL, MAX_WEIGHT, SuspendMethod
from controller.settings.base import first_wrong

_MAX_BYTES = 1024

Count = Annotated[int, Field(ge=1, le=65536)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]{1,64}$")]
GpuType = Annotated[str, Field(pattern=rf"^{GPU_MODEL}$")]
NodeList = Annotated[str, Field(max_length=256), AfterValidator(lambda t: t and checked(t))]


class InvalidRequest(GandivaError):
    """The request of a job makes no sense; the job stays held."""


class Asked(BaseModel):
    """What Slurm is to be told again of a request, whatever else is in it and whether it makes sense."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    gpus: int | None = None
    gpus_per_node: int | None = None
    nodes: int | None = None
    nodelist: str | None = None


class Message(Asked):
    """The JSON behind the prefix."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    v: Literal[1]
    gpus: Count | None = None
    gpus_per_node: Count | None = None
    nodes: Annotated[int, Field(ge=1, le=4096)] | None = None
    weight: Annotated[float, Field(ge=0.1, le=MAX_WEIGHT)] = 1.0
    min_gpus: Count | None = None
    max_gpus: Count | None = None
    pack: bool | None = None
    migrate: bool | None = None
    suspend: Annotated[SuspendMethod, Field(strict=False)] | None = None
    gpu_types: list[GpuType] = Field(default_factory=list, max_length=32)
    model: Name | None = None
    search: Name | None = None
    nodelist: NodeList | None = None
    site: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whole(self) -> Message:
        if self.gpus_per_node is not None and self.nodes is None:
            raise ValueError("gpus_per_node needs nodes")
        if self.gpus_per_node is None and self.gpus is None:
            raise ValueError("neither gpus nor gpus_per_node is given")
        return self

    @property
    def wanted_gpus(self) -> int:
        """In all."""
        return (self.gpus_per_node or 0) * (self.nodes or 0) or self.gpus or 0


def read_asked(admin_comment: str) -> Asked | None:
    """What to restore; None: it does not say."""
    try:
        raw = admin_comment.removeprefix(PREFIX).encode("utf-8", "surrogatepass")
        asked = Asked.model_validate_json(raw)
    except ValidationError:
        return None
    return None if asked.gpus is None and asked.gpus_per_node is None else asked


@lru_cache(maxsize=1024)
def read_message(admin_comment: str) -> Message:
    """The message in an `admin_comment`. Raises InvalidRequest naming the field and what is wrong with it."""
    if not admin_comment.startswith(PREFIX):
        raise InvalidRequest(f"admin_comment does not begin with {PREFIX!r}")
    raw = admin_comment.removeprefix(PREFIX).encode("utf-8", "surrogatepass")
    if len(raw) > _MAX_BYTES:
        raise InvalidRequest(f"request of {len(raw)} bytes, at most {_MAX_BYTES} are allowed")
    try:
        return Message.model_validate_json(raw)
    except ValidationError as error:
        raise InvalidRequest(first_wrong(error, "request")) from None
