# SPDX-License-Identifier: GPL-2.0-or-later
"""The formats: Tiresias, Gavel, Philly (as cleaned for Pollux), sacct, and our own."""

import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from controller.simulation.traces.base import (
    MAX_GPUS,
    UNREADABLE,
    Row,
    TraceError,
    TraceJob,
    check_unique,
    open_text,
    read_table,
)

_MODEL = re.compile(r"[^A-Za-z0-9._+-]+")


def tiresias(path: Path, hint: str) -> list[TraceJob]:
    """CSV `job_id,num_gpu,submit_time,iterations,model_name,duration,interval`; times in seconds."""
    needed = ("job_id", "num_gpu", "submit_time", "duration")
    jobs = [
        TraceJob(
            id=row.text("job_id"),
            submit_seconds=row.number("submit_time"),
            gpus=row.count("num_gpu"),
            duration_seconds=row.positive("duration"),
            line=row.line,
            model=model_slug(row.values.get("model_name", "")),
            gpus_column="num_gpu",
        )
        for row in read_table(
            path, delimiter=",", needed=needed, optional=("model_name",), others=True, hint=hint
        )
    ]
    check_unique(path, jobs, "job_id")
    return jobs


_GAVEL = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)


def gavel(path: Path, hint: str) -> list[TraceJob]:
    """Gavel's tab-separated lines without a header. Durations follow from a table of throughputs."""
    return [
        TraceJob(
            id=str(number),
            submit_seconds=row.number("arrival_time"),
            gpus=row.count("scale_factor"),
            duration_seconds=None,
            line=row.line,
            model=row.text("job_type"),
            steps=row.positive("total_steps", 1e15),
            weight=row.positive("priority_weight", 1e6),
            gpus_column="scale_factor",
        )
        for number, row in enumerate(
            read_table(path, delimiter="\t", needed=_GAVEL, header=_GAVEL, hint=hint)
        )
    ]


def philly(path: Path, hint: str) -> list[TraceJob]:
    """CSV `timestamp,duration,num_gpus[,gpu_time,cluster]`, sorted by time here; durations at least 1 s."""
    rows: list[tuple[datetime.datetime, Row]] = []
    needed = ("timestamp", "duration", "num_gpus")
    for row in read_table(path, delimiter=",", needed=needed, optional=("cluster",), others=True, hint=hint):
        rows.append((_moment(row, "timestamp"), row))
    rows.sort(key=lambda item: item[0])
    zero = rows[0][0]
    return [
        TraceJob(
            id=str(number),
            submit_seconds=(moment - zero).total_seconds(),
            gpus=row.count("num_gpus"),
            duration_seconds=max(1.0, float(int(row.number("duration")))),
            line=row.line,
            user=_MODEL.sub("-", row.values.get("cluster", "") or "user"),
            gpus_column="num_gpus",
        )
        for number, (moment, row) in enumerate(rows)
    ]


_TRES_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)(?:,|$)")
_TRES_TYPED = re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)")


def sacct(path: Path, hint: str) -> list[TraceJob]:
    """What `gandiva trace sacct` writes: `sacct --parsable2` with at least JobID, Submit, ElapsedRaw and
    AllocTRES (or ReqTRES). Steps, jobs that never ran and jobs without GPUs are left out."""
    needed = ("JobID", "Submit", "ElapsedRaw", "AllocTRES")
    found: list[tuple[datetime.datetime, TraceJob]] = []
    optional = ("ReqTRES", "User", "Account")
    for row in read_table(path, delimiter="|", needed=needed, optional=optional, others=True, hint=hint):
        if "." in row.values["JobID"]:
            continue
        tres = row.values["AllocTRES"] or row.values.get("ReqTRES", "")
        gpus = _tres_gpus(row, _TRES_GPUS.findall(tres)) or _tres_gpus(row, _TRES_TYPED.findall(tres))
        elapsed_seconds = row.number("ElapsedRaw")
        if not gpus or not elapsed_seconds:
            continue
        job = TraceJob(
            id=row.text("JobID"),
            submit_seconds=0.0,
            gpus=gpus,
            duration_seconds=elapsed_seconds,
            line=row.line,
            user=row.values.get("User", "") or "user",
            account=row.values.get("Account", "").strip(),
            gpus_column="AllocTRES",
        )
        found.append((_moment(row, "Submit"), job))
    if not found:
        raise TraceError(path, 1, "AllocTRES", "no job in it ran on GPUs (gres/gpu=N)")
    check_unique(path, [job for _, job in found], "JobID")
    found.sort(key=lambda item: item[0])
    zero = found[0][0]
    return [replace(job, submit_seconds=(moment - zero).total_seconds()) for moment, job in found]


def _tres_gpus(row: Row, counts: list[str]) -> int:
    """Their sum. Raises TraceError; a number of 5,000 digits is none for Python either."""
    gpus = sum(int(count) if len(count) < 9 else MAX_GPUS + 1 for count in counts)
    if gpus > MAX_GPUS:
        raise TraceError(row.path, row.line, "AllocTRES", f"more than {MAX_GPUS} GPUs")
    return gpus


def native(path: Path, hint: str) -> list[TraceJob]:
    """CSV `job_id,submit_seconds,duration_seconds,gpus` and, if wanted,
    `nodes,model,user,account,qos,partition,weight,gpu_types,pack,max_gpus,store` (several types with `+`
    between them; pack and store: yes or no)."""
    needed = ("job_id", "submit_seconds", "duration_seconds", "gpus")
    optional = (
        "nodes",
        "model",
        "user",
        "account",
        "qos",
        "partition",
        "weight",
        "gpu_types",
        "pack",
        "max_gpus",
        "store",
    )
    jobs = []
    for row in read_table(path, delimiter=",", needed=needed, optional=optional, hint=hint):
        gpus = row.count("gpus")
        nodes = row.count("nodes") if row.values.get("nodes", "").strip() else None
        if nodes is not None and gpus % nodes:
            raise TraceError(
                path, row.line, "nodes", f"{gpus} GPUs cannot be spread evenly over {nodes} nodes"
            )
        types = row.values.get("gpu_types", "").strip()
        jobs.append(
            TraceJob(
                id=row.text("job_id"),
                submit_seconds=row.number("submit_seconds"),
                gpus=gpus,
                duration_seconds=row.positive("duration_seconds"),
                line=row.line,
                model=model_slug(row.values.get("model", "")),
                user=row.values.get("user", "").strip() or "user",
                account=row.values.get("account", "").strip(),
                qos=row.values.get("qos", "").strip(),
                partition=row.values.get("partition", "").strip(),
                weight=row.number("weight", 0.1, 100) if row.values.get("weight", "").strip() else 1.0,
                nodes=nodes,
                gpu_types=tuple(types.split("+")) if types else (),
                may_pack=row.choice("pack"),
                has_store=row.choice("store"),
                max_gpus=row.count("max_gpus") if row.values.get("max_gpus", "").strip() else None,
            )
        )
    check_unique(path, jobs, "job_id")
    return jobs


@lru_cache(maxsize=4096)
def model_slug(name: str) -> str:
    """A model's name as a request may carry it."""
    return _MODEL.sub("-", name.strip()).strip("-")[:64]


def _moment(row: Row, column: str) -> datetime.datetime:
    text = row.text(column)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        problem = f"{text[:40]!r} is not a time such as 2017-10-09 07:01:55"
        raise TraceError(row.path, row.line, column, problem) from None
    # Times of one trace are of one zone; which one does not matter for their differences.
    return moment if moment.tzinfo is None else moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)


FORMATS: Mapping[str, Callable[[Path, str], list[TraceJob]]] = {
    "gavel": gavel,
    "tiresias": tiresias,
    "philly": philly,
    "sacct": sacct,
    "native": native,
}


def guess(path: Path) -> str | None:
    """The format a file looks like, for a hint when it is read as another."""
    try:
        with open_text(path) as file:
            first = file.readline(4096)
    except UNREADABLE:
        return None
    if first.count("\t") == len(_GAVEL) - 1:
        return "gavel"
    names = {name.strip() for name in first.replace("|", ",").split(",")}
    for name, columns in (
        ("tiresias", {"job_id", "num_gpu", "duration"}),
        ("philly", {"timestamp", "num_gpus"}),
        ("sacct", {"JobID", "ElapsedRaw"}),
        ("native", {"job_id", "submit_seconds", "gpus"}),
    ):
        if columns <= names:
            return name
    return None


def read_trace(path: Path, trace_format: str) -> list[TraceJob]:
    """All jobs, by submission. Raises TraceError naming line and column, or GandivaError."""
    looks_like = guess(path)
    hint = f"; it looks like --trace-format {looks_like}" if looks_like not in (None, trace_format) else ""
    jobs = FORMATS[trace_format](path, hint)
    jobs.sort(key=lambda job: job.submit_seconds)
    return jobs
