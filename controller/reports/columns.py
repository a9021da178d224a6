# SPDX-License-Identifier: GPL-2.0-or-later
"""The columns of `gandiva report`; gandiva-report(1) says what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.reports import units
from controller.reports.row import Row
from controller.reports.text import gpu_list


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    width: int
    value: Callable[[Row], str | int | None]
    """Of a row: text, or a size in bytes."""
    left: bool = False
    """Words stand at the left, numbers and times at the right."""


COLUMNS = (
    Column("Account", 10, lambda r: r.job.account),
    Column("Elapsed", 10, lambda r: units.duration(r.elapsed or 0.0)),
    Column("End", 19, lambda r: units.moment(r.end_time)),
    Column("ExitCode", 8, lambda r: r.exit_code),
    Column("GPUs", 4, lambda r: str(r.job.gpus)),
    Column("GPUTime", 11, lambda r: units.duration(r.job.gpu_seconds)),
    Column("GPUUtil", 7, lambda r: units.percent(r.job.utilization_fraction)),
    Column("JobID", 12, lambda r: r.job_id, left=True),
    Column("JobIDRaw", 12, lambda r: str(r.job.job_id), left=True),
    Column("JobName", 10, lambda r: r.job.name, left=True),
    Column("MaxGPUMem", 10, lambda r: r.job.peak_memory_bytes),
    Column("Method", 11, lambda r: r.asked("suspend")),
    Column("Model", 12, lambda r: r.asked("model"), left=True),
    Column("Moves", 5, lambda r: str(r.job.moves)),
    Column("NodeGPUs", 16, lambda r: gpu_list(r.job.last_gpus), left=True),
    Column("Partition", 10, lambda r: r.job.partition),
    Column("Phase", 10, lambda r: r.job.phase or ""),
    Column("Reason", 40, lambda r: r.job.reason, left=True),
    Column("ReqWeight", 9, lambda r: units.number(r.weight_asked)),
    Column("RunTime", 11, lambda r: units.duration(r.job.run_seconds)),
    Column("Share", 6, lambda r: units.share(r.job.run_seconds, r.elapsed or 0)),
    Column("SharesWith", 12, lambda r: ",".join(map(str, r.job.shares_with)), left=True),
    Column("Slices", 6, lambda r: str(r.job.slices)),
    Column("Start", 19, lambda r: units.moment(r.job.start_time)),
    Column("State", 10, lambda r: r.state),
    Column("StepTime", 8, lambda r: units.step(r.job.step_seconds)),
    Column("Submit", 19, lambda r: units.moment(r.job.submit_time)),
    Column("Suspends", 8, lambda r: str(r.job.suspends)),
    Column("SuspTime", 11, lambda r: units.duration(r.suspended or 0.0)),
    Column("User", 9, lambda r: r.job.user),
    Column("WaitTime", 11, lambda r: units.duration(r.waited)),
    Column("Weight", 6, lambda r: units.number(r.job.weight)),
    Column("WeightLimit", 16, lambda r: r.weight_limit, left=True),
)

DEFAULT_FORMAT = "JobID%-8,JobName%-10,User%8,GPUs,Weight,State,Elapsed,GPUTime%10,Share"
BRIEF_FORMAT = "JobID,State,GPUTime,Share"
LONG_FORMAT = (
    "JobID,JobName%-16,User,Account,Partition,State,Phase,GPUs,Weight,ReqWeight,WeightLimit,Submit,Start,End,"
    "WaitTime,Elapsed,RunTime,SuspTime,GPUTime,GPUUtil,Share,Slices,Suspends,Moves,StepTime,MaxGPUMem,NodeGPUs,SharesWith,ExitCode,Reason"
)
