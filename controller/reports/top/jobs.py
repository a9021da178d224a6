# SPDX-License-Identifier: GPL-2.0-or-later
"""The lower part of the live view: the jobs, their share of time on GPUs, and why they wait."""

from collections.abc import Sequence

from rich.text import Text

from controller.api.messages import LiveJobMessage
from controller.model import Verdict
from controller.reports import units
from controller.reports.text import clean, gpu_list, ranges, split_gpu, width
from controller.reports.top.grid import Column, Grid, one_line
from controller.reports.top.view import BAR, DIM, WARNING, Context, Glyphs, Order, bar, job_share, phase_words

WIDE = 120
"""From this width on reasons have room in the table; below it they get a line of their own."""
_STYLES = {"stuck": WARNING, "unknown": WARNING}
_COLUMNS = (Order.NUMBER, Order.NAME, Order.USER, Order.GPUS, Order.WEIGHT, Order.STATE, Order.SHARE)


def jobs_grid(jobs: Sequence[LiveJobMessage], context: Context, columns: int) -> Grid[LiveJobMessage]:
    """A line per job, in the order given, which the view names; user by user with a line above each."""
    view, now, glyphs = context.view, context.now, context.view.glyphs
    wide = columns >= WIDE
    firsts = {job.user: job.job_id for job in reversed(jobs)} if view.by_user else {}
    entries: list[LiveJobMessage | Text] = []
    for job in jobs:
        if firsts.get(job.user) == job.job_id:
            entries.append(_of_user([one for one in jobs if one.user == job.user]))
        entries.append(job)
        if job.reason and not wide and not job.running_on:
            entries.append(one_line(f"  {glyphs.because} {clean(job.reason)}", DIM))

    def colored(job: LiveJobMessage, text: str) -> Text:
        return Text(text, style=context.colors.get(job.job_id, ""))

    ids = max([5] + [len(str(job.job_id)) for job in jobs])
    users = min(9, max([4] + [width(clean(job.user)) for job in jobs]))
    weights = min(5, max([2] + [len(f"{job.weight:g}") for job in jobs]))
    where, room = ("Where, or why not", 6) if wide else ("Where", 3)
    shown: list[Column[LiveJobMessage]] = [
        ("JobID", {"width": ids}, lambda j: colored(j, str(j.job_id))),
        ("Name", {"ratio": 3}, lambda j: colored(j, clean(j.name))),
        ("User", {"width": users}, lambda j: Text(clean(j.user))),
        ("GPUs", {"justify": "right", "width": 4}, lambda j: Text(str(j.gpus))),
        ("Wt", {"justify": "right", "width": weights}, lambda j: Text(f"{j.weight:g}")),
        ("State", {"width": 12}, lambda j: Text(phase_words(j.phase, glyphs), _STYLES.get(j.phase, ""))),
        ("Time on GPUs", {"width": BAR + 5}, lambda j: _time_on_gpus(j, now, glyphs)),
        (where, {"ratio": room}, lambda j: Text(_where_or_why(j, wide))),
    ]
    if view.keys:
        # Text, not an arrow: the narrow columns have no room for one.
        shown[_COLUMNS.index(view.order)][1]["header_style"] = "bold underline"
    return Grid(entries, shown, next((job for job in jobs if job.job_id == view.selected), None))


def _of_user(jobs: Sequence[LiveJobMessage]) -> Text:
    gpus = sum(len(job.running_on) for job in jobs)
    hours = sum(job.gpu_seconds for job in jobs) / 3600
    words = f"{clean(jobs[0].user)}: {units.several(len(jobs), 'job')}, {units.several(gpus, 'GPU')} in use"
    return one_line(f"{words}, {hours:.1f} GPU hours so far", "bold")


def _time_on_gpus(job: LiveJobMessage, now: float, glyphs: Glyphs) -> Text:
    share = job_share(job, now)
    if share is None:
        return Text(f"waits {_short(now - job.submit_time)}", style=DIM)
    return Text(f"{bar(share, BAR, glyphs)} {100 * share:3.0f}%")


def _short(seconds: float) -> str:
    """`42s`, `12m`, `3h`, `2d`: fits its column."""
    seconds = max(0.0, seconds)
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{letter}"
    return f"{seconds:.0f}s"


def _where_or_why(job: LiveJobMessage, wide: bool) -> str:
    if job.running_on:
        beside = f" with {','.join(map(str, job.shares_with))}" if job.shares_with else ""
        switching = " (switching)" if job.busy and wide and job.phase == "running" else ""
        return _short_gpus(job.running_on) + beside + _changed(job) + switching
    if job.reason and wide:
        return clean(job.reason)
    return f"next {_short_gpus(job.binding)}" if job.binding else ""


def _changed(job: LiveJobMessage) -> str:
    """What moves have made of its size or company, and what that gains."""
    resized = 0 < job.asked_gpus != job.gpus
    words = [f"{job.asked_gpus} asked"] if resized else []
    if job.move == ("pack" if job.shares_with else "grow" if resized else ""):
        words += ["on trial"] if job.verdict == Verdict.TRIED.value else []
        words += [units.gain(job.gain)] if job.gain is not None else []
    return f" ({', '.join(words)})" if words else ""


def _short_gpus(names: Sequence[str]) -> str:
    """`n1:0-3 n2:0-3`; for a gang over more nodes `n1:0-3 +7 nodes`."""
    nodes = list(dict.fromkeys(split_gpu(name).node for name in names))
    if len(nodes) <= 2:
        return clean(gpu_list(names))
    first = ranges(gpu.ordinal for gpu in map(split_gpu, names) if gpu.node == nodes[0])
    return clean(f"{nodes[0]}:{first} +{len(nodes) - 1} nodes")
