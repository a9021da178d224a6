# SPDX-License-Identifier: GPL-2.0-or-later
"""The baselines of the Tiresias paper and its simulator (SPEC 2.2, 2.6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from controller.model import Job
from controller.policies.baselines.settings import FifoSkipSettings, SjfSettings, SrsfSettings, SrtfSettings
from controller.policies.gangs.lanes import Key
from controller.policies.gangs.member import Member
from controller.policies.gangs.planner import GangPolicy
from controller.policies.gangs.rounding import rounded


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
        return (-job.priority_class, *self.ranks((member,), 0, now), job.submit_time, job.id)

    def ranks(self, members: Sequence[Member[None]], lane: int, now: float) -> Sequence[float]:
        return rounded(
            [left if left > 0 else 0.0 for left in self._left([member.job for member in members], now)]
        )

    def _left(self, jobs: Sequence[Job], now: float) -> list[float]:
        # (For every running job at every plan.)
        sizes = [job.request.gpus for job in jobs] if self.weighted else [1] * len(jobs)
        return [
            math.inf
            if job.duration_seconds is None
            else (job.duration_seconds - job.run_seconds) * size
            - (0.0 if job.accrues_since is None else size * (now - job.accrues_since))
            for job, size in zip(jobs, sizes, strict=True)
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
