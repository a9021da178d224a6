# SPDX-License-Identifier: GPL-2.0-or-later
"""What the page shows, as compact JSON: indices instead of names, tenths of seconds since the page's start.

`page.js` is the only reader.
"""

from __future__ import annotations

import time as clock
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

from controller.api.messages import GpusMessage, TimelineSliceMessage
from controller.model import GpuId, natural_key
from controller.reports import units
from controller.reports.row import Row
from controller.reports.text import split_gpu

BINS = 480
"""Parts of the span in plots over time."""
MAX_LABELS = 8
"""Labels with colours of their own; the rest have one in common."""
OTHERS = "others"
WAIT_EDGES = (10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)
"""Upper edges of the classes of waiting time, in seconds; the last class has none."""
_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a page is made from."""

    rows: Sequence[Row]
    slices: Sequence[TimelineSliceMessage]
    gpus: GpusMessage | None
    """What the controller says of the GPUs now; None: only those that a slice names are known."""
    start: float
    end: float
    now: float
    notices: Sequence[str] = ()
    """What is missing, one sentence each."""


def page_data(contents: Contents) -> dict[str, Any]:
    """The data of the page, JSON-serialisable."""
    start, end = contents.start, max(contents.end, contents.start + 1.0)
    rows = contents.rows
    number = {row.job.job_id: index for index, row in enumerate(rows)}
    slices = [s for s in contents.slices if s.job_id in number]
    gpus, models = _gpus(slices, contents.gpus)
    position = {gpu: index for index, gpu in enumerate(gpus)}
    gangs, reasons = _Numbers[tuple[int, ...]](), _Numbers[str]()
    columns: dict[str, list[int]] = {"job": [], "gang": [], "from": [], "to": [], "why": []}
    for piece in slices:
        stop = min(contents.now, end) if piece.end is None else piece.end
        columns["job"].append(number[piece.job_id])
        columns["gang"].append(gangs.of(tuple(sorted(position[split_gpu(name)] for name in piece.gpus))))
        columns["from"].append(round((piece.start - start) * 10))
        columns["to"].append(round((max(piece.start, stop) - start) * 10))
        columns["why"].append(-1 if piece.end is None else reasons.of(piece.reason))
    steps = {job.job_id: job.steps_done for job in (contents.gpus.jobs if contents.gpus else ())}
    colourings = _colourings(rows, gangs.values, [models[gpu] for gpu in gpus], columns["gang"])
    return {
        "start": start,
        "end": end,
        "made": contents.now,
        "zone_seconds": clock.localtime(start).tm_gmtoff,
        "gpus": [[gpu.node, gpu.ordinal, models[gpu]] for gpu in gpus],
        "gangs": gangs.values,
        "reasons": reasons.values,
        "jobs": [_job(row, start, steps.get(row.job.job_id, 0)) for row in rows],
        "slices": columns,
        "colourings": colourings,
        "in_use": [_in_use(c, slices, columns, start, end, contents.now) for c in colourings],
        "waiting": _waiting(rows, slices, start, end, contents.now),
        "tiles": _tiles(rows, slices, len(gpus), start, min(end, contents.now), contents.now),
        "notices": list(contents.notices),
    }


class _Numbers(Generic[_K]):
    """Gives each different value a number."""

    def __init__(self) -> None:
        self.values: list[_K] = []
        self._known: dict[_K, int] = {}

    def of(self, value: _K) -> int:
        known = self._known.setdefault(value, len(self.values))
        if known == len(self.values):
            self.values.append(value)
        return known


def _gpus(
    slices: Iterable[TimelineSliceMessage], live: GpusMessage | None
) -> tuple[list[GpuId], dict[GpuId, str]]:
    """The GPUs in the order of their nodes (n2 before n10), and their models where they are known."""
    models = {split_gpu(name): "" for piece in slices for name in piece.gpus}
    for node in live.nodes if live else ():
        models.update({GpuId(node.name, gpu.ordinal): gpu.model for gpu in node.gpus})
    return sorted(models, key=lambda gpu: (natural_key(gpu.node), gpu.ordinal)), models


def _job(row: Row, start: float, steps_done: int) -> list[Any]:
    """In the order of JOB in page.js."""
    job = row.job

    def tenths(moment: float | None) -> int | None:
        return None if moment is None else round((moment - start) * 10)

    elapsed = row.elapsed
    return [
        row.job_id, job.name, job.user, row.state, job.gpus, job.weight, tenths(job.submit_time),
        tenths(job.start_time), tenths(row.end_time), round(row.waited, 1), round(job.run_seconds, 1),
        round(job.gpu_seconds, 1), round(min(1.0, job.run_seconds / elapsed), 4) if elapsed else None,
        job.slices, job.suspends, job.moves, job.step_seconds, steps_done, job.reason,
    ]  # fmt: skip


def _colourings(
    rows: Sequence[Row], gangs: Sequence[Sequence[int]], models: Sequence[str], gang_of_slice: Sequence[int]
) -> list[dict[str, Any]]:
    """Ways to colour jobs (`by` job) or gangs of GPUs (`by` gang): labels, and the label of each."""
    by_user: dict[str, float] = {}
    for row in rows:
        by_user[row.job.user] = by_user.get(row.job.user, 0.0) + row.job.gpu_seconds
    state = [row.state.split()[0] if row.state else "unknown" for row in rows]
    size = [row.job.gpus for row in rows]
    kinds = [models[gang[0]] or "unknown" if gang else "unknown" for gang in gangs]
    by_kind = Counter(kinds[gang] for gang in gang_of_slice)
    return [
        _coloured("user", "job", by_user, [row.job.user for row in rows]),
        _coloured("GPUs of the job", "job", Counter(size), size, sort=True),
        _coloured("state", "job", Counter(state), state),
        _coloured("GPU type", "gang", by_kind, kinds),
    ]


def _coloured(
    name: str, by: str, counts: Mapping[Any, float], values: Sequence[Any], *, sort: bool = False
) -> dict[str, Any]:
    ranked = sorted(counts, key=lambda value: (-counts[value], str(value)))[:MAX_LABELS]
    if sort:
        ranked.sort()
    place = {value: index for index, value in enumerate(ranked)}
    labels = [str(value) for value in ranked] + ([OTHERS] if len(counts) > len(ranked) else [])
    return {
        "name": name,
        "by": by,
        "labels": labels,
        "of": [place.get(value, len(ranked)) for value in values],
    }


def _in_use(
    colouring: Mapping[str, Any],
    slices: Sequence[TimelineSliceMessage],
    columns: Mapping[str, Sequence[int]],
    start: float,
    end: float,
    now: float,
) -> list[list[float]]:
    """GPUs in use over time, per label."""
    series = [MeanOverTime(start, end, BINS) for _ in colouring["labels"]]
    of = colouring["of"]
    for piece, index in zip(slices, columns[colouring["by"]], strict=True):
        series[of[index]].add(piece.start, now if piece.end is None else piece.end, len(piece.gpus))
    return [one.means() for one in series]


def _waiting(
    rows: Sequence[Row], slices: Sequence[TimelineSliceMessage], start: float, end: float, now: float
) -> dict[str, Any]:
    """Jobs that wait over time, for their start and for their turn; how long they waited for their start."""
    queue, turn = MeanOverTime(start, end, BINS), MeanOverTime(start, end, BINS)
    for row in rows:
        over = now if row.end_time is None else row.end_time
        begun = row.job.start_time
        queue.add(row.job.submit_time, over if begun is None else begun)
        if begun is not None:
            turn.add(begun, over)
    for piece in slices:
        turn.add(piece.start, now if piece.end is None else piece.end, -1.0)
    started = [row.waited for row in rows if row.job.start_time is not None]
    waits_on = [row.waited for row in rows if row.job.start_time is None and row.end_time is None]
    return {
        "queue": queue.means(),
        "turn": turn.means(),
        "started": classes(started),
        "waits_on": classes(waits_on),
    }


def _tiles(
    rows: Sequence[Row],
    slices: Sequence[TimelineSliceMessage],
    gpus: int,
    start: float,
    end: float,
    now: float,
) -> list[tuple[str, str, str]]:
    """The figures at the top: name, value, remark."""
    used = sum(
        max(0.0, min(end, now if s.end is None else s.end) - max(start, s.start)) * len(s.gpus)
        for s in slices
    )
    span = max(1.0, end - start)
    waits = sorted(row.waited for row in rows if row.job.start_time is not None)
    median, slow = quantile(waits, 0.5), quantile(waits, 0.95)
    waiting = sum(row.job.start_time is None and row.end_time is None for row in rows)
    unfinished = sum(row.end_time is None for row in rows)
    return [
        (
            "GPUs in use",
            f"{used / span:.1f} of {gpus}",
            units.share(used, span * gpus) + " on average" if gpus else "",
        ),
        ("GPU time", f"{used / 3600:.1f} h", "of these jobs, in this time"),
        (
            "Jobs",
            str(len(rows)),
            f"{unfinished - waiting} under way, {waiting} waiting, {len(rows) - unfinished} over",
        ),
        (
            "Suspends",
            str(sum(row.job.suspends for row in rows)),
            f"{sum(row.job.moves for row in rows)} moves",
        ),
        (
            "Wait for the start",
            units.duration(median) or "-",
            f"median; 95 % within {units.duration(slow)}" if slow is not None else "no job has started",
        ),
    ]


class MeanOverTime:
    """How many there were, on average, in each of `bins` equal parts of a span of time."""

    def __init__(self, start: float, end: float, bins: int) -> None:
        """`start` and `end` in seconds; `end` must be later."""
        self._start = start
        self._width = (end - start) / bins
        self._bins = bins
        self._parts = [0.0] * bins
        self._steps = [0.0] * (bins + 1)

    def add(self, begin: float, end: float, count: float = 1.0) -> None:
        """`count` more, from `begin` to `end` (seconds; what is outside of the span does not matter)."""
        first = max(0.0, (begin - self._start) / self._width)
        last = min(float(self._bins), (end - self._start) / self._width)
        if last <= first:
            return
        low, high = int(first), min(int(last), self._bins - 1)
        if low == high:
            self._parts[low] += count * (last - first)
            return
        self._parts[low] += count * (low + 1 - first)
        self._parts[high] += count * (last - high)
        self._steps[low + 1] += count
        self._steps[high] -= count

    def means(self) -> list[float]:
        """One number per part, with two digits."""
        whole = accumulate(self._steps[: self._bins])
        return [round(max(0.0, a + b), 2) for a, b in zip(self._parts, whole, strict=True)]


def classes(waits: Iterable[float]) -> list[int]:
    """How many waiting times (seconds) fall into each class of WAIT_EDGES, and above the last."""
    counts = [0] * (len(WAIT_EDGES) + 1)
    for wait in waits:
        counts[sum(wait >= edge for edge in WAIT_EDGES)] += 1
    return counts


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """The value that `part` (0 to 1) of a sorted list does not exceed; None of an empty one."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None
