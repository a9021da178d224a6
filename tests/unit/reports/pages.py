# SPDX-License-Identifier: GPL-2.0-or-later
"""Contents of pages for tests: small ones, hostile ones, and one the size of a real site."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from controller.api.messages import GpuMessage, GpusMessage, JobMessage, NodeMessage, TimelineSliceMessage
from controller.reports.html.page import Contents
from controller.reports.row import Row

NOW = 1_760_000_000.0
HOSTILE = (
    "</script><script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "\"><svg onload=document.title='pwned'>",
    "<!--<script>",
    "';document.title='pwned';//",
    "@SCRIPT@ @DATA@ @STYLE@",
    "\u2028line\u2029 \u202eevil \x1b[2J &lt;b&gt;",
    "__proto__",
)


def job(job_id: int, **changes: Any) -> JobMessage:
    """A job that has run since 600 s."""
    values: dict[str, Any] = {
        "job_id": job_id, "user": "alice", "name": f"train-{job_id}", "state": "RUNNING", "gpus": 1,
        "submit_time": NOW - 660, "start_time": NOW - 600, "run_seconds": 300.0, "gpu_seconds": 300.0,
        "slices": 1, "reason": "its slice is over", **changes,
    }  # fmt: skip
    return JobMessage(**values)


def piece(job_id: int, start: float, end: float | None, *gpus: str, reason: str = "its slice is over") -> Any:
    """A slice; times in seconds before NOW."""
    stop = None if end is None else NOW - end
    return TimelineSliceMessage(
        job_id=job_id, start=NOW - start, end=stop, gpus=list(gpus), reason="" if end is None else reason
    )


def contents(jobs: Sequence[JobMessage], slices: Sequence[TimelineSliceMessage], **changes: Any) -> Contents:
    """A page of the last 1,000 s."""
    rows = [Row(one, NOW) for one in jobs]
    values: dict[str, Any] = {"gpus": None, "start": NOW - 1000, "end": NOW, "now": NOW, **changes}
    return Contents(rows, slices, **values)


def hostile() -> Contents:
    """Whatever users, nodes and Slurm can name is a piece of markup or script."""
    jobs = [
        job(n, name=text, user=text, state=text, reason=text, account=text)
        for n, text in enumerate(HOSTILE, start=1)
    ]
    slices = [
        piece(n, 1000 - 100 * n, 950 - 100 * n, f"{text.replace(' ', '')}:0", reason=text)
        for n, text in enumerate(HOSTILE, start=1)
    ]
    return contents(jobs, slices, notices=list(HOSTILE))


def big(nodes: int = 64, slices: int = 100_000) -> Contents:
    """A day of time-slicing on servers of eight GPUs, two to four jobs in turn on every pair of GPUs."""
    draw = random.Random(1)
    start = NOW - 86_400
    live = GpusMessage(
        time=NOW,
        nodes=[
            NodeMessage(
                name=f"gpu{node:03d}",
                available=True,
                gpus=[GpuMessage(ordinal=n, model="a100" if node < 48 else "h100") for n in range(8)],
            )
            for node in range(nodes)
        ],
    )
    each = slices // (nodes * 4)
    quantum = 84_000 / each
    jobs: dict[int, dict[str, Any]] = {}
    pieces: list[TimelineSliceMessage] = []

    def new_job(gpus: int) -> int:
        jobs[1000 + len(jobs)] = {"user": f"user{draw.randrange(25)}", "gpus": gpus, "slices": 0, "run": 0.0}
        return 999 + len(jobs)

    for node in range(nodes):
        for pair in range(4):
            size = draw.choice((1, 2))
            names = [f"gpu{node:03d}:{2 * pair + n}" for n in range(size)]
            turn = [new_job(size) for _ in range(draw.choice((2, 3, 4)))]
            time = start + draw.random() * 1500
            for number in range(each):
                place = number % len(turn)
                if draw.random() < 0.01:
                    turn[place] = new_job(size)
                one, seconds = jobs[turn[place]], quantum * draw.uniform(0.6, 1.35)
                pieces.append(
                    TimelineSliceMessage(
                        job_id=turn[place],
                        start=time,
                        end=time + seconds,
                        gpus=names,
                        reason="its slice is over",
                    )
                )
                one.setdefault("start", time)
                one.update(end=time + seconds, slices=one["slices"] + 1, run=one["run"] + seconds)
                time += seconds + 0.9
    messages = [
        job(
            number, user=one["user"], name=f"train-{number % 97}", state="COMPLETED", gpus=one["gpus"],
            submit_time=one.get("start", NOW) - draw.expovariate(1 / 900), start_time=one.get("start"),
            end_time=one.get("end"), run_seconds=one["run"], gpu_seconds=one["run"] * one["gpus"],
            slices=one["slices"], suspends=max(0, one["slices"] - 1), step_seconds=0.17,
        )
        for number, one in jobs.items()
    ]  # fmt: skip
    pieces.sort(key=lambda one: one.start)
    return contents(messages, pieces, gpus=live, start=start)
