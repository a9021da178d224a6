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

_MODEL = re.compile(r"[^A-Za-z0-9._+-]+")


def tiresias(path: Path, hint: str) -> list[TraceJob]:
    """CSV `job_id,num_gpu,submit_time,iterations,model_name,duration,interval`; times in seconds."""
    needed = ("job_id", "num_gpu", "submit_time", "duration")
    jobs = [
        TraceJob(
            id=row.text("job_id"),
            submit_seconds=row.number("submit_time"),
            gpus=row.count("num_gpu", 0),
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
    needed = ("timestamp", "duration", "num_gpus")
    table = read_table(path, delimiter=",", needed=needed, optional=("cluster",), others=True, hint=hint)
    rows = sorted(((_moment(row, "timestamp"), row) for row in table), key=itemgetter(0))
    zero = rows[0][0]
    return [
        TraceJob(
            id=str(number),
            submit_seconds=(moment - zero).total_seconds(),
            gpus=row.count("num_gpus", 0),
            duration_seconds=max(1.0, float(int(row.number("duration")))),
            line=row.line,
            user=_MODEL.sub("-", row.values.get("cluster", "") or "user"),
            gpus_column="num_gpus",
        )
        for number, (moment, row) in enumerate(rows)
    ]


_TRES_GPUS = re.compile(r"(?:^|,)gres/gpu(?::([^=,]*))?=([0-9]+)(?=,|$)")
_TRES_NODES = re.compile(r"(?:^|,)node=([0-9]{1,7})(?=,|$)")
_ELAPSED = re.compile(r"(?:(?:([0-9]{1,6})-)?([0-9]{1,3}):)?([0-9]{1,2}):([0-9]{2})(?:\.[0-9]+)?", re.ASCII)
_UNKNOWN = ("", "INVALID")


def sacct(path: Path, hint: str) -> list[TraceJob]:
    """What `gandiva trace sacct` writes: `sacct --parsable2` with at least JobID, Submit, ElapsedRaw or
    Elapsed, and AllocTRES. Steps are no jobs. Left out are jobs that have not ended or never ran, and
    components of heterogeneous jobs, which cannot be time-sliced."""
    needed = ("JobID", "Submit", "AllocTRES")
    found: list[tuple[datetime.datetime, TraceJob]] = []
    left: list[TraceJob] = []
    optional = ("ReqTRES", "ElapsedRaw", "Elapsed", "User", "Account", "QOS", "Partition")
    for row in read_table(path, delimiter="|", needed=needed, optional=optional, others=True, hint=hint):
        job_id, said = row.text("JobID"), {name: text.strip() for name, text in row.values.items()}
        if "." in job_id:
            continue
        tres = said["AllocTRES"] or said.get("ReqTRES", "")
        gpus, types = _tres_gpus(row, tres)
        job = TraceJob(job_id, 0.0, gpus, None, row.line, gpus_column="AllocTRES", recorded=True)
        if not gpus:
            left.append(job)
        elif not is_final(said.get("State") or "COMPLETED") or said.get("End") == "Unknown":
            left.append(replace(job, left_out="that had not ended"))
        elif "+" in job_id:
            left.append(replace(job, left_out="components of heterogeneous jobs"))
        elif not (elapsed_seconds := _elapsed_seconds(row)):
            why = "whose run time is not known" if elapsed_seconds is None else "that never ran"
            left.append(replace(job, left_out=why))
        else:
            nodes = _TRES_NODES.search(f"{tres},node={said.get('NNodes', '')}")
            spread = int(nodes[1]) if nodes else 0
            job = replace(
                job,
                duration_seconds=elapsed_seconds,
                user=said.get("User", "") or "user",
                account=said.get("Account", ""),
                qos=said.get("QOS", ""),
                partition=said.get("Partition", ""),
                nodes=spread if spread and gpus % spread == 0 else None,
                gpu_types=_tres_gpus(row, said["ReqTRES"])[1] if said.get("ReqTRES") else types,
            )
            found.append((_moment(row, "Submit"), job))
    check_unique(path, [job for _, job in found], "JobID")
    found.sort(key=itemgetter(0))
    return left + [replace(job, submit_seconds=(at - found[0][0]).total_seconds()) for at, job in found]


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
        raise row.error(column, f"{text[:40]!r} is not a time such as 2017-10-09 07:01:55") from None
    # Times of one trace are of one zone; which one does not matter for their differences.
    return moment if moment.tzinfo is None else moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)


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
        if job.left_out or not job.gpus:
            left_out[job.left_out or "without GPUs"] += 1
        else:
            jobs.append(job)
    if not jobs:
        raise NoJobs(path, 1, "", f"no job in it ran on GPUs; left out: {in_words(left_out)}")
    return sorted(jobs, key=lambda job: job.submit_seconds)
