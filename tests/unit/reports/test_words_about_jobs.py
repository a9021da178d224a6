# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva explain`, `gandiva status` and `gandiva top --once`: what people read."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from controller.api.messages import (
    DecisionMessage,
    EventMessage,
    ExplainMessage,
    GpuMessage,
    GpusMessage,
    JobMessage,
    LiveJobMessage,
    NodeMessage,
    SliceMessage,
    StatusMessage,
)
from controller.cli.status import status_lines
from controller.model import Phase
from controller.reports.explain import explain
from controller.reports.text import width
from controller.reports.top.frame import Frame, ordered
from controller.reports.top.screen import _keys_in
from controller.reports.top.view import ASCII, UNICODE, Order, View, bar, job_share

NOW = 10_000.0
ROOT = Path(__file__).resolve().parents[3]
SHOWN = {Phase.YIELDED: "waiting", Phase.COMPLETING: "ending", Phase.INELIGIBLE: "not yet"}
"""Words of the live view that are not the phases themselves."""
EVIL = "\x1b[2J[bold]evil[/bold]\n"


def live(job_id: int = 7, **changes: Any) -> LiveJobMessage:
    values: dict[str, Any] = {
        "job_id": job_id,
        "user": "alice",
        "name": "train",
        "phase": "running",
        "gpus": 1,
        "binding": ["n1:0", "n1:1"],
        "running_on": ["n1:0"],
        "submit_time": NOW - 1000,
        "start_time": NOW - 800,
        "run_seconds": 400.0,
        **changes,
    }
    return LiveJobMessage(**values)


SUSPENDED: dict[str, Any] = {"phase": "suspended", "running_on": [], "reason": "waits for its turn behind 7"}
QUEUED: dict[str, Any] = {
    "phase": "queued", "running_on": [], "binding": [], "start_time": None,
    "reason": "no node has 4 free GPUs",
}  # fmt: skip


def message(*jobs: LiveJobMessage, nodes: int = 1, **gpu: Any) -> GpusMessage:
    running = {name: job.job_id for job in jobs for name in job.running_on}
    waiting = {n: [j.job_id for j in jobs if n in j.binding and not j.running_on] for n in ("n1:0", "n1:1")}
    return GpusMessage(
        time=NOW,
        nodes=[
            NodeMessage(
                name=f"n{number}",
                available=True,
                gpus=[
                    GpuMessage(
                        ordinal=ordinal,
                        model="a100",
                        memory_bytes=40 << 30,
                        memory_used_bytes=10 << 30,
                        utilization_fraction=0.5,
                        running=[running[name]] if (name := f"n{number}:{ordinal}") in running else [],
                        waiting=waiting.get(name, []),
                        **gpu,
                    )
                    for ordinal in (0, 1)
                ],
            )
            for number in range(1, nodes + 1)
        ],
        jobs=list(jobs),
    )


def draw(answer: GpusMessage | None, columns: int = 80, **view: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=columns, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(Frame(answer, View(**view)), end="")
    return capture.get().split("\n")


# -- top ---------------------------------------------------------------------------------------


def test_each_gpu_shows_its_job_load_memory_and_who_waits() -> None:
    lines = draw(message(live(7), live(8, **SUSPENDED)))
    (first,) = [line for line in lines if line.startswith("n1:0")]
    assert (
        "50%" in first and "10.0/40G" in first and "▶ 7 alice train" in first and "8" in first.split("◀")[1]
    )
    (second,) = [line for line in lines if line.startswith("n1:1")]
    assert "idle" in second


def test_jobs_that_share_gpus_say_with_which() -> None:
    lines = draw(message(live(7, shares_with=[8]), live(8, shares_with=[7])), columns=100)
    job = next(line for line in lines if line.startswith("7 "))
    assert job.rstrip().endswith("n1:0 with 8")
    answer = ExplainMessage(time=NOW, live=live(7, shares_with=[8, 9]))
    assert "  shares with jobs 8, 9, on the same GPUs" in list(explain(answer, rows=5, columns=80))


def test_jobs_show_their_share_and_why_they_wait() -> None:
    lines = draw(message(live(7), live(8, **SUSPENDED), live(9, **QUEUED)))
    job = next(line for line in lines if line.startswith("7 "))
    assert "▶ running" in job and "████░░░░  50%" in job and job.rstrip().endswith("n1:0")
    assert any("└ waits for its turn behind 7" in line for line in lines)
    queued = next(index for index, line in enumerate(lines) if line.startswith("9 "))
    assert "waits 16m" in lines[queued] and "no node has 4 free GPUs" in lines[queued + 1]


def test_a_wide_screen_has_room_for_reasons_in_the_table() -> None:
    lines = draw(message(live(8, **SUSPENDED)), columns=150)
    job = next(line for line in lines if line.startswith("8 "))
    assert "waits for its turn behind 7" in job
    assert not any("└" in line and "waits" in line for line in lines)


@pytest.mark.parametrize("columns", [40, 80, 132, 200])
def test_no_line_is_wider_than_the_screen(columns: int) -> None:
    jobs = [live(1000 + n, name="训练任务" * 10, user="a" * 30) for n in range(3)] + [live(9, **QUEUED)]
    for line in draw(message(*jobs, nodes=3), columns, height=30):
        assert width(line) <= columns


def test_hostile_names_reach_the_screen_as_plain_text() -> None:
    lines = draw(message(live(7, name=EVIL, user=EVIL), live(8, **{**SUSPENDED, "reason": EVIL})), 160)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "?[2J[bold]evil[/bold]?" in text


def test_an_unavailable_node_is_one_line_with_the_reason() -> None:
    answer = message()
    node = answer.nodes[0].model_copy(update={"available": False, "reason": "DOWN not responding"})
    lines = draw(answer.model_copy(update={"nodes": [node]}))
    assert [line for line in lines if line.startswith("n1:0-1") and "✗ DOWN not responding" in line]


def test_ordinary_and_unhealthy_gpus() -> None:
    assert any("■ job 55 (ordinary)" in line for line in draw(message(ordinary_job=55)))
    assert any("✗ not usable" in line for line in draw(message(healthy=False)))


def test_a_small_screen_has_one_line_per_node_and_scrolls() -> None:
    answer = message(live(7), nodes=30)
    lines = draw(answer, height=20)
    assert len(lines) == 20
    assert any(line.startswith("n1 ") and "7" in line for line in lines)
    assert "1-16 of" in lines[-1]
    assert not any(line.startswith("n30") for line in lines)
    assert any(line.startswith("n30") for line in draw(answer, height=20, scroll=10**6)) or any(
        line.startswith("7 ") for line in draw(answer, height=20, scroll=10**6)
    )


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("compact", [True, False])
def test_scrolling_shows_every_line_where_it_belongs(columns: int, compact: bool) -> None:
    jobs = [live(n, name="n" * n, user="u" * (n % 12)) for n in range(1, 8)]
    jobs += [live(100 + n, **(SUSPENDED if n % 2 else QUEUED)) for n in range(6)]
    answer = message(*jobs, nodes=9)
    head, whole = 3, [line.rstrip() for line in draw(answer, columns, compact=compact)][:-1]
    for scroll in range(len(whole) - head):
        shown = [line.rstrip() for line in draw(answer, columns, compact=compact, height=12, scroll=scroll)]
        first = min(scroll, len(whole) - head - 8)
        assert shown[:head] == whole[:head]
        assert shown[head:-1] == whole[head + first : head + first + 8]


def test_trouble_and_old_data_are_said() -> None:
    assert any("cannot reach" in line for line in draw(message(), problem="cannot reach the controller"))
    old = message().model_copy(update={"age_seconds": 99.0})
    assert any("has not observed the cluster for 99 s" in line for line in draw(old))
    ill = message().model_copy(update={"problems": ["Slurm does not answer", EVIL, "c", "d", "e"]})
    lines = draw(ill)
    assert "✗ Slurm does not answer" in [line.rstrip() for line in lines]
    assert any("and 2 more problems: gandiva status" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert any("Waiting for the controller" in line for line in draw(None))


def test_without_nodes_and_jobs() -> None:
    lines = draw(GpusMessage(time=NOW))
    assert any("no GPU nodes" in line for line in lines)
    assert any("No Gandiva jobs." in line for line in lines)


def test_one_users_jobs() -> None:
    lines = draw(message(live(7), live(8, user="bob", **SUSPENDED)), user="bob")
    assert not any(line.startswith("7 ") for line in lines)
    assert any(line.startswith("8 ") for line in lines)


@pytest.mark.parametrize("phase", list(Phase))
def test_each_phase_has_its_word_everywhere(phase: Phase) -> None:
    """No view says of a job that is being switched that it is stuck, or something for administrators."""
    shown = live(7, phase=phase.value, busy=True)
    (row,) = (line for line in draw(message(shown)) if line.startswith("7 "))
    word = row[row.index(SHOWN.get(phase, phase.value)) - 2 :].split("  ")[0]
    said = " ".join(explain(ExplainMessage(time=NOW, live=shown), rows=3, columns=200))
    broken = phase in (Phase.STUCK, Phase.UNKNOWN)
    assert word.startswith(UNICODE.broken) is broken is ("administrators" in said)
    assert "stuck" not in word + said or phase is Phase.STUCK
    assert f"(train, alice) {phase.value} " not in said, "a sentence, not the bare word"
    for page in ("docs/reports.md", "docs/man/gandiva-report.1"):
        assert re.search(rf"\b{phase.value}\b", (ROOT / page).read_text()), page
    assert f"\n.B {phase.value}\n" in (ROOT / "docs/man/gandiva-explain.1").read_text()


def test_ascii_terminals_get_ascii() -> None:
    assert all(
        line.isascii() for line in draw(message(live(7), live(8, **SUSPENDED), ordinary_job=3), glyphs=ASCII)
    )


def test_bars() -> None:
    assert bar(0.5, 8, UNICODE) == "████░░░░"
    assert bar(7.0, 2, UNICODE) == "██"


def test_orders() -> None:
    jobs = [
        live(3, user="bob", run_seconds=10.0),
        live(2, **SUSPENDED),
        live(1, **QUEUED),
        live(4, phase="stuck"),
        live(5, phase="suspending"),
    ]
    numbers = {order: [job.job_id for job in ordered(jobs, order, NOW)] for order in Order}
    assert numbers[Order.STATE] == [4, 3, 5, 2, 1]
    assert numbers[Order.NUMBER] == [1, 2, 3, 4, 5]
    assert numbers[Order.USER] == [1, 2, 4, 5, 3]
    assert numbers[Order.SHARE][-1] == 1
    order = Order.STATE
    for _ in Order:
        order = order.following()
    assert order is Order.STATE


def test_shares_stay_within_bounds() -> None:
    assert job_share(live(run_seconds=9e9), NOW) == 1.0
    assert job_share(live(start_time=NOW + 5), NOW) is None
    assert job_share(live(**QUEUED), NOW) is None


@pytest.mark.parametrize(
    ("pressed", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A", ["up"]),
        (b"\x1bOB", ["down"]),
        (b"\x1b[5~s\x1b[Bu", ["page up", "s", "down", "u"]),
        (b"\x1b[99;99~", []),
        (b"\xff\xfe", []),
        (b"", []),
    ],
)
def test_keys(pressed: bytes, keys: list[str]) -> None:
    assert list(_keys_in(pressed)) == keys


# -- explain -----------------------------------------------------------------------------------


def job(**changes: Any) -> JobMessage:
    values: dict[str, Any] = {
        "job_id": 8,
        "user": "alice",
        "name": "train",
        "state": "RUNNING",
        "gpus": 1,
        "submit_time": NOW - 1000,
        "start_time": NOW - 800,
        "run_seconds": 400.0,
        "slices": 2,
        "suspends": 1,
        **changes,
    }
    return JobMessage(**values)


def told(answer: ExplainMessage, columns: int = 80, rows: int = 8) -> list[str]:
    return list(explain(answer, rows=rows, columns=columns))


def test_a_job_without_a_place_is_told_who_has_gpus_and_was_not_started_yet() -> None:
    tried = live(7, user="bob", phase="starting", running_on=["n1:0"])
    lines = told(ExplainMessage(time=NOW, job=job(), live=live(8, **QUEUED), rivals=[tried]))
    at = lines.index("Have GPUs, and Slurm has not started them yet")
    assert lines[at + 1].split()[0] == "7" and lines[at + 1].endswith("n1:0")


def test_a_waiting_job_is_explained_by_its_reason_and_its_rivals() -> None:
    lines = told(ExplainMessage(time=NOW, job=job(), live=live(8, **SUSPENDED), rivals=[live(7, user="bob")]))
    assert lines[0] == "Job 8 (train, alice) is suspended and waits for its turn"
    assert "  why         waits for its turn behind 7" in lines
    assert "  bound to    any 1 of n1:0-1" in lines
    assert "  has run     00:06:40 of 00:13:20 (50.0%), in 2 slices, 1 suspend, 0 moves" in lines
    rival = lines[lines.index("On its GPUs now") + 1]
    assert rival.split() == ["7", "train", "bob", "weight", "1", "n1:0"]


def test_a_job_that_is_over() -> None:
    lines = told(ExplainMessage(time=NOW, job=job(state="TIMEOUT", end_time=NOW - 5)))
    assert lines[0] == "Job 8 (train, alice) is over: TIMEOUT"


def test_a_limited_weight_says_what_was_asked_for_and_whose_limit_it_is() -> None:
    limited = job(weight=4.0, request={"weight_asked": 100.0, "weight_limit": "account ml"})
    lines = told(ExplainMessage(time=NOW, job=limited, live=live(weight=4.0)))
    assert "  asked for   1 GPU, weight 100, counted as 4 (limit of account ml)" in lines


def test_a_job_only_the_loop_knows() -> None:
    lines = told(ExplainMessage(time=NOW, live=live(9, **QUEUED)))
    assert lines[0] == "Job 9 (train, alice) waits in the queue"


def test_the_last_entries_are_shown_wrapped_and_clean() -> None:
    answer = ExplainMessage(
        time=NOW,
        job=job(),
        decisions=[
            DecisionMessage(time=NOW, action="place", reason=f"reason {n} " + "word " * 30) for n in range(9)
        ],
        slices=[
            SliceMessage(start=NOW - 60, end=NOW - 30, gpus=["n1:0"], reason=EVIL),
            SliceMessage(start=NOW - 10, gpus=["n1:1"]),
        ],
        events=[EventMessage(time=NOW, kind="suspended", message="left 0 bytes", node="n1")],
    )
    lines = told(answer, columns=60, rows=2)
    assert not any("reason 6" in line for line in lines) and any("reason 7" in line for line in lines)
    assert any("00:00:30  n1:0  ?[2J[bold]evil[/bold]?" in line for line in told(answer, columns=80))
    assert any("00:00:10  n1:1  still there" in line for line in told(answer, columns=80))
    assert all(len(line) <= 60 for line in lines)
    assert "\x1b" not in "\n".join(lines)


# -- status ------------------------------------------------------------------------------------


def test_status_says_what_is_wrong() -> None:
    status = StatusMessage(
        time=NOW,
        version="0.2.0",
        policy="gandiva",
        started=NOW - 90061,
        healthy=False,
        problems=["Slurm does not answer", EVIL],
        jobs_by_phase={"running": 2, "queued": 3},
        events=[EventMessage(time=NOW, kind="node_lost", message="no answer", node="n2", job_id=5)],
    )
    lines = list(status_lines(status, "http://ctl:6822"))
    assert lines[0] == "The controller at http://ctl:6822 has problems."
    assert "  problem     Slurm does not answer" in lines
    assert "  up for      1-01:01:01, 0 cycles of the loop" in lines
    assert "  jobs        5: 3 queued, 2 running" in lines
    assert lines[-1].endswith("node_lost: n2: job 5: no answer")
    assert "\x1b" not in "\n".join(lines)


def test_explain_says_whether_a_job_may_migrate() -> None:
    words = []
    for may, store in ((True, True), (True, False), (False, True)):
        answer = ExplainMessage(live=live(may_migrate=may, has_store=store), time=NOW)
        lines = explain(answer, rows=5, columns=100)
        words.append([line.split("migrate ")[1].strip() for line in lines if "may migrate" in line])
    assert words == [
        ["to another node, from its checkpoint store"],
        ["to another node, from its own checkpoint"],
        [],
    ]
