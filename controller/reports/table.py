# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables in the ways of sacct: fixed width, -p, -P; and the columns of `gandiva report`, whose meaning
gandiva-report(1) says."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from controller.errors import GandivaError
from controller.reports import units
from controller.reports.row import Row
from controller.reports.text import clean, fit, gpu_list, width

R = TypeVar("R")
MAX_WIDTH = 1000
MAX_NAME_WIDTH = 30
_FIELD = re.compile(r"(?P<name>[A-Za-z/]+)(?:%(?P<left>-?)(?P<width>\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    name: str
    width: int
    value: Callable[[R], str | int | None]
    """Of a row: text, or a size in bytes."""
    left: bool = False
    """Words stand at the left, numbers and times at the right."""


COLUMNS: tuple[Column[Row], ...] = (
    Column("Account", 10, lambda r: r.job.account),
    Column("Elapsed", 10, lambda r: units.duration(r.elapsed or 0.0)),
    Column("End", 19, lambda r: units.moment(r.end_time)),
    Column("ExitCode", 8, lambda r: r.exit_code),
    Column("Gain", 6, lambda r: units.gain(r.job.gain)),
    Column("GPURange", 8, lambda r: r.gpu_range),
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
    Column("NumGPUs", 7, lambda r: str(len(r.job.last_gpus) or "")),
    Column("Packs", 5, lambda r: str(r.job.packs)),
    Column("Partition", 10, lambda r: r.job.partition),
    Column("Phase", 10, lambda r: r.job.phase or ""),
    Column("Reason", 40, lambda r: r.job.reason, left=True),
    Column("ReqWeight", 9, lambda r: f"{r.weight_asked:g}"),
    Column("RunTime", 11, lambda r: units.duration(r.job.run_seconds)),
    Column("Share", 6, lambda r: units.percent(r.share_fraction, 1)),
    Column("SharesWith", 12, lambda r: ",".join(map(str, r.job.shares_with)), left=True),
    Column("Sizes", 7, lambda r: r.sizes),
    Column("Slices", 6, lambda r: str(r.job.slices)),
    Column("Start", 19, lambda r: units.moment(r.job.start_time)),
    Column("State", 10, lambda r: r.state),
    Column("StepTime", 8, lambda r: units.step(r.job.step_seconds)),
    Column("Submit", 19, lambda r: units.moment(r.job.submit_time)),
    Column("Suspends", 8, lambda r: str(r.job.suspends)),
    Column("SuspTime", 11, lambda r: units.duration(r.suspended or 0.0)),
    Column("Trials", 6, lambda r: str(r.job.trials)),
    Column("User", 9, lambda r: r.job.user),
    Column("WaitTime", 11, lambda r: units.duration(r.waited)),
    Column("Weight", 6, lambda r: f"{r.job.weight:g}"),
    Column("WeightLimit", 16, lambda r: r.asked("weight_limit"), left=True),
)

DEFAULT_FORMAT = "JobID%-8,JobName%-10,User%8,GPUs,Weight,State,Elapsed,GPUTime%10,Share"
BRIEF_FORMAT = "JobID,State,GPUTime,Share"
LONG_FORMAT = (
    "JobID,JobName%-16,User,Account,Partition,State,Phase,GPUs,Weight,ReqWeight,WeightLimit,Submit,Start,End,"
    "WaitTime,Elapsed,RunTime,SuspTime,GPUTime,GPUUtil,Share,Slices,Suspends,Moves,Sizes,Packs,Trials,Gain,StepTime,MaxGPUMem,NodeGPUs,SharesWith,ExitCode,Reason"
)


@dataclass(frozen=True, slots=True)
class Layout(Generic[R]):
    columns: tuple[Column[R], ...]
    header: bool = True
    delimiter: str | None = None
    """Between values of a parsable table; None: fixed width."""
    trailing: bool = False
    """The delimiter also stands at the end of a line (-p)."""
    size_unit: str = ""
    """K, M, G, T, P, or empty for the one that fits."""


def parse_format(text: str) -> tuple[Column[Row], ...]:
    """`JobID,State%-12` -> columns. Names in any case, or their beginning. Raises GandivaError."""
    columns = tuple(_field(word.strip()) for word in text.split(",") if word.strip())
    if not columns:
        raise GandivaError("--format names no column; `gandiva report --helpformat` lists them")
    return columns


def _field(word: str) -> Column[Row]:
    match = _FIELD.fullmatch(word)
    if match is None:
        raise GandivaError(f"--format: {word[:40]!r} is not of the form NAME or NAME%WIDTH or NAME%-WIDTH")
    wanted = match["name"].lower()
    candidates = {name: each for each in COLUMNS if (name := each.name.lower()).startswith(wanted)}
    if not candidates:
        raise GandivaError(
            f"--format: there is no column {match['name'][:40]!r}; the columns are "
            + ", ".join(column.name for column in COLUMNS)
        )
    if wanted not in candidates and len(candidates) > 1:
        names = ", ".join(column.name for column in candidates.values())
        raise GandivaError(f"--format: {match['name']!r} may be any of {names}")
    column = candidates.get(wanted) or next(iter(candidates.values()))
    if match["width"] is None:
        return column
    width = int(match["width"])
    if not 1 <= width <= MAX_WIDTH:
        raise GandivaError(f"--format: the width of {column.name} must be from 1 to {MAX_WIDTH}")
    # As in sacct: %12 aligns to the right, %-12 to the left.
    return replace(column, width=width, left=match["left"] == "-")


def with_names(layout: Layout[Row], rows: Sequence[Row]) -> Layout[Row]:
    """JobName is as wide as the longest name, up to a limit: those of trials say how they differ."""
    longest = min(MAX_NAME_WIDTH, max((width(clean(row.job.name)) for row in rows), default=0))
    widened = (replace(c, width=max(c.width, longest)) if c.name == "JobName" else c for c in layout.columns)
    return replace(layout, columns=tuple(widened))


def help_format() -> str:
    """The names of all columns, four in a line as in sacct."""
    names = [column.name for column in COLUMNS]
    lines = ["".join(f"{name:<19}" for name in names[i : i + 4]).rstrip() for i in range(0, len(names), 4)]
    return "\n".join(lines) + "\n"


def render(rows: Iterable[R], layout: Layout[R]) -> Iterator[str]:
    columns, delimiter = layout.columns, layout.delimiter

    def line(cells: Sequence[str]) -> str:
        if delimiter is not None:
            return delimiter.join(cells) + (delimiter if layout.trailing else "")
        pairs = zip(columns, cells, strict=True)
        return " ".join(fit(cell, column.width, left=column.left) for column, cell in pairs).rstrip()

    if layout.header:
        yield line([column.name for column in columns])
        if delimiter is None:
            yield " ".join("-" * column.width for column in columns)
    for row in rows:
        values = [column.value(row) for column in columns]
        yield line([clean(v if isinstance(v, str) else units.size(v, layout.size_unit)) for v in values])
