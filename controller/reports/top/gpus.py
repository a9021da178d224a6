# SPDX-License-Identifier: GPL-2.0-or-later
"""The upper part of the live view: the GPUs, one by one or a line per node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from controller.api.messages import GpuMessage, NodeMessage
from controller.reports.text import clean, ranges, width
from controller.reports.top.grid import Column, Grid
from controller.reports.top.view import BAR, DIM, WARNING, Context, Glyphs, bar, phase_words, spark

_MAX_NAME = 20
HISTORY = 16
"""Answers that the history of a GPU shows."""
HISTORY_COLUMNS = 100
"""From this width on there is room for it."""


@dataclass(frozen=True, slots=True)
class _Row:
    node: NodeMessage
    gpu: GpuMessage | None
    """None: the whole node, in one line."""
    bracket: str = ""

    @property
    def name(self) -> str:
        if self.gpu is not None:
            return clean(f"{self.node.name}:{self.gpu.ordinal}")
        return clean(f"{self.node.name}:{ranges(gpu.ordinal for gpu in self.node.gpus)}")


def gpus_grid(nodes: Sequence[NodeMessage], context: Context, columns: int) -> Grid[_Row]:
    """A line per GPU; a node that is not available and has nothing on it is one line."""
    history = HISTORY if context.view.history and columns >= HISTORY_COLUMNS else 0
    rows: list[_Row] = []
    for node in nodes:
        if not node.available and not any(gpu.running or gpu.ordinary_job is not None for gpu in node.gpus):
            rows.append(_Row(node, None))
            continue
        brackets = _brackets(node.gpus, context.view.glyphs)
        rows += [_Row(node, gpu, bracket) for gpu, bracket in zip(node.gpus, brackets, strict=True)]
    name_width = min(_MAX_NAME, max((width(row.name) for row in rows), default=3))
    model_width = min(8, max((len(gpu.model) for node in nodes for gpu in node.gpus), default=5))

    def lately(row: _Row, _gpu: GpuMessage) -> Text:
        seen = context.view.history.get(row.name, ())[-history:]
        return Text(spark(seen, context.view.glyphs).rjust(history), style=DIM)

    def of_gpu(cell: Callable[[_Row, GpuMessage], Text]) -> Callable[[_Row], Text]:
        return lambda row: Text() if row.gpu is None else cell(row, row.gpu)

    shown: list[Column[_Row]] = [
        ("GPU", {"width": max(3, name_width)}, lambda row: Text(row.name)),
        ("Model", {"width": max(5, model_width)}, of_gpu(lambda _, gpu: Text(clean(gpu.model), style=DIM))),
        ("Busy", {"width": BAR + 5}, of_gpu(lambda _, gpu: _busy(gpu, context.view.glyphs))),
        *([("Lately", {"width": history}, of_gpu(lately))] if history else ()),
        ("Memory", {"justify": "right", "width": 9}, of_gpu(lambda _, gpu: _memory(gpu))),
        ("Job", {"ratio": 3}, lambda row: _holder(row, context)),
        ("Waits for it", {"ratio": 2}, of_gpu(lambda row, gpu: _waiters(gpu, row.bracket, context))),
    ]
    return Grid(rows, shown)


def _busy(gpu: GpuMessage, glyphs: Glyphs) -> Text:
    if gpu.utilization_fraction is None:
        return Text("?", style=DIM)
    return Text(f"{bar(gpu.utilization_fraction, BAR, glyphs)} {100 * gpu.utilization_fraction:3.0f}%")


def _memory(gpu: GpuMessage) -> Text:
    if gpu.memory_used_bytes is None or not gpu.memory_bytes:
        return Text("?", style=DIM)
    gib = 1 << 30
    return Text(f"{gpu.memory_used_bytes / gib:.1f}/{gpu.memory_bytes / gib:.0f}G")


def _holder(row: _Row, context: Context) -> Text:
    node, gpu, glyphs = row.node, row.gpu, context.view.glyphs
    if gpu is None:
        return _broken(node.reason or "node not available", glyphs)
    if gpu.running:
        text = Text()
        for index, job_id in enumerate(gpu.running):
            job = context.jobs.get(job_id)
            symbol = phase_words(job.phase, glyphs)[0] if job else glyphs.running
            words = f"{symbol} {job_id}"
            if job is not None and len(gpu.running) == 1:
                words += f" {clean(job.user)} {clean(job.name)}"
            text.append(("  " if index else "") + words, style=context.colors.get(job_id, ""))
        if node.available and not gpu.healthy:
            text.append("  ").append_text(_broken(gpu.reason or "not usable", glyphs))
        return text
    if gpu.ordinary_job is not None:
        name = f"job {gpu.ordinary_job}" if gpu.ordinary_job else "a job"
        return Text(f"{glyphs.ordinary} {name} (ordinary)", style=DIM)
    if not node.available:
        return _broken(node.reason or "node not available", glyphs)
    if not gpu.healthy:
        return _broken(gpu.reason or "not usable", glyphs)
    return Text(f"{glyphs.idle} idle", style=DIM)


def _broken(why: str, glyphs: Glyphs) -> Text:
    return Text(f"{glyphs.broken} {clean(why)}", style=WARNING)


def _brackets(gpus: Sequence[GpuMessage], glyphs: Glyphs) -> list[str]:
    """GPUs in a row that the same jobs wait for have one list of them."""
    first, between, last = glyphs.brackets
    brackets: list[str] = []
    for waiting, alike in groupby(gpus, key=lambda gpu: gpu.waiting):
        size = len(list(alike))
        brackets += [first, *[between] * (size - 2), last] if waiting and size > 1 else [""] * size
    return brackets


def _waiters(gpu: GpuMessage, bracket: str, context: Context) -> Text:
    """The jobs that wait for it, and what jobs that are off it have left there."""
    glyphs, waiting, text = context.view.glyphs, gpu.waiting, Text()
    if bracket in glyphs.brackets[1:]:
        text.append(f"  {bracket}")
        waiting = []
    for index, job_id in enumerate(waiting[:8]):
        text.append(" " if index else f"{glyphs.arrow} {bracket or ' '} ")
        text.append(str(job_id), style=context.colors.get(job_id, ""))
    if len(waiting) > 8:
        text.append(f" +{len(waiting) - 8}")
    if left_bytes := sum(gpu.left_by.values()):
        text.append(f"  keep {left_bytes / (1 << 30):.1f}G", style=DIM)
    return text


def nodes_grid(nodes: Sequence[NodeMessage], context: Context) -> Grid[NodeMessage]:
    """A line per node: the job on each of its GPUs, and how many wait."""
    most = max((len(node.gpus) for node in nodes), default=0)
    cell_width = max([1] + [len(_cell(gpu, context.view.glyphs)) for node in nodes for gpu in node.gpus])
    name_width = min(_MAX_NAME, max((width(clean(node.name)) for node in nodes), default=4))

    def busy(node: NodeMessage) -> Text:
        known = [g.utilization_fraction for g in node.gpus if g.utilization_fraction is not None]
        return Text(f"{100 * sum(known) / len(known):3.0f}%" if known else "?")

    def waiting(node: NodeMessage) -> Text:
        return Text(str(len({job for gpu in node.gpus for job in gpu.waiting}) or ""))

    jobs = f"Job on GPU 0-{most - 1}" if most > 1 else "Job"
    shown: list[Column[NodeMessage]] = [
        ("Node", {"width": max(4, name_width)}, lambda node: Text(clean(node.name))),
        ("Busy", {"width": 5, "justify": "right"}, busy),
        (jobs, {"ratio": 1}, lambda node: _cells(node, cell_width, context)),
        ("Waiting", {"justify": "right", "width": 7}, waiting),
    ]
    return Grid(nodes, shown)


def _cells(node: NodeMessage, cell_width: int, context: Context) -> Text:
    if not node.available and not any(gpu.running for gpu in node.gpus):
        return _broken(node.reason or "not available", context.view.glyphs)
    cells = Text()
    for gpu in node.gpus:
        color = context.colors.get(gpu.running[0], "") if gpu.running else DIM
        cells.append(_cell(gpu, context.view.glyphs).ljust(cell_width) + " ", style=color)
    return cells


def _cell(gpu: GpuMessage, glyphs: Glyphs) -> str:
    if gpu.running:
        return f"{gpu.running[0]}{'+' if len(gpu.running) > 1 else ''}"
    if gpu.ordinary_job is not None:
        return glyphs.ordinary
    return glyphs.idle if gpu.healthy else glyphs.broken
