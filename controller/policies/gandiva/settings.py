# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the `gandiva` policy."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class GandivaSettings(BaseModel):
    """The `[policy.gandiva]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slice_seconds: float = Field(
        default=60.0,
        ge=1.0,
        le=86400.0,
        description="How long a job runs before the next one on its server gets its turn. "
        "The paper uses 60 s: a switch then costs at most 2 %.",
    )
    max_jobs_per_gpu: int = Field(
        default=4,
        ge=1,
        le=64,
        description="How many jobs may take turns on a GPU, on average over a server. Further ones "
        "wait in the queue. At most the number of shards per GPU in gres.conf.",
    )
    priority_by_qos: dict[str, int] = Field(
        default_factory=dict,
        description="Priority class of each Slurm QOS (0 where it is not named). A job of a higher "
        "class is never suspended for one of a lower class.",
    )
