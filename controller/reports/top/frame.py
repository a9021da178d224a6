# SPDX-License-Identifier: GPL-2.0-or-later
"""One picture of the live view, drawn from one answer of `/v1/gpus`. No I/O.

Text from users is cleaned before it reaches the terminal, and rich's markup is not used.
"""

import time as clock
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from controller.api.messages import GpusMessage, LiveJobMessage
from controller.reports.text import clean
from controller.reports.top import KEYS
from controller.reports.top.detail import Detail
from controller.reports.top.detail import lines as detail_lines
from controller.reports.top.gpus import gpus_grid, nodes_grid
from controller.reports.top.grid import Grid, Line, draw, one_line
from controller.reports.top.jobs import jobs_grid
from controller.reports.top.view import DIM, RANK, WARNING, Context, Order, Page, View, job_colors, job_share

STALE_SECONDS = 15.0
MAX_PROBLEMS = 3
_MIN_BODY_ROWS = 3
HELP = f"""\
Keys

{KEYS}

Signs

  {{running}} on its GPUs   {{waiting}} off them, waits for its turn   {{queued}} not started
  {{idle}} idle          {{ordinary}} an ordinary job              {{broken}} a problem

Nothing here changes a job: {{how_to_change}}."""


class Frame:
    """The picture: head, scrolled body, foot. After drawing, its attributes bound the scrolling."""

    def __init__(self, answer: GpusMessage | None, view: View) -> None:
        self._answer = answer
        self._view = view
        self.body_rows = 0
        self.shown_rows = 0
        self.compact = False
        self.start = 0
        self.job_lines: list[tuple[int, int]] = []
        """The jobs in their order, each with its line in the body."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = self._view
        head = draw(console, options, self._head())
        blocks = self._blocks(options.max_width)
        self.body_rows = room = sum(block.height for block in blocks)
        if view.height is not None:
            room = max(_MIN_BODY_ROWS, view.height - len(head) - 1)
            self.start = max(0, min(self._following(room), self.body_rows - room))
        self.shown_rows = room
        body: list[Line] = []
        top = 0
        for block in blocks:
            start, stop = self.start - top, self.start + room - top
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

    def _following(self, room: int) -> int:
        """The first line to show, so that the chosen job is seen."""
        start = self._view.scroll
        line = dict(self.job_lines).get(self._view.selected) if self._view.selected is not None else None
        if self._view.page is not Page.JOBS or line is None:
            return start
        return max(line - room + 2, min(start, line - 1))

    def _head(self) -> RenderableType:
        view, answer = self._view, self._answer
        lines: list[Text] = []
        problems = [view.problem] if view.problem else []
        if answer is not None:
            lines.append(_summary(answer))
            problems += answer.problems[:MAX_PROBLEMS]
            if len(answer.problems) > MAX_PROBLEMS:
                more = len(answer.problems) - MAX_PROBLEMS
                problems.append(f"and {more} more problems: gandiva status{view.words.options}")
            if answer.age_seconds > STALE_SECONDS:
                problems.append(f"the controller has not observed the cluster for {answer.age_seconds:.0f} s")
        lines += [Text(f"{view.glyphs.broken} {clean(problem)}", style=WARNING) for problem in problems]
        lines.append(Text())
        return Group(*lines)

    def _foot(self) -> RenderableType:
        view = self._view
        parts = ["Ctrl-C quits"]
        if view.typing:
            parts = [f"/{clean(view.filter)}_", "Enter keeps it", "Esc drops it"]
        elif view.keys and view.page is not Page.JOBS:
            parts = ["q back", "arrows scroll"]
        elif view.keys:
            parts = [
                "q quit",
                "? help",
                "p go on (PAUSED)" if view.paused else f"every {view.interval_seconds:g} s",
                f"s sort ({view.order.value}{', reversed' if view.reverse else ''})",
                f"/ {clean(view.filter)}" if view.filter else "/ find",
                "Enter explain" if view.selected is not None else "arrows choose",
                f"u jobs of ({clean(view.user) if view.user else 'all'})",
            ]
        if self.body_rows > self.shown_rows:
            last = min(self.body_rows, self.start + self.shown_rows)
            parts.append(f"{self.start + 1}-{last} of {self.body_rows}")
        return Text("  ".join(parts), style="reverse", no_wrap=True, overflow="ellipsis")

    def _blocks(self, columns: int) -> list[Grid[Any]]:
        answer, view = self._answer, self._view
        if view.page is Page.HELP:
            return [
                _texts(
                    HELP.format(how_to_change=view.words.how_to_change, **asdict(view.glyphs)).splitlines()
                )
            ]
        if view.page is Page.DETAIL:
            detail = view.detail
            if detail is None or detail.job_id != view.selected:
                detail = Detail(view.selected or 0)
            return [_texts(detail_lines(detail, columns, view.words))]
        if answer is None:
            return [_texts(["" if view.problem else "Waiting for the controller"])]
        known = {job.job_id: job for job in answer.jobs}
        context = Context(known, job_colors(answer.jobs), answer.time, view)
        compact = view.compact
        if compact is None:
            gpus = sum(len(node.gpus) for node in answer.nodes)
            compact = view.height is not None and gpus > view.height // 2
        self.compact = compact
        upper: Grid[Any]
        if not answer.nodes:
            upper = _texts([view.words.no_nodes], DIM)
        elif compact:
            upper = nodes_grid(answer.nodes, context)
        else:
            upper = gpus_grid(answer.nodes, context, columns)
        jobs = [job for job in answer.jobs if view.user is None or job.user == view.user]
        jobs = [job for job in jobs if matches(job, view.filter)]
        if not jobs:
            whose = f" of {clean(view.user)}" if view.user else ""
            which = f" with {clean(view.filter)!r}" if view.filter else ""
            return [upper, _texts(["", f"No Gandiva jobs{whose}{which}."], DIM)]
        jobs = ordered(jobs, view.order, answer.time, reverse=view.reverse, by_user=view.by_user)
        listed = jobs_grid(jobs, context, columns)
        first = upper.height + 1 + listed.header
        self.job_lines = [
            (one.job_id, line) for line, one in enumerate(listed.entries, first) if not isinstance(one, Text)
        ]
        return [upper, _texts([""]), listed]


def _texts(lines: Iterable[str], style: str = "") -> Grid[Text]:
    return Grid([one_line(line, style) for line in lines])


def _summary(answer: GpusMessage) -> Text:
    uses = answer.uses()
    phases = Counter(job.phase for job in answer.jobs)
    on = sum(phases[phase] for phase in ("running", "suspending", "resuming", "starting"))
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
    noun = "job " if len(answer.jobs) == 1 else "jobs"
    text.append(f"\n{len(answer.jobs):24} {noun}  ", style="bold").append(", ".join(jobs))
    return text


def matches(job: LiveJobMessage, text: str) -> bool:
    """Whether a job has the text that was typed after `/`."""
    word = text.strip().lower()
    fields = (str(job.job_id), job.user, job.name, job.phase, job.partition, job.account)
    return any(word in field.lower() for field in fields)


def ordered(
    jobs: Iterable[LiveJobMessage], order: Order, now: float, *, reverse: bool = False, by_user: bool = False
) -> list[LiveJobMessage]:
    """The list of jobs in the order asked for; by number among equals. `by_user`: user after user."""
    keys: dict[Order, Callable[[LiveJobMessage], float | str]] = {
        Order.STATE: lambda job: RANK.get(job.phase, len(RANK)),
        Order.SHARE: lambda job: -(job_share(job, now) or 0.0),
        Order.USER: lambda job: job.user,
        Order.NUMBER: lambda job: job.job_id,
        Order.NAME: lambda job: job.name,
        Order.GPUS: lambda job: -job.gpus,
        Order.WEIGHT: lambda job: -job.weight,
    }
    found = sorted(jobs, key=lambda job: job.job_id)
    found.sort(key=keys[order], reverse=reverse)
    if by_user:
        found.sort(key=lambda job: job.user)
    return found
