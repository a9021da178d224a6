# SPDX-License-Identifier: GPL-2.0-or-later
"""One HTML file without external resources, which runs its own script only.

Text from users, such as job names, reaches the page as JSON in which `<` cannot occur; the script shows it as
text only, and the page's content security policy allows the one script whose digest it names. The JSON, which
`page.js` alone reads, is compact: indices instead of names, tenths of seconds since the page's start."""

import base64
import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import accumulate
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Contents:
    rows: Sequence[Row]
    slices: Sequence[TimelineSliceMessage]
    gpus: GpusMessage | None
    """What the controller says of the GPUs now; None: only those that a slice names are known."""
    start: float
    end: float
    now: float
    notices: Sequence[str] = ()
    """What is missing, one sentence each."""


def render(contents: Contents) -> str:
    folder = files(__package__)
    page, style, script = ((folder / f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    policy = f"script-src {_digest(script)}; style-src {_digest(style)}"
    page = page.replace("@POLICY@", policy).replace("@STYLE@", style).replace("@SCRIPT@", script)
    # Text from users comes last, so that nothing in it is taken for a placeholder.
    data = json.dumps(page_data(contents), separators=(",", ":"), ensure_ascii=True)
    return page.replace("@DATA@", data.replace("<", "\\u003c"))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_data(contents: Contents) -> dict[str, Any]:
    start, end, rows = contents.start, max(contents.end, contents.start + 1.0), contents.rows
    until = min(contents.now, end)
    number = {row.job.job_id: index for index, row in enumerate(rows)}
    slices = [s for s in contents.slices if s.job_id in number]
    stops = [until if s.end is None else s.end for s in slices]
    gpus, models = _gpus(slices, contents.gpus)
    position = {gpu: index for index, gpu in enumerate(gpus)}
    gangs: dict[tuple[int, ...], int] = {}
    reasons: dict[str, int] = {}
    columns: dict[str, list[int]] = {"job": [], "gang": [], "from": [], "to": [], "why": []}
    columns["part"], counts_from = parts(slices, stops)
    for piece, stop in zip(slices, stops, strict=True):
        gang = tuple(sorted(position[split_gpu(name)] for name in piece.gpus))
        columns["job"].append(number[piece.job_id])
        columns["gang"].append(gangs.setdefault(gang, len(gangs)))
        columns["from"].append(round((piece.start - start) * 10))
        columns["to"].append(round((max(piece.start, stop) - start) * 10))
        columns["why"].append(-1 if piece.end is None else reasons.setdefault(piece.reason, len(reasons)))
    steps = {job.job_id: job.steps_done for job in (contents.gpus.jobs if contents.gpus else ())}
    colourings = _colourings(rows, list(gangs), [models[gpu] for gpu in gpus], columns["gang"])
    in_use: list[list[list[float]]] = []
    queue, turn = MeanOverTime(start, end, BINS), MeanOverTime(start, end, BINS)
    for row in rows:
        over = contents.now if row.end_time is None else row.end_time
        begun = row.job.start_time
        queue.add(row.job.submit_time, over if begun is None else begun)
        if begun is not None:
            turn.add(begun, over)
    for piece, stop in zip(slices, stops, strict=True):
        turn.add(piece.start, stop, -1.0)
    for colouring in colourings:
        series = [MeanOverTime(start, end, BINS) for _ in colouring["labels"]]
        of_slices = [colouring["of"][index] for index in columns[colouring["by"]]]
        for piece, begin, stop, label in zip(slices, counts_from, stops, of_slices, strict=True):
            series[label].add(begin, stop, len(piece.gpus))
        in_use.append([one.means() for one in series])
    used = sum(
        max(0.0, min(until, stop) - max(start, begin)) * len(piece.gpus)
        for piece, begin, stop in zip(slices, counts_from, stops, strict=True)
    )
    started = [row.waited for row in rows if row.job.start_time is not None]
    waiting = [row.waited for row in rows if row.job.start_time is None and row.end_time is None]
    moments = [contents.now, start, end, *(row.job.submit_time for row in rows)]
    zones = units.zone_offsets(min(moments), max(moments))
    return {
        "start": start,
        "end": end,
        "made": contents.now,
        "zones": [[round((begin - start) * 10), seconds] for begin, seconds in zones],
        "gpus": [[gpu.node, gpu.ordinal, models[gpu]] for gpu in gpus],
        "gangs": list(gangs),
        "reasons": list(reasons),
        "jobs": [_job(row, start, steps.get(row.job.job_id, 0)) for row in rows],
        "slices": columns,
        "colourings": colourings,
        "in_use": in_use,
        "waiting": {
            "queue": queue.means(),
            "turn": turn.means(),
            "started": classes(started),
            "waits_on": classes(waiting),
        },
        "tiles": _tiles(rows, used, len(gpus), max(1.0, until - start), sorted(started), len(waiting)),
        "notices": list(contents.notices),
    }


ALONE, HOST, GUEST = 0, 1, 2
"""A slice with its GPUs to itself; one that another joins; one that joined another."""


def parts(slices: Sequence[TimelineSliceMessage], stops: Sequence[float]) -> tuple[list[int], list[float]]:
    """Which slices are packed: those that begin while another one continues on the same GPUs are guests. And
    from when each counts among the GPUs in use: a guest from when its host has left. `stops`: their ends."""
    found, begins = [ALONE] * len(slices), [piece.start for piece in slices]
    on: dict[str, int] = {}
    for index in sorted(range(len(slices)), key=lambda i: (slices[i].start, slices[i].job_id)):
        hosts = {on[gpu] for gpu in slices[index].gpus if gpu in on}
        hosts = {host for host in hosts if stops[host] > slices[index].start}
        if hosts:
            found[index], begins[index] = GUEST, max(stops[host] for host in hosts)
            for host in hosts:
                found[host] = HOST
        else:
            on.update(dict.fromkeys(slices[index].gpus, index))
    return found, begins


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

    share = row.share_fraction
    return [
        row.job_id, job.name, job.user, row.state, job.gpus, job.weight, tenths(job.submit_time),
        tenths(job.start_time), tenths(row.end_time), round(row.waited, 1), round(job.run_seconds, 1),
        round(job.gpu_seconds, 1), None if share is None else round(share, 4),
        job.slices, job.suspends, job.moves, job.step_seconds, steps_done, job.reason, row.sizes, job.packs,
        job.trials, job.gain,
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
    return {"name": name, "by": by, "labels": labels, "of": [place.get(v, len(ranked)) for v in values]}


def _tiles(
    rows: Sequence[Row], used: float, gpus: int, span: float, waits: Sequence[float], waiting: int
) -> list[tuple[str, str, str]]:
    """The figures at the top: name, value, remark. `used`: GPU seconds; `waits`: sorted."""
    median, slow = quantile(waits, 0.5), quantile(waits, 0.95)
    unfinished = sum(row.end_time is None for row in rows)
    share = units.percent(min(1.0, used / (span * gpus)), 1) + " on average" if gpus else ""
    jobs = f"{unfinished - waiting} under way, {waiting} waiting, {len(rows) - unfinished} over"
    within = f"median; 95 % within {units.duration(slow)}" if slow is not None else "no job has started"
    suspends, moves = sum(row.job.suspends for row in rows), sum(row.job.moves for row in rows)
    return [
        ("GPUs in use", f"{used / span:.1f} of {gpus}", share),
        ("GPU time", f"{used / 3600:.1f} h", "of these jobs, in this time"),
        ("Jobs", str(len(rows)), jobs),
        ("Suspends", str(suspends), f"{moves} moves"),
        ("Wait for the start", units.duration(median) or "-", within),
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
        for moment, more in ((begin, count), (end, -count)) if end > begin else ():
            place = max(0.0, (moment - self._start) / self._width)
            part = int(place)
            if part < self._bins:
                self._parts[part] += more * (part + 1 - place)
                self._steps[part + 1] += more

    def means(self) -> list[float]:
        """One number per part, with two digits."""
        whole = accumulate(self._steps[: self._bins])
        return [round(max(0.0, a + b), 2) for a, b in zip(self._parts, whole, strict=True)]


def classes(waits: Iterable[float]) -> list[int]:
    """How many waiting times (seconds) fall into each class of WAIT_EDGES, and above the last."""
    found = Counter(bisect_right(WAIT_EDGES, wait) for wait in waits)
    return [found[index] for index in range(len(WAIT_EDGES) + 1)]


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """The value that `part` (0 to 1) of a sorted list does not exceed; None of an empty one."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None
