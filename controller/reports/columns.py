# SPDX-License-Identifier: GPL-2.0-or-later
"""The columns of `gandiva report`: name, width, value, and what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.reports import units
from controller.reports.row import Row
from controller.reports.text import gpu_list


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    width: int
    value: Callable[[Row, str], str]
    """Of a row, with the unit of sizes: K, M, G, T, P, or empty for the one that fits."""
    meaning: str
    left: bool = False
    """Words stand at the left, numbers and times at the right."""


def _column(
    name: str, width: int, value: Callable[[Row], str], meaning: str, *, left: bool = False
) -> Column:
    return Column(name, width, lambda row, _unit: value(row), meaning, left)


COLUMNS: tuple[Column, ...] = (
    _column("Account", 10, lambda r: r.job.account, "Account that is charged."),
    _column(
        "Elapsed",
        10,
        lambda r: units.duration(r.elapsed or 0.0),
        "Time from the first start to the end (or now).",
    ),
    _column("End", 19, lambda r: units.moment(r.end_time), "When it ended."),
    _column("ExitCode", 8, lambda r: r.exit_code, "Exit code and signal, as in sacct."),
    _column("GPUs", 4, lambda r: str(r.job.gpus), "Size of the gang: GPUs it uses at once."),
    _column(
        "GPUTime", 11, lambda r: units.duration(r.job.gpu_seconds), "Time on GPUs, times the number of GPUs."
    ),
    _column(
        "GPUUtil",
        7,
        lambda r: units.percent(r.job.utilization_fraction),
        "Utilisation of its GPUs while it was on them, on average.",
    ),
    _column("JobID", 12, lambda r: r.job_id, "Job, for an array task ARRAY_INDEX.", left=True),
    _column("JobIDRaw", 12, lambda r: str(r.job.job_id), "Slurm's number of the job.", left=True),
    _column("JobName", 10, lambda r: r.job.name, "Name of the job.", left=True),
    Column(
        "MaxGPUMem",
        10,
        lambda row, unit: units.size(row.job.peak_memory_bytes, unit),
        "Most memory it was seen to use on one GPU.",
    ),
    _column(
        "Method",
        11,
        lambda r: r.asked("suspend"),
        "How it is suspended, where its user chose (--gandiva-suspend).",
    ),
    _column("Model", 12, lambda r: r.asked("model"), "Model it says it trains (--gandiva-model).", left=True),
    _column("Moves", 5, lambda r: str(r.job.moves), "Times it went on on other GPUs."),
    _column(
        "NodeGPUs",
        16,
        lambda r: gpu_list(r.job.last_gpus),
        "GPUs it is on, or was on last: NODE:GPUS.",
        left=True,
    ),
    _column("Partition", 10, lambda r: r.job.partition, "Partition."),
    _column("Phase", 10, lambda r: r.job.phase or "", "Where the controller has it now."),
    _column("Reason", 40, lambda r: r.job.reason, "Why the controller did what it did last.", left=True),
    _column("ReqWeight", 9, lambda r: units.number(r.weight_asked), "Weight its user asked for."),
    _column("RunTime", 11, lambda r: units.duration(r.job.run_seconds), "Time on GPUs."),
    _column(
        "Share", 6, lambda r: units.share(r.job.run_seconds, r.elapsed or 0), "RunTime as a part of Elapsed."
    ),
    _column(
        "SharesWith",
        12,
        lambda r: ",".join(map(str, r.job.shares_with)),
        "Jobs that are on the same GPUs at the same time.",
        left=True,
    ),
    _column("Slices", 6, lambda r: str(r.job.slices), "Uninterrupted times on GPUs."),
    _column("Start", 19, lambda r: units.moment(r.job.start_time), "When it first started."),
    _column("State", 10, lambda r: r.state, "Slurm's state of the job."),
    _column("StepTime", 8, lambda r: units.step(r.job.step_seconds), "Median time of a mini-batch."),
    _column("Submit", 19, lambda r: units.moment(r.job.submit_time), "When it was submitted."),
    _column("Suspends", 8, lambda r: str(r.job.suspends), "Times it was taken off its GPUs."),
    _column(
        "SuspTime",
        11,
        lambda r: units.duration(r.suspended or 0.0),
        "Part of Elapsed that it was off its GPUs.",
    ),
    _column("User", 9, lambda r: r.job.user, "Who submitted it."),
    _column(
        "WaitTime",
        11,
        lambda r: units.duration(r.waited),
        "Time from submission to the first start (or now).",
    ),
    _column("Weight", 6, lambda r: units.number(r.job.weight), "Its weight in the share-out of GPU time."),
    _column(
        "WeightLimit",
        16,
        lambda r: r.weight_limit,
        "Whose limit makes Weight less than ReqWeight: account NAME, qos NAME or site.",
        left=True,
    ),
)

DEFAULT_FORMAT = "JobID%-8,JobName%-10,User%8,GPUs,Weight,State,Elapsed,GPUTime%10,Share"
BRIEF_FORMAT = "JobID,State,GPUTime,Share"
LONG_FORMAT = (
    "JobID,JobName%-16,User,Account,Partition,State,Phase,GPUs,Weight,ReqWeight,WeightLimit,Submit,Start,End,"
    "WaitTime,Elapsed,RunTime,SuspTime,GPUTime,GPUUtil,Share,Slices,Suspends,Moves,StepTime,MaxGPUMem,NodeGPUs,SharesWith,ExitCode,Reason"
)
