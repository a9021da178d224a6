# SPDX-License-Identifier: GPL-2.0-or-later
"""One picture of the live view, drawn from one answer of `/v1/gpus`. No I/O.

Text that users chose never reaches the terminal as it is: it is cleaned, and rich's markup is not used.
"""

from __future__ import annotations

import time as clock
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from controller.api.messages import GpuMessage, GpusMessage, LiveJobMessage, NodeMessage
from controller.reports import units
from controller.reports.text import clean, gpu_list, ranges, split_gpu
from controller.reports.top.view import (
    DIM,
    UNICODE,
    WARNING,
    Glyphs,
    Order,
    job_colors,
    job_share,
    ordered,
    phase_words,
)

STALE_SECONDS = 15.0
_BAR = 8
_WIDE = 120
"""From here on reasons have room in the table."""
_MIN_BODY_ROWS = 3


@dataclass(frozen=True, slots=True)
class View:
    """What the person at the screen has chosen, and what the screen is like."""

    order: Order = Order.STATE
    user: str | None = None
    compact: bool | None = None
    """One line per node; None: where the GPUs one by one would fill more than half of the screen."""
    glyphs: Glyphs = UNICODE
    scroll: int = 0
    height: int | None = None
    """Rows of the screen; None: no screen, everything is printed."""
    paused: bool = False
    trouble: str = ""
    """Why there is no fresh answer."""
    keys: bool = False


class Frame:
    """The picture: head, body (scrolled), foot."""

    def __init__(self, answer: GpusMessage | None, view: View) -> None:
        self._answer = answer
        self._view = view
        self.body_rows = 0
        """Rows the body has, known once it has been drawn; bounds scrolling."""
        self.shown_rows = 0
        self.compact = False
        self._start = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = _lines(console, options, self._head())
        body = _lines(console, options, self._body())
        foot: list[list[Segment]] = []
        self.body_rows = len(body)
        if self._view.height is not None:
            self.shown_rows = room = max(_MIN_BODY_ROWS, self._view.height - len(head) - 1)
            self._start = max(0, min(self._view.scroll, len(body) - room))
            body = body[self._start : self._start + room]
            body += [[] for _ in range(room - len(body))]
            foot = _lines(console, options, self._foot())
        rows = head + body + foot
        for index, row in enumerate(rows):
            yield from row
            if index < len(rows) - 1 or self._view.height is None:
                yield Segment.line()

    def _head(self) -> RenderableType:
        view, answer = self._view, self._answer
        lines: list[Text] = []
        if answer is not None:
            lines.append(_summary(answer))
            if answer.age_seconds > STALE_SECONDS:
                words = f"The controller has not looked at the cluster for {answer.age_seconds:.0f} s."
                lines.append(Text(f"{view.glyphs.broken} {words}", style=WARNING))
        if view.trouble:
            lines.append(Text(f"{view.glyphs.broken} {clean(view.trouble)}", style=WARNING))
        lines.append(Text())
        return Group(*lines)

    def _foot(self) -> RenderableType:
        view = self._view
        parts = ["Ctrl-C quits"]
        if view.keys:
            parts = [
                "q quit",
                f"s order ({view.order.value})",
                f"u jobs of ({clean(view.user) if view.user else 'all'})",
                "c one by one" if self.compact else "c compact",
                "p go on (PAUSED)" if view.paused else "p pause",
            ]
        if self.body_rows > self.shown_rows:
            last = min(self.body_rows, self._start + self.shown_rows)
            parts.append(f"{self._start + 1}-{last} of {self.body_rows}")
        return Text("  ".join(parts), style="reverse", no_wrap=True, overflow="ellipsis")

    def _body(self) -> RenderableType:
        answer, view = self._answer, self._view
        if answer is None:
            return Text("Waiting for the controller …" if not view.trouble else "")
        colors = job_colors(answer.jobs)
        jobs = {job.job_id: job for job in answer.jobs}
        gpu_rows = sum(len(node.gpus) for node in answer.nodes)
        compact = view.compact
        if compact is None:
            compact = view.height is not None and gpu_rows > view.height // 2
        self.compact = compact
        if not answer.nodes:
            upper: RenderableType = Text(
                "Slurm has no GPU nodes for Gandiva (feature gandiva_<model>).", style=DIM
            )
        elif compact:
            upper = _nodes_table(answer, colors, view)
        else:
            upper = _gpus_table(answer, jobs, colors, view)
        return Group(upper, Text(), _Jobs(answer, colors, view))


def _lines(console: Console, options: ConsoleOptions, what: RenderableType) -> list[list[Segment]]:
    return console.render_lines(what, options.update(height=None), pad=False)


def _summary(answer: GpusMessage) -> Text:
    uses: Counter[str] = Counter()
    for node in answer.nodes:
        uses.update(_use(gpu, node) for gpu in node.gpus)
    phases = Counter(job.phase for job in answer.jobs)
    on = phases["running"] + phases["starting"]
    waiting = phases["suspended"] + phases["yielded"]
    queued = phases["queued"] + phases["ineligible"]
    other = sum(phases.values()) - on - waiting - queued
    gpus = [f"{uses['running']} in use", f"{uses['ordinary']} ordinary", f"{uses['idle']} idle"]
    gpus += [f"{uses['unavailable']} down"] if uses["unavailable"] else []
    jobs = [f"{on} on GPUs", f"{waiting} in turn", f"{queued} queued"]
    jobs += [f"{other} other"] if other else []
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("gandiva  ", style="bold")
    text.append(clock.strftime("%H:%M:%S", clock.localtime(answer.time)))
    text.append(f"{sum(uses.values()):7} GPUs  ", style="bold").append(", ".join(gpus))
    text.append(f"\n{len(answer.jobs):24} jobs  ", style="bold").append(", ".join(jobs))
    return text


def _use(gpu: GpuMessage, node: NodeMessage) -> str:
    if gpu.running:
        return "running"
    if gpu.ordinary_job is not None:
        return "ordinary"
    return "idle" if node.available and gpu.healthy else "unavailable"


def bar(fraction: float | None, columns: int, glyphs: Glyphs) -> str:
    """`███░░`; blanks for what is not known."""
    if fraction is None:
        return " " * columns
    full = round(max(0.0, min(1.0, fraction)) * columns)
    return glyphs.full * full + glyphs.empty * (columns - full)


def _table(*columns: tuple[str, dict[str, object]]) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for header, how in columns:
        table.add_column(header, no_wrap=True, overflow="ellipsis", **how)  # type: ignore[arg-type]
    return table


def _gpus_table(
    answer: GpusMessage, jobs: Mapping[int, LiveJobMessage], colors: Mapping[int, str], view: View
) -> Table:
    """One row per GPU."""
    names = max(
        len(clean(f"{node.name}:{gpu.ordinal}")) for node in answer.nodes for gpu in node.gpus or [_NONE]
    )
    table = _table(
        ("GPU", {"min_width": min(names, 20), "max_width": 20}),
        ("Model", {"max_width": 8}),
        ("Busy", {"width": _BAR + 5}),
        ("Memory", {"justify": "right", "min_width": 9}),
        ("Job", {"ratio": 3}),
        ("Waits for it", {"ratio": 2}),
    )
    for node in answer.nodes:
        if not node.available and not any(gpu.running or gpu.ordinary_job for gpu in node.gpus):
            ordinals = ranges(gpu.ordinal for gpu in node.gpus)
            why = Text(f"{view.glyphs.broken} {clean(node.reason) or 'node not available'}", style=WARNING)
            table.add_row(Text(clean(f"{node.name}:{ordinals}")), Text(), Text(), Text(), why, Text())
            continue
        for gpu, bracket in zip(node.gpus, _brackets(node.gpus, view.glyphs), strict=True):
            table.add_row(
                Text(clean(f"{node.name}:{gpu.ordinal}")),
                Text(clean(gpu.model), style=DIM),
                _busy(gpu, view.glyphs),
                _memory(gpu),
                _holder(gpu, node, jobs, colors, view.glyphs),
                _waiters(gpu.waiting, bracket, colors, view.glyphs),
            )
    return table


_NONE = GpuMessage(ordinal=0, model="")


def _busy(gpu: GpuMessage, glyphs: Glyphs) -> Text:
    if gpu.utilization_fraction is None:
        return Text("?", style=DIM)
    percent = f"{100 * gpu.utilization_fraction:3.0f}%"
    return Text(f"{bar(gpu.utilization_fraction, _BAR, glyphs)} {percent}")


def _memory(gpu: GpuMessage) -> Text:
    if gpu.memory_used_bytes is None or not gpu.memory_bytes:
        return Text("?", style=DIM)
    gib = 1 << 30
    return Text(f"{gpu.memory_used_bytes / gib:.1f}/{gpu.memory_bytes / gib:.0f}G")


def _holder(
    gpu: GpuMessage,
    node: NodeMessage,
    jobs: Mapping[int, LiveJobMessage],
    colors: Mapping[int, str],
    glyphs: Glyphs,
) -> Text:
    if gpu.running:
        text = Text()
        for index, job_id in enumerate(gpu.running):
            job = jobs.get(job_id)
            symbol = phase_words(job.phase, glyphs)[0] if job else glyphs.running
            words = f"{symbol} {job_id}"
            if job is not None and len(gpu.running) == 1:
                words += f" {clean(job.user)} {clean(job.name)}"
            text.append(("  " if index else "") + words, style=colors.get(job_id, ""))
        return text
    if gpu.ordinary_job is not None:
        job_name = f"job {gpu.ordinary_job}" if gpu.ordinary_job else "a job"
        return Text(f"{glyphs.ordinary} {job_name} (ordinary)", style=DIM)
    if not node.available:
        return Text(f"{glyphs.broken} {clean(node.reason) or 'node not available'}", style=WARNING)
    if not gpu.healthy:
        return Text(f"{glyphs.broken} not usable", style=WARNING)
    return Text(f"{glyphs.idle} idle", style=DIM)


def _brackets(gpus: list[GpuMessage], glyphs: Glyphs) -> list[str]:
    """Neighbours that the same jobs wait for share one list of them."""
    first, between, last = glyphs.brackets
    brackets: list[str] = []
    for index, gpu in enumerate(gpus):
        above = index > 0 and gpus[index - 1].waiting == gpu.waiting
        below = index + 1 < len(gpus) and gpus[index + 1].waiting == gpu.waiting
        if not gpu.waiting:
            brackets.append("")
        elif above:
            brackets.append(between if below else last)
        else:
            brackets.append(first if below else "")
    return brackets


def _waiters(waiting: list[int], bracket: str, colors: Mapping[int, str], glyphs: Glyphs) -> Text:
    if bracket in glyphs.brackets[1:]:
        return Text(f"  {bracket}")
    text = Text()
    for index, job_id in enumerate(waiting[:8]):
        head = " " if index else f"{glyphs.arrow} {bracket} " if bracket else f"{glyphs.arrow}   "
        text.append(head)
        text.append(str(job_id), style=colors.get(job_id, ""))
    if len(waiting) > 8:
        text.append(f" +{len(waiting) - 8}")
    return text


def _nodes_table(answer: GpusMessage, colors: Mapping[int, str], view: View) -> Table:
    """One row per node: the job on each GPU, and how many wait."""
    most = max((len(node.gpus) for node in answer.nodes), default=0)
    digits = max([1] + [len(str(job)) for node in answer.nodes for gpu in node.gpus for job in gpu.running])
    table = _table(
        ("Node", {"max_width": 20}),
        ("Busy", {"width": 5, "justify": "right"}),
        (f"Job on GPU 0-{most - 1}" if most > 1 else "Job", {"ratio": 1}),
        ("Waiting", {"justify": "right", "width": 7}),
    )
    for node in answer.nodes:
        known = [g.utilization_fraction for g in node.gpus if g.utilization_fraction is not None]
        busy = f"{100 * sum(known) / len(known):3.0f}%" if known else "?"
        waiting = {job for gpu in node.gpus for job in gpu.waiting}
        cells = Text()
        if not node.available:
            cells.append(f"{view.glyphs.broken} {clean(node.reason) or 'not available'}", style=WARNING)
        else:
            for gpu in node.gpus:
                cells.append(_cell(gpu, view.glyphs).ljust(digits) + " ", style=_cell_color(gpu, colors))
        table.add_row(Text(clean(node.name)), Text(busy), cells, Text(str(len(waiting)) if waiting else ""))
    return table


def _cell(gpu: GpuMessage, glyphs: Glyphs) -> str:
    if gpu.running:
        more = "+" if len(gpu.running) > 1 else ""
        return f"{gpu.running[0]}{more}"
    if gpu.ordinary_job is not None:
        return glyphs.ordinary
    return glyphs.idle if gpu.healthy else glyphs.broken


def _cell_color(gpu: GpuMessage, colors: Mapping[int, str]) -> str:
    return colors.get(gpu.running[0], "") if gpu.running else DIM


class _Jobs:
    """The list of jobs. On a narrow screen the reason why a job waits gets a line of its own."""

    def __init__(self, answer: GpusMessage, colors: Mapping[int, str], view: View) -> None:
        self._answer = answer
        self._colors = colors
        self._view = view
        shown = [job for job in answer.jobs if view.user is None or job.user == view.user]
        self._jobs = ordered(shown, view.order, answer.time)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._jobs:
            whose = f" of {clean(self._view.user)}" if self._view.user else ""
            yield Text(f"No Gandiva jobs{whose}.", style=DIM)
            return
        wide = options.max_width >= _WIDE
        header, *rows = _lines(console, options, self._table(wide))
        yield from header
        yield Segment.line()
        for job, row in zip(self._jobs, rows, strict=True):
            yield from row
            yield Segment.line()
            if job.reason and not job.running_on and not wide:
                yield Text(
                    f"  {self._view.glyphs.because} {clean(job.reason)}",
                    style=DIM,
                    no_wrap=True,
                    overflow="ellipsis",
                )

    def _table(self, wide: bool) -> Table:
        view = self._view
        table = _table(
            ("JobID", {"min_width": 5, "max_width": 10}),
            ("Name", {"ratio": 3, "min_width": 6, "max_width": 30}),
            ("User", {"max_width": 9}),
            ("GPUs", {"justify": "right", "width": 4}),
            ("Wt", {"justify": "right", "max_width": 5}),
            ("State", {"width": 11}),
            ("Time on GPUs", {"width": _BAR + 5}),
            ("Where, or why not" if wide else "Where", {"ratio": 5 if wide else 2, "min_width": 10}),
        )
        for job in self._jobs:
            color = self._colors.get(job.job_id, "")
            state = phase_words(job.phase, view.glyphs)
            table.add_row(
                Text(str(job.job_id), style=color),
                Text(clean(job.name), style=color),
                Text(clean(job.user)),
                Text(str(job.gpus)),
                Text(units.number(job.weight)),
                Text(state, style=WARNING if job.phase in ("stuck", "unknown") else ""),
                _time_on_gpus(job, self._answer.time, view.glyphs),
                Text(_where_or_why(job, wide)),
            )
        return table


def _time_on_gpus(job: LiveJobMessage, now: float, glyphs: Glyphs) -> Text:
    share = job_share(job, now)
    if share is None:
        return Text(f"waits {_short(now - job.submit_time)}", style=DIM)
    return Text(f"{bar(share, _BAR, glyphs)} {100 * share:3.0f}%")


def _short(seconds: float) -> str:
    """`42s`, `12m`, `3h`, `2d`: fits its column."""
    seconds = max(0.0, seconds)
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{letter}"
    return f"{seconds:.0f}s"


def _where_or_why(job: LiveJobMessage, wide: bool) -> str:
    if job.running_on:
        return _short_gpus(job.running_on) + (" (switching)" if job.busy else "")
    if job.reason and wide:
        return clean(job.reason)
    return f"next {_short_gpus(job.binding)}" if job.binding else ""


def _short_gpus(names: list[str]) -> str:
    """`n1:0-3`; for gangs over many nodes `n1-n8:0-3` would lie, so `n1:0-3 +7 nodes`."""
    nodes = list(dict.fromkeys(split_gpu(name).node for name in names))
    if len(nodes) <= 2:
        return clean(gpu_list(names))
    first = ranges(gpu.ordinal for gpu in map(split_gpu, names) if gpu.node == nodes[0])
    return clean(f"{nodes[0]}:{first} +{len(nodes) - 1} nodes")
