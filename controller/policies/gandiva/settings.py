# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the `gandiva` policy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.settings.base import Section, setting


class GandivaSettings(Section):
    """Affinity placement and weighted fair time-slicing (OSDI'18)."""

    slice_seconds: float = setting(
        60.0,
        "How long a job runs before the next one on its server gets its turn. The paper uses 60 s: a switch "
        "(a mini-batch, the copy of the GPU state and two calls to Slurm) is then a small part of it.",
        ge=0.5,
        le=86400,
    )
    max_jobs_per_gpu: int = setting(
        4,
        "How many jobs may take turns on a GPU, on average over a server; more wait in the queue. Slurm's "
        "shard count per GPU (the over-subscription depth) is a second limit.",
        ge=1,
        le=64,
    )
    priority_by_qos: dict[str, Annotated[int, Field(ge=-1000, le=1000)]] = setting(
        {},
        "Priority class per Slurm QOS; a QOS that is not named has class 0. A job is never suspended for "
        "one of a lower class.",
    )
