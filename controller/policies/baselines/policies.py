# SPDX-License-Identifier: GPL-2.0-or-later
"""The baselines of the Tiresias paper and its simulator (SPEC 2.2, 2.6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from controller.model import Job
from controller.policies.baselines.settings import FifoSkipSettings, SjfSettings, SrsfSettings, SrtfSettings
from controller.policies.gangs.lanes import Key
from controller.policies.gangs.planner import Course, GangPolicy, Member


class _Plain(GangPolicy[None]):
    """Remembers nothing of jobs."""

    def load_account(self, job: Job, raw: Any) -> None:
        return None

    def dump_account(self, member: Member[None], now: float) -> Any:
        return None


class FifoSkip(_Plain):
    """By submission, without preemption, passing those that do not fit (`fjf`)."""

    name = "fifo-skip"
    preemptive = False

    def __init__(self, settings: FifoSkipSettings | None = None) -> None:
        super().__init__()

    def key(self, member: Member[None], now: float) -> Key:
        job = member.job
        return (-job.priority_class, job.submit_time, job.id)


class Sjf(_Plain):
    """By size of the gang, preempting (`sjf` of the Tiresias simulator)."""

    name = "sjf"

    def __init__(self, settings: SjfSettings | None = None) -> None:
        self.backfill = (settings or SjfSettings()).backfill
        super().__init__()

    def key(self, member: Member[None], now: float) -> Key:
        job = member.job
        return (-job.priority_class, job.gpus, job.submit_time, job.id)


class _Remaining(_Plain):
    """By what a job has left; jobs of unknown duration come last."""

    dynamic = True

    def __init__(self, settings: SrtfSettings | SrsfSettings) -> None:
        self.backfill = settings.backfill
        super().__init__()

    weighted = False
    """The remaining time is multiplied by the size of the gang."""

    def key(self, member: Member[None], now: float) -> Key:
        job = member.job
        left, change = self.course(member)
        if job.accrues_since is not None:
            left += change * (now - job.accrues_since)
        return (-job.priority_class, round(left, 6) if left > 0 else 0.0, job.submit_time, job.id)

    def course(self, member: Member[None]) -> tuple[float, float]:
        job = member.job
        size = job.gpus if self.weighted else 1
        if job.duration_seconds is None:
            return math.inf, 0.0
        return (job.duration_seconds - job.run_seconds) * size, -1.0 * size

    def keys(self, courses: Sequence[Course], lane: int, now: float) -> list[Key]:
        # (It is done for every running job in every plan.)
        return [
            (rank, round(left, 6) if (left := value + change * (now - since)) > 0 else 0.0, submit, job_id)
            for rank, value, change, since, submit, job_id in courses
        ]


class Srtf(_Remaining):
    """Shortest remaining time first (`shortest`)."""

    name = "srtf"

    def __init__(self, settings: SrtfSettings | None = None) -> None:
        super().__init__(settings or SrtfSettings())


class Srsf(_Remaining):
    """Shortest remaining service first (`shortest-gpu`)."""

    name = "srsf"
    weighted = True

    def __init__(self, settings: SrsfSettings | None = None) -> None:
        super().__init__(settings or SrsfSettings())
