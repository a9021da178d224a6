# SPDX-License-Identifier: GPL-2.0-or-later
"""One picture of the live view, drawn from one answer of `/v1/gpus`. No I/O.

Text that users chose never reaches the terminal as it is: it is cleaned, and rich's markup is not used.
"""

from __future__ import annotations

import time as clock
from collections import Counter
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from controller.api.messages import GpusMessage
from controller.reports.text import clean
from controller.reports.top.gpus import Scene, gpus_grid, nodes_grid, use_of
from controller.reports.top.grid import Block, Line, TextBlock, draw
from controller.reports.top.jobs import jobs_grid
from controller.reports.top.view import DIM, UNICODE, WARNING, Glyphs, Order, job_colors, ordered

STALE_SECONDS = 15.0
MAX_PROBLEMS = 3
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
    """The picture: head, body (scrolled), foot. What it found out while it was drawn bounds the scrolling."""

    def __init__(self, answer: GpusMessage | None, view: View) -> None:
        self._answer = answer
        self._view = view
        self.body_rows = 0
        self.shown_rows = 0
        self.compact = False
        self._start = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = self._view
        head = draw(console, options, self._head())
        blocks = self._blocks(options.max_width)
        self.body_rows = room = sum(block.height for block in blocks)
        if view.height is not None:
            room = max(_MIN_BODY_ROWS, view.height - len(head) - 1)
            self._start = max(0, min(view.scroll, self.body_rows - room))
        self.shown_rows = room
        body: list[Line] = []
        top = 0
        for block in blocks:
            start, stop = self._start - top, self._start + room - top
            if start < block.height and stop > 0:
                body += block.lines(console, options, max(0, start), min(block.height, stop))
            top += block.height
        foot: list[Line] = []
        if view.height is not None:
            body += [[] for _ in range(room - len(body))]
            foot = draw(console, options, self._foot())
        rows = head + body + foot
        for index, row in enumerate(rows):
            yield from row
            if index < len(rows) - 1 or view.height is None:
                yield Segment.line()

    def _head(self) -> RenderableType:
        view, answer = self._view, self._answer
        lines: list[Text] = []
        problems = [view.trouble] if view.trouble else []
        if answer is not None:
            lines.append(_summary(answer))
            problems += answer.problems[:MAX_PROBLEMS]
            if len(answer.problems) > MAX_PROBLEMS:
                more = len(answer.problems) - MAX_PROBLEMS
                problems.append(f"and {more} more problems: gandiva status")
            if answer.age_seconds > STALE_SECONDS:
                problems.append(
                    f"the controller has not looked at the cluster for {answer.age_seconds:.0f} s"
                )
        lines += [Text(f"{view.glyphs.broken} {clean(problem)}", style=WARNING) for problem in problems]
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

    def _blocks(self, columns: int) -> list[Block]:
        answer, view = self._answer, self._view
        if answer is None:
            return [TextBlock(Text("" if view.trouble else "Waiting for the controller"))]
        scene = Scene({job.job_id: job for job in answer.jobs}, job_colors(answer.jobs), view.glyphs)
        compact = view.compact
        if compact is None:
            gpus = sum(len(node.gpus) for node in answer.nodes)
            compact = view.height is not None and gpus > view.height // 2
        self.compact = compact
        blocks: list[Block] = []
        if not answer.nodes:
            words = "Slurm has no GPU nodes for Gandiva (feature gandiva_<model>)."
            blocks.append(TextBlock(Text(words, style=DIM)))
        else:
            blocks.append(nodes_grid(answer.nodes, scene) if compact else gpus_grid(answer.nodes, scene))
        blocks.append(TextBlock(Text()))
        jobs = [job for job in answer.jobs if view.user is None or job.user == view.user]
        if jobs:
            in_order = ordered(jobs, view.order, answer.time)
            blocks.append(jobs_grid(in_order, answer.time, columns, scene))
        else:
            whose = f" of {clean(view.user)}" if view.user else ""
            blocks.append(TextBlock(Text(f"No Gandiva jobs{whose}.", style=DIM)))
        return blocks


def _summary(answer: GpusMessage) -> Text:
    uses: Counter[str] = Counter()
    for node in answer.nodes:
        uses.update(use_of(gpu, node) for gpu in node.gpus)
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
