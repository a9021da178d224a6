# SPDX-License-Identifier: GPL-2.0-or-later
"""A search's own driver: what it asks of Slurm's commands, and what it makes of their answers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.raw import trial_word
from controller.observe.requests import parse_trial
from gandiva import trials
from gandiva.curves import predict_final
from gandiva.trials import Search, TrialsError, with_word

Calls = Callable[[], list[list[str]]]


def job(number: int, search: str | None = "lr", **changes: Any) -> dict[str, Any]:
    asked = {"v": 1, "gpus": 1, **({"search": search} if search else {})}
    known = {"job_id": number, "job_state": ["RUNNING"], "comment": "", "array_job_id": 0}
    return {**known, "admin_comment": "gandiva:" + json.dumps(asked), **changes}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """Puts commands of Slurm into PATH; returns what calls were made of them."""

    def make(*jobs: dict[str, Any], refusal: str = "") -> Calls:
        (tmp_path / "reply").write_text(json.dumps({"jobs": jobs}))
        end = f"echo '{refusal}' >&2; exit 1" if refusal else "exit 0"
        for name in ("squeue", "scontrol", "scancel", "sbatch"):
            say = {"squeue": f"cat {tmp_path}/reply", "sbatch": "echo '12;mini'"}.get(name, end)
            noted = f'printf "%s\\0" {name} "$@" >> {tmp_path}/calls; printf "\\n" >> {tmp_path}/calls'
            script = tmp_path / name
            script.write_text(f'#!/bin/sh\n[ -z "$SQUEUE_STATES" ] || exit 9\n{noted}\n{say}\n')
            script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        calls = tmp_path / "calls"
        return lambda: (
            [line.split("\0")[:-1] for line in calls.read_text().splitlines()] if calls.exists() else []
        )

    return make


def test_a_trial_is_submitted_with_the_name_of_its_search(slurm: Callable[..., Calls]) -> None:
    calls = slurm()
    assert Search("lr").submit("--gres=gpu:1", "train.sbatch", "0.1") == "12"
    assert calls() == [
        ["sbatch", "--parsable", "--gandiva", "--gandiva-search=lr", "--gres=gpu:1", "train.sbatch", "0.1"]
    ]


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "lr;rm", "é", "lr\n"])
def test_a_search_has_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        Search(name)


def test_the_trials_of_a_search(slurm: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "COMPLETED")
    calls = slurm(
        job(9, comment="mine; gandiva-trial:priority=4,exclusive"),
        job(7),
        job(8, "other"),
        job(5, None),
        job(6, admin_comment=""),
        job(4, array_job_id={"set": True, "number": 3}, array_task_id={"set": True, "number": 0}),
    )
    found = Search("lr").trials()
    assert [(t.job, t.job_id, t.priority, t.exclusive) for t in found] == [
        ("3_0", 4, 1.0, False),
        ("7", 7, 1.0, False),
        ("9", 9, 4.0, True),
    ]
    assert [trial.job for trial in trials.trials()] == ["3_0", "7", "8", "9"]
    assert calls()[0] == ["squeue", "--me", "--json"]
    assert [trial.job for trial in Search("lr").top(2)] == ["9", "3_0"]


def test_a_priority_is_written_into_the_comment(slurm: Callable[..., Calls]) -> None:
    calls = slurm(job(7, comment="ablation; gandiva-trial:exclusive"))
    Search("lr").set_priority("7", 2.5)
    written = "Comment=gandiva-trial:priority=2.5,exclusive; ablation"
    assert calls()[1:] == [["scontrol", "update", "JobId=7", written]]
    for priority in (0.0, 101.0, math.nan, -1.0):
        with pytest.raises(ValueError, match="priority"):
            Search("lr").set_priority("7", priority)


def test_exclusive_jobs_are_these_and_no_others(slurm: Callable[..., Calls]) -> None:
    exclusive = {"comment": "gandiva-trial:exclusive"}
    calls = slurm(job(1), job(2, **exclusive), job(3, **exclusive), job(4, "other", **exclusive))
    Search("lr").set_exclusive(["1", "3"])
    assert calls()[1:] == [
        ["scontrol", "update", "JobId=2", "Comment="],
        ["scontrol", "update", "JobId=1", "Comment=gandiva-trial:exclusive"],
    ]
    with pytest.raises(TrialsError, match="no job 4, 9"):
        Search("lr").set_exclusive(["1", "9", "4"])


def test_a_job_of_another_search_is_not_touched(slurm: Callable[..., Calls]) -> None:
    calls = slurm(job(7, "other"), job(8, None))
    for wrong in ("7", "8", "9", "7; rm", "-a", ""):
        with pytest.raises(TrialsError):
            Search("lr").stop(wrong)
        with pytest.raises(TrialsError):
            Search("lr").set_priority(wrong, 2)
    assert {call[0] for call in calls()} == {"squeue"}


def test_stop_cancels(slurm: Callable[..., Calls]) -> None:
    calls = slurm(job(7))
    Search("lr").stop("7")
    assert calls()[-1] == ["scancel", "7"]


def test_what_slurm_refuses_is_said(slurm: Callable[..., Calls]) -> None:
    slurm(job(7), refusal="Access/permission denied")
    with pytest.raises(TrialsError, match="scontrol update JobId=7: Access/permission denied"):
        Search("lr").set_priority("7", 2)


@pytest.mark.parametrize(
    "reply", ["", "[]", "{}", '{"jobs": [1]}', '{"jobs": [{"admin_comment": "gandiva:x"}]}']
)
def test_an_answer_that_makes_no_sense(slurm: Callable[..., Calls], tmp_path: Path, reply: str) -> None:
    slurm()
    (tmp_path / "reply").write_text(reply)
    with pytest.raises(TrialsError, match="makes no sense"):
        trials.trials()


def test_no_slurm_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TrialsError, match="cannot run squeue"):
        trials.trials()


@pytest.mark.parametrize(
    ("comment", "priority", "exclusive", "written"),
    [
        ("", 1, False, ""),
        ("", 4, False, "gandiva-trial:priority=4"),
        ("a; b", 0.25, True, "gandiva-trial:priority=0.25,exclusive; a; b"),
        ("a; gandiva-trial:exclusive; b", 1, False, "a; b"),
        ("gandiva-trial:x gandiva-trial:y", 100, False, "gandiva-trial:priority=100"),
    ],
)
def test_the_rest_of_a_comment_stays(comment: str, priority: float, exclusive: bool, written: str) -> None:
    assert with_word(comment, priority, exclusive=exclusive) == written


@given(st.text(max_size=200), st.floats(0.01, 100), st.booleans())
def test_the_controller_reads_what_is_written(comment: str, priority: float, exclusive: bool) -> None:
    written = with_word(comment, priority, exclusive=exclusive)
    word = trial_word(written)
    if not word:
        assert not exclusive and f"{priority:.4f}" == "1.0000"
        return
    said = parse_trial(word, "lr")
    assert said.exclusive == exclusive and abs(said.priority - priority) < 1e-4
    assert with_word(written, priority, exclusive=exclusive) == written


def curve(step: float) -> float:
    return 0.9 - 0.8 / math.sqrt(step)


def test_the_end_of_a_learning_curve_follows_from_its_beginning() -> None:
    points = [(step, curve(step)) for step in range(1000, 6000, 1000)]
    assert abs(predict_final(points, 33_000) - curve(33_000)) < 0.005
    assert math.isnan(predict_final(points[:2], 33_000))
    assert abs(predict_final([(step, 0.1) for step in (1, 2, 3)], 100) - 0.1) < 1e-9
    assert predict_final([(1, 0.9), (2, 0.5), (3, 0.1)], 1000) >= 0.4


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1)), max_size=8), st.integers(1, 10**7))
def test_a_prediction_is_an_accuracy(points: list[tuple[int, float]], final: int) -> None:
    found = predict_final(points, final)
    assert math.isnan(found) or 0 <= found <= 1
