# SPDX-License-Identifier: GPL-2.0-or-later
"""First come, first served, with exclusive GPUs: what stock Slurm does without backfill."""

from __future__ import annotations

from typing import Any

from controller.model import Job
from controller.policies.gangs.lanes import Key
from controller.policies.gangs.member import Member
from controller.policies.gangs.planner import GangPolicy
from controller.settings.base import Section, setting


class FifoSettings(Section):
    """First come, first served on whole GPUs, as stock Slurm would without backfill."""

    skip: bool = setting(
        False, "Let later jobs pass one that does not fit now. false: the head of the queue blocks."
    )


class Fifo(GangPolicy[None]):
    """Jobs start in the order of submission, on free GPUs of the fullest server they fit on, and keep
    their GPUs to the end. (Suspended jobs exist only where another policy ran before: they go on in the same
    order, on their own GPUs.)

    Source: Slurm's `sched/builtin`; SPEC 2.6 `fifo` and `fjf` (with `skip`).
    """

    name = "fifo"
    preemptive = False

    def __init__(self, settings: FifoSettings | None = None) -> None:
        self.backfill = (settings or FifoSettings()).skip
        super().__init__()

    def load_account(self, job: Job, raw: Any) -> None:
        return None

    def dump_account(self, member: Member[None], now: float) -> Any:
        return None

    def key(self, member: Member[None], now: float) -> Key:
        job = member.job
        return (-job.priority_class, job.submit_time, job.id)
