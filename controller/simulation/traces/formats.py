# SPDX-License-Identifier: GPL-2.0-or-later
"""The formats: Tiresias, Gavel, Philly (as cleaned for Pollux), sacct, and our own."""

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

from controller.cluster.states import is_final
from controller.simulation.traces.base import (
    MAX_GPUS,
    UNREADABLE,
    Columns,
    LeftOut,
    NoJobs,
    Row,
    TraceJob,
    check_unique,
    in_words,
    open_text,
    read_table,
    without_number,
)

_NEVER_RAN = "that never ran"
_MODEL = re.compile(r"[^A-Za-z0-9._+-]+")


def tiresias(rows: Iterable[Row]) -> list[TraceJob]:
    """CSV `job_id,num_gpu,submit_time,iterations,model_name,duration,interval`; times in seconds."""
    return [
        TraceJob(
            id=row.text("job_id"),
            submit_seconds=row.number("submit_time"),
            gpus=row.count("num_gpu", 0),
            duration_seconds=row.work("duration", "num_gpu"),
            line=row.line,
            model=model_slug(row.word("model_name")),
            gpus_column="num_gpu",
        )
        for row in rows
    ]


def gavel(rows: Iterable[Row]) -> list[TraceJob]:
    """Gavel's tab-separated lines without a header. Durations follow from a table of throughputs."""
    return [
        TraceJob(
            id=str(number),
            submit_seconds=row.number("arrival_time"),
            gpus=row.count("scale_factor", 0),
            duration_seconds=None,
            line=row.line,
            model=row.text("job_type"),
            steps=row.work("total_steps", "scale_factor", 1e15),
            weight=row.number("priority_weight", 1e-6, 1e6),
            gpus_column="scale_factor",
        )
        for number, row in enumerate(rows)
    ]


def philly(rows: Iterable[Row]) -> list[TraceJob]:
    """CSV `timestamp,duration,num_gpus[,cluster]`, sorted by time here. Less than 1 s counts as 1 s."""
    timed = sorted(((_seconds(row, "timestamp"), row) for row in rows), key=itemgetter(0))
    return [
        TraceJob(
            id=str(number),
            submit_seconds=at - timed[0][0],
            gpus=row.count("num_gpus", 0),
            duration_seconds=(lasted := row.work("duration", "num_gpus")) and max(1.0, float(int(lasted))),
            line=row.line,
            user=_MODEL.sub("-", row.values.get("cluster", "") or "user"),
            gpus_column="num_gpus",
        )
        for number, (at, row) in enumerate(timed)
    ]


_TRES_GPUS = re.compile(r"(?:^|,)gres/gpu(?::([^=,]*))?=([0-9]+)(?=,|$)")
_TRES_NODES = re.compile(r"(?:^|,)node=([0-9]{1,7})(?=,|$)")
_ELAPSED = re.compile(r"(?:(?:([0-9]{1,6})-)?([0-9]{1,3}):)?([0-9]{1,2}):([0-9]{2})(?:\.[0-9]+)?", re.ASCII)
_UNKNOWN = ("", "INVALID")


def sacct(rows: Iterable[Row]) -> list[TraceJob]:
    """What `gandiva trace sacct` writes: `sacct --parsable2` with at least JobID, Submit, ElapsedRaw or
    Elapsed, and AllocTRES. Steps are no jobs. Left out are jobs that have not ended or never ran, components
    of heterogeneous jobs, which cannot be time-sliced, and of a job that is there several times (`sacct -D`)
    all runs but the last."""
    last: dict[str, TraceJob] = {}
    left: list[TraceJob] = []
    for row in rows:
        job_id = row.text("JobID")
        if "." not in job_id:
            if job_id in last:
                left.append(replace(last.pop(job_id), left_out="earlier runs of requeued jobs"))
            last[job_id] = _accounted(row, job_id)
    jobs = [*left, *last.values()]
    zero = min((job.submit_seconds for job in jobs if job.gpus and not job.left_out), default=0.0)
    return [replace(job, submit_seconds=job.submit_seconds - zero) for job in jobs]


def _accounted(row: Row, job_id: str) -> TraceJob:
    """One run of a job; submitted in seconds of `_seconds`, if it counts."""
    tres = row.word("AllocTRES", row.word("ReqTRES"))
    gpus, _ = _tres_gpus(row, tres)
    job = TraceJob(job_id, 0.0, gpus, None, row.line, gpus_column="AllocTRES", recorded=True)
    if not gpus:
        return job
    if not is_final(row.word("State", "COMPLETED")) or row.word("End") == "Unknown":
        return replace(job, left_out="that had not ended")
    if "+" in job_id:
        return replace(job, left_out="components of heterogeneous jobs")
    elapsed_seconds = _elapsed_seconds(row)
    if not elapsed_seconds:
        return replace(job, left_out=_NEVER_RAN if elapsed_seconds == 0 else "whose run time is not known")
    nodes = _TRES_NODES.search(f"{tres},node={row.word('NNodes')}")
    spread = int(nodes[1]) if nodes else 0
    return replace(
        job,
        submit_seconds=_seconds(row, "Submit"),
        duration_seconds=elapsed_seconds,
        user=row.word("User", "user"),
        account=row.word("Account"),
        qos=row.word("QOS"),
        partition=row.word("Partition"),
        nodes=spread if spread and gpus % spread == 0 else None,
        gpu_types=_tres_gpus(row, row.word("ReqTRES", tres))[1],
    )


def _elapsed_seconds(row: Row) -> float | None:
    """In sacct's two columns for it. None: it does not know it (INVALID: an end before the start)."""
    if row.word("ElapsedRaw") not in _UNKNOWN:
        return row.number("ElapsedRaw")
    if (text := row.word("Elapsed")) in _UNKNOWN:
        if row.values.keys().isdisjoint(("ElapsedRaw", "Elapsed")):
            raise row.error("ElapsedRaw", "is not there, nor is Elapsed")
        return None
    match = _ELAPSED.fullmatch(text)
    if match is None:
        raise row.error("Elapsed", f"{text[:40]!r} is not a time such as 1-02:03:04")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _tres_gpus(row: Row, tres: str) -> tuple[int, tuple[str, ...]]:
    """How many, and each type of which there are as many: as it is called, or if there is none, without the
    number of a GPU. Raises TraceError; a number of 5,000 digits is none for Python either."""
    counts, models = Counter[str](), Counter[str]()
    for gpu_type, digits in _TRES_GPUS.findall(tres):
        count = int(digits) if len(digits) < 9 else MAX_GPUS + 1
        counts[gpu_type] += count
        models[without_number(gpu_type)] += count
    gpus = counts.pop("", 0) or sum(counts.values())
    if gpus > MAX_GPUS:
        raise row.error("AllocTRES", f"more than {MAX_GPUS} GPUs")
    named, alike = ([kind for kind, count in by.items() if kind and count == gpus] for by in (counts, models))
    return gpus, tuple(named or alike)


def native(rows: Iterable[Row]) -> list[TraceJob]:
    """CSV `job_id,submit_seconds,duration_seconds,gpus` and, if wanted,
    `nodes,model,user,account,qos,partition,weight,gpu_types,pack,max_gpus,store` (several types with `+`
    between them; pack and store: yes or no)."""
    jobs = []
    for row in rows:
        gpus = row.count("gpus", 0)
        nodes = row.count("nodes") if row.word("nodes") else None
        if nodes is not None and gpus % nodes:
            raise row.error("nodes", f"{gpus} GPUs cannot be spread evenly over {nodes} nodes")
        types = row.word("gpu_types")
        jobs.append(
            TraceJob(
                id=row.text("job_id"),
                submit_seconds=row.number("submit_seconds"),
                gpus=gpus,
                duration_seconds=row.work("duration_seconds", "gpus"),
                line=row.line,
                model=model_slug(row.word("model")),
                user=row.word("user", "user"),
                account=row.word("account"),
                qos=row.word("qos"),
                partition=row.word("partition"),
                weight=row.number("weight", 0.1, 100) if row.word("weight") else 1.0,
                nodes=nodes,
                gpu_types=tuple(types.split("+")) if types else (),
                may_pack=row.choice("pack"),
                has_store=row.choice("store"),
                max_gpus=row.count("max_gpus") if row.word("max_gpus") else None,
            )
        )
    return jobs


@lru_cache(maxsize=4096)
def model_slug(name: str) -> str:
    """A model's name as a request may carry it."""
    return _MODEL.sub("-", name.strip()).strip("-")[:64]


def _seconds(row: Row, column: str) -> float:
    """A time as seconds since 1970. Times of one trace are of one zone, which does not matter for their
    differences."""
    text = row.text(column)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise row.error(column, f"{text[:40]!r} is not a time such as 2017-10-09 07:01:55") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)).timestamp()


_GAVEL = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
    "scale_factor", "priority_weight", "SLO", "arrival_time",
)  # fmt: skip
_ACCOUNTED = (
    "ReqTRES", "ElapsedRaw", "Elapsed", "User", "Account", "QOS", "Partition", "State", "End", "NNodes"
)  # fmt: skip
_WANTED = (
    "nodes", "model", "user", "account", "qos", "partition", "weight", "gpu_types", "pack", "max_gpus",
    "store",
)  # fmt: skip
FORMATS: Mapping[str, tuple[Columns, Callable[[Iterable[Row]], list[TraceJob]]]] = {
    "gavel": (Columns("\t", _GAVEL, header=False), gavel),
    "tiresias": (
        Columns(",", ("job_id", "num_gpu", "submit_time", "duration"), ("model_name",), others=()),
        tiresias,
    ),
    "philly": (Columns(",", ("timestamp", "duration", "num_gpus"), ("cluster",), others=()), philly),
    "sacct": (Columns("|", ("JobID", "Submit", "AllocTRES"), _ACCOUNTED, ("Start", "ReqGRES")), sacct),
    "native": (Columns(",", ("job_id", "submit_seconds", "duration_seconds", "gpus"), _WANTED), native),
}
"""By the words of --trace-format: the columns, and what makes jobs of rows of them."""


def guess(path: Path) -> str | None:
    """The format a file looks like, for a hint when it is read as another."""
    try:
        with open_text(path) as file:
            first = file.readline(4096)
    except UNREADABLE:
        return None
    for name, (columns, _) in FORMATS.items():
        found = [text.strip() for text in first.split(columns.delimiter)]
        if set(found) >= {*columns.needed} if columns.header else len(found) == len(columns.needed):
            return name
    return None


def read_trace(path: Path, trace_format: str, left_out: LeftOut | None = None) -> list[TraceJob]:
    """All jobs with GPUs, by submission. `left_out`: has the others added. Raises TraceError naming line and
    column (NoJobs: there are none), or GandivaError."""
    looks_like = guess(path)
    hint = f"; it looks like --trace-format {looks_like}" if looks_like not in (None, trace_format) else ""
    left_out = Counter() if left_out is None else left_out
    jobs = []
    columns, make = FORMATS[trace_format]
    for job in make(read_table(path, columns, hint)):
        never_ran = 0 in (job.duration_seconds, job.steps)
        if why := job.left_out or ("" if job.gpus else "without GPUs") or _NEVER_RAN * never_ran:
            left_out[why] += 1
        else:
            jobs.append(job)
    check_unique(path, jobs, "job_id")
    if not jobs:
        raise NoJobs(path, 1, "", f"no job in it ran on GPUs; left out: {in_words(left_out)}")
    return sorted(jobs, key=lambda job: job.submit_seconds)
