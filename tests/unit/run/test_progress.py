# SPDX-License-Identifier: GPL-2.0-or-later
"""What `gandiva run` prints."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.cells import cell_len

from controller.cluster.port import JobState
from controller.cluster.raw import PREFIX
from controller.cluster.trial import Trial, TrialSpec
from controller.journal import Journal, JournalReader
from controller.loop.loop import Cycle
from controller.model import Phase
from controller.run import progress as module
from controller.run.command import SHELL
from controller.run.progress import MOST_LISTED, SUMMARY_SECONDS, Progress, plan, summary, table

ODD = "a\x1b[31m\nb\u202e"
CLEAN = "a?[31m?b?"


def spec(name: str = "lr=1", command: tuple[str, ...] = ("train", "a b"), **keys: Any) -> TrialSpec:
    return TrialSpec(name=name, command=command, directory="/", request=PREFIX + '{"v":1,"gpus":1}', **keys)


def trial(number: int = 1, name: str = "lr=1", **keys: Any) -> Trial:
    return Trial(number=number, spec=spec(name), submit_time=0, **keys)


def on_gpus(number: int = 1, *ordinals: int, name: str = "lr=1", **keys: Any) -> Trial:
    binding = tuple(("n", ordinal) for ordinal in ordinals)
    return trial(
        number, name, state=JobState.RUNNING, state_name="RUNNING", binding=binding, start_time=5.0, **keys
    )


def ended(number: int, state_name: str, name: str = "lr=1", **keys: Any) -> Trial:
    return trial(number, name, state=JobState.ENDED, state_name=state_name, **keys)


def cycle(*phases: Phase) -> Cycle:
    jobs = {number: SimpleNamespace(phase=phase) for number, phase in enumerate(phases)}
    return cast(Cycle, SimpleNamespace(snapshot=SimpleNamespace(jobs=jobs)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: now[0], strftime=lambda _: "11:22:33")
    )
    return now


@pytest.mark.usefixtures("clock")
def test_each_start_and_end_is_said_once() -> None:
    said: list[str] = []
    progress = Progress(said.append)
    progress.begin([on_gpus(1, 0), trial(2), trial(30)])
    for _ in range(2):
        progress.completed(cycle(), [on_gpus(2, 1, 2)], ())
    changed = [ended(1, "COMPLETED"), trial(2, restarts=1), ended(30, "FAILED", ODD, exit_code=3, reason=ODD)]
    progress.completed(cycle(), changed, ())
    progress.completed(cycle(), [on_gpus(2, 1, restarts=1)], ())
    assert said == [
        "11:22:33     2  lr=1: starts on n:1-2",
        "11:22:33     1  lr=1: completed",
        f"11:22:33    30  {CLEAN}: failed (exit status 3): {CLEAN}",
        "11:22:33     2  lr=1: starts again on n:1",
    ]


def test_a_summary_each_minute(clock: list[float]) -> None:
    said: list[str] = []
    progress = Progress(said.append)
    for seconds in (SUMMARY_SECONDS - 1, 1, 0, 1, SUMMARY_SECONDS - 1):
        clock[0] += seconds
        progress.completed(cycle(), (), [trial()])
    assert said == ["11:22:33  0 of 1 trials are over; 0 are on GPUs, 0 pause, 0 wait"] * 2


def test_the_summary_counts_each_trial_once() -> None:
    trials = [
        *(ended(number, "COMPLETED") for number in range(3)),
        *(ended(number, "FAILED") for number in range(2)),
        ended(6, "CANCELLED"),
        *(trial(number) for number in range(5)),
    ]
    phases = (Phase.QUEUED, Phase.INELIGIBLE, Phase.RUNNING, Phase.SUSPENDED, Phase.STARTING)
    assert summary(cycle(*phases), trials) == (
        "6 of 11 trials are over, 1 cancelled, 2 failed; 2 are on GPUs, 1 pause, 2 wait"
    )


def lines_up(lines: list[str]) -> None:
    """Each column begins where the rule under the header has it."""
    header, rule, *rows = lines
    starts = [0, *(at + 1 for at, char in enumerate(rule) if char == " ")]
    for line in (header, *rows):
        assert cell_len(line) <= len(rule) and "\n" not in line
        for start in starts[1:]:
            before = next(
                at for at in range(len(line) + 1) if cell_len(line[:at]) >= min(start, cell_len(line))
            )
            assert line[before - 1 : before] in (" ", "") or len(line) < start


def test_the_plan() -> None:
    ranged = PREFIX + '{"v":1,"gpus":2,"min_gpus":2,"max_gpus":8}'
    trials = [
        spec(memory_bytes=3 << 29),
        spec("y" * 60, (SHELL, "-c", "train | tee 'a\nb'")).model_copy(update={"request": ranged}),
        spec(ODD, ("train", "日本" * 40, "\x1b[2J")),
    ]
    first, *lines = plan(trials, ["0: A100", "1: A100"])
    assert first == "3 trials on 2 GPUs (0: A100, 1: A100)"
    lines_up(lines)
    assert lines[2].split() == ["lr=1", "1", "1.5GiB", "train", "'a", "b'"]
    assert lines[3].split() == ["y" * 27 + "+", "2-8", "train", "|", "tee", "'a?b'"]
    assert CLEAN in lines[4] and lines[4].endswith("+")


def test_of_many_trials_some_are_listed() -> None:
    lines = list(plan([spec(f"t{number}") for number in range(1000)], ["0: A100"]))
    assert lines[0] == "1000 trials on 1 GPU (0: A100)"
    assert len(lines) == MOST_LISTED + 4 and lines[-1] == "and 950 more"
    assert next(iter(plan([spec()], ["0: A100"]))) == "1 trial on 1 GPU (0: A100)"


def test_the_table_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, retention_days=1, detail_days=1):
        pass
    trials = [trial(number, f"t{number}") for number in range(1, MOST_LISTED)]
    trials += [
        on_gpus(12345, 0, name="日" * 20, restarts=2),
        ended(12346, "FAILED", ODD, exit_code=137, start_time=time.time()),
        ended(12347, "COMPLETED", restarts=1),
    ]
    *lines, more = table(trials, JournalReader(path))
    lines_up(lines)
    assert more == "and 2 more: gandiva report --study"
    assert lines[2].split()[:4] == ["3", "t3", "PENDING", "0"]
    assert [line.split()[2:5] for line in lines[-3:]] == [
        ["RUNNING", "3", "00:00:00"],
        ["FAILED", "137", "1"],
        ["COMPLETED", "0", "1"],
    ]
    assert CLEAN in lines[-2]
