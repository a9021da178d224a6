# SPDX-License-Identifier: GPL-2.0-or-later
"""The formats: Tiresias, Gavel, Philly (as cleaned for Pollux), sacct, and our own."""

import datetime
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

from controller.simulation.traces.base import (
    MAX_GPUS,
    UNREADABLE,
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
from controller.slurm.states import is_final

_NEVER_RAN = "that never ran"
_MODEL = re.compile(r"[^A-Za-z0-9._+-]+")


def tiresias(path: Path, hint: str) -> list[TraceJob]:
    """CSV `job_id,num_gpu,submit_time,iterations,model_name,duration,interval`; times in seconds."""
    needed = ("job_id", "num_gpu", "submit_time", "duration")
    table = read_table(path, delimiter=",", needed=needed, optional=("model_name",), others=(), hint=hint)
    return [
        TraceJob(
            id=row.text("job_id"),
            submit_seconds=row.number("submit_time"),
            gpus=row.count("num_gpu", 0),
            duration_seconds=row.work("duration", "num_gpu"),
            line=row.line,
            model=model_slug(row.values.get("model_name", "")),
            gpus_column="num_gpu",
        )
        for row in table
    ]


_GAVEL = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
    "scale_factor", "priority_weight", "SLO", "arrival_time",
)  # fmt: skip


def gavel(path: Path, hint: str) -> list[TraceJob]:
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
        for number, row in enumerate(
            read_table(path, delimiter="\t", needed=_GAVEL, header=_GAVEL, hint=hint)
        )
    ]


def philly(path: Path, hint: str) -> list[TraceJob]:
    """CSV `timestamp,duration,num_gpus[,cluster]`, sorted by time here. Less than 1 s counts as 1 s."""
    needed = ("timestamp", "duration", "num_gpus")
    table = read_table(path, delimiter=",", needed=needed, optional=("cluster",), others=(), hint=hint)
    rows = sorted(((_seconds(row, "timestamp"), row) for row in table), key=itemgetter(0))
    return [
        TraceJob(
            id=str(number),
            submit_seconds=at - rows[0][0],
            gpus=row.count("num_gpus", 0),
            duration_seconds=(lasted := row.work("duration", "num_gpus")) and max(1.0, float(int(lasted))),
            line=row.line,
            user=_MODEL.sub("-", row.values.get("cluster", "") or "user"),
            gpus_column="num_gpus",
        )
        for number, (at, row) in enumerate(rows)
    ]


_TRES_GPUS = re.compile(r"(?:^|,)gres/gpu(?::([^=,]*))?=([0-9]+)(?=,|$)")
_TRES_NODES = re.compile(r"(?:^|,)node=([0-9]{1,7})(?=,|$)")
_ELAPSED = re.compile(r"(?:(?:([0-9]{1,6})-)?([0-9]{1,3}):)?([0-9]{1,2}):([0-9]{2})(?:\.[0-9]+)?", re.ASCII)
_UNKNOWN = ("", "INVALID")


def sacct(path: Path, hint: str) -> list[TraceJob]:
    """What `gandiva trace sacct` writes: `sacct --parsable2` with at least JobID, Submit, ElapsedRaw or
    Elapsed, and AllocTRES. Steps are no jobs. Left out are jobs that have not ended or never ran, components
    of heterogeneous jobs, which cannot be time-sliced, and of a job that is there several times (`sacct -D`)
    all runs but the last."""
    needed = ("JobID", "Submit", "AllocTRES")
    optional = (
        "ReqTRES", "ElapsedRaw", "Elapsed", "User", "Account", "QOS", "Partition", "State", "End", "NNodes"
    )  # fmt: skip
    last: dict[str, TraceJob] = {}
    left: list[TraceJob] = []
    for row in read_table(
        path, delimiter="|", needed=needed, optional=optional, others=("Start", "ReqGRES"), hint=hint
    ):
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
    said = {name: text.strip() for name, text in row.values.items()}
    tres = said["AllocTRES"] or said.get("ReqTRES", "")
    gpus, types = _tres_gpus(row, tres)
    job = TraceJob(job_id, 0.0, gpus, None, row.line, gpus_column="AllocTRES", recorded=True)
    if not gpus:
        return job
    if not is_final(said.get("State") or "COMPLETED") or said.get("End") == "Unknown":
        return replace(job, left_out="that had not ended")
    if "+" in job_id:
        return replace(job, left_out="components of heterogeneous jobs")
    elapsed_seconds = _elapsed_seconds(row)
    if not elapsed_seconds:
        return replace(job, left_out=_NEVER_RAN if elapsed_seconds == 0 else "whose run time is not known")
    nodes = _TRES_NODES.search(f"{tres},node={said.get('NNodes', '')}")
    spread = int(nodes[1]) if nodes else 0
    return replace(
        job,
        submit_seconds=_seconds(row, "Submit"),
        duration_seconds=elapsed_seconds,
        user=said.get("User", "") or "user",
        account=said.get("Account", ""),
        qos=said.get("QOS", ""),
        partition=said.get("Partition", ""),
        nodes=spread if spread and gpus % spread == 0 else None,
        gpu_types=_tres_gpus(row, said["ReqTRES"])[1] if said.get("ReqTRES") else types,
    )


def _elapsed_seconds(row: Row) -> float | None:
    """In sacct's two columns for it. None: it does not know it (INVALID: an end before the start)."""
    raw, text = (row.values.get(name, "").strip() for name in ("ElapsedRaw", "Elapsed"))
    if raw not in _UNKNOWN:
        return row.number("ElapsedRaw")
    if text in _UNKNOWN:
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


def native(path: Path, hint: str) -> list[TraceJob]:
    """CSV `job_id,submit_seconds,duration_seconds,gpus` and, if wanted,
    `nodes,model,user,account,qos,partition,weight,gpu_types,pack,max_gpus,store` (several types with `+`
    between them; pack and store: yes or no)."""
    needed = ("job_id", "submit_seconds", "duration_seconds", "gpus")
    optional = (
        "nodes", "model", "user", "account", "qos", "partition", "weight", "gpu_types", "pack", "max_gpus",
        "store",
    )  # fmt: skip
    jobs = []
    for row in read_table(path, delimiter=",", needed=needed, optional=optional, hint=hint):
        gpus = row.count("gpus", 0)
        nodes = row.count("nodes") if row.values.get("nodes", "").strip() else None
        if nodes is not None and gpus % nodes:
            raise row.error("nodes", f"{gpus} GPUs cannot be spread evenly over {nodes} nodes")
        types = row.values.get("gpu_types", "").strip()
        jobs.append(
            TraceJob(
                id=row.text("job_id"),
                submit_seconds=row.number("submit_seconds"),
                gpus=gpus,
                duration_seconds=row.work("duration_seconds", "gpus"),
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


FORMATS: Mapping[str, Callable[[Path, str], list[TraceJob]]] = {
    each.__name__: each for each in (gavel, tiresias, philly, sacct, native)
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
    formats = (
        ("tiresias", {"job_id", "num_gpu", "duration"}),
        ("philly", {"timestamp", "num_gpus"}),
        ("sacct", {"JobID", "Submit", "AllocTRES"}),
        ("native", {"job_id", "submit_seconds", "gpus"}),
    )
    return next((name for name, columns in formats if columns <= names), None)


def read_trace(path: Path, trace_format: str, left_out: LeftOut | None = None) -> list[TraceJob]:
    """All jobs with GPUs, by submission. `left_out`: has the others added. Raises TraceError naming line and
    column (NoJobs: there are none), or GandivaError."""
    looks_like = guess(path)
    hint = f"; it looks like --trace-format {looks_like}" if looks_like not in (None, trace_format) else ""
    left_out = Counter() if left_out is None else left_out
    jobs = []
    for job in FORMATS[trace_format](path, hint):
        never_ran = 0 in (job.duration_seconds, job.steps)
        if why := job.left_out or ("" if job.gpus else "without GPUs") or _NEVER_RAN * never_ran:
            left_out[why] += 1
        else:
            jobs.append(job)
    check_unique(path, jobs, "job_id")
    if not jobs:
        raise NoJobs(path, 1, "", f"no job in it ran on GPUs; left out: {in_words(left_out)}")
    return sorted(jobs, key=lambda job: job.submit_seconds)
