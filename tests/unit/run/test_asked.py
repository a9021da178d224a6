# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from controller.cluster.trial import Then, Trial, TrialSpec, write_trial
from controller.errors import GandivaError
from controller.run.asked import Asked, Submission, answer, ask, meaning, take, trials
from controller.run.folder import StudyFolder

FIRST, SECOND = Asked(trial=3, priority=2.5), Asked(trial=4, stop=True)


def put(folder: StudyFolder, number: int, word: str = "") -> None:
    """A trial that waits."""
    folder.trials.mkdir(exist_ok=True)
    spec = TrialSpec(name=f"t{number}", command=("true",), directory="/", request="", word=word)
    write_trial(folder.trials / f"{number}.json", Trial(number=number, spec=spec, submit_time=1.0))


def test_nothing_was_ever_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert list(take(StudyFolder(tmp_path))) == []
    assert list(tmp_path.iterdir()) == [] and caplog.text == ""


def test_what_is_asked_is_taken_once_and_in_order(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    many = [FIRST, SECOND, *(Asked(trial=number, exclusive=True) for number in range(1, 20))]
    for asked in many:
        ask(folder, asked)
    assert list(take(folder)) == many
    assert list(take(folder)) == [] and list(folder.asked.iterdir()) == []


def test_only_its_user_reads_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ask(StudyFolder(tmp_path), FIRST)
    finally:
        os.umask(before)
    places = [tmp_path / "asked", *(tmp_path / "asked").iterdir()]
    assert [stat.S_IMODE(place.stat().st_mode) for place in places] == [0o700, 0o600]


def test_what_was_not_carried_out_is_there_for_the_next_supervisor(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    ask(folder, FIRST)
    ask(folder, SECOND)
    killed = take(folder)
    assert next(killed) == FIRST
    assert list(take(folder)) == [FIRST, SECOND]


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    ask(folder, FIRST)
    half = folder.asked / ".0.json.new"
    half.write_text("{")
    assert list(take(folder)) == [FIRST] and half.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b"{}",
        b'{"trial": 0}',
        b'{"trial": 1, "priority": 1e9}',
        b'{"trial": 1, "x": 1}',
        b'{"submit": 1}',
        b"[" * 9999,
    ],
)
def test_a_broken_file_is_named_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    folder = StudyFolder(tmp_path)
    ask(folder, FIRST)
    broken = folder.asked / "0.json"
    broken.write_bytes(text)
    put(folder, 3)
    assert meaning(trials(folder)[3].spec.word).priority == 2.5
    assert broken.exists(), "who only looks removes nothing"
    assert list(take(folder)) == [FIRST]
    assert not broken.exists() and str(broken) in caplog.text


def test_a_folder_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = StudyFolder(tmp_path)
    folder.asked.write_text("")
    assert list(take(folder)) == [] and str(folder.asked) in caplog.text
    with pytest.raises(GandivaError, match=f"cannot write {folder.asked}"):
        ask(folder, FIRST)


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        ("", {"priority": 2.5}, "gandiva-trial:priority=2.5"),
        ("", {"exclusive": True}, "gandiva-trial:exclusive"),
        ("gandiva-trial:exclusive", {"priority": 4}, "gandiva-trial:priority=4,exclusive"),
        ("gandiva-trial:priority=4,exclusive", {"exclusive": False}, "gandiva-trial:priority=4"),
        ("gandiva-trial:priority=4", {"priority": 1}, ""),
        ("gandiva-trial:priority=4", {"stop": True}, "gandiva-trial:priority=4"),
        ("gandiva-trial:nonsense", {"exclusive": True}, "gandiva-trial:exclusive"),
    ],
)
def test_what_becomes_of_the_word(before: str, asked: dict[str, float], after: str) -> None:
    assert Asked.model_validate({"trial": 1, **asked}).word(before) == after


@pytest.mark.parametrize("priority", [0.0, 0.009, 101.0, float("nan")])
def test_priorities_have_limits(priority: float) -> None:
    with pytest.raises(ValidationError):
        Asked(trial=1, priority=priority)


def test_trials_are_shown_as_they_will_be(tmp_path: Path) -> None:
    """Requests come one after another while nobody carries them out."""
    folder = StudyFolder(tmp_path)
    put(folder, 1)
    put(folder, 10, "gandiva-trial:exclusive")
    for asked in (
        Asked(trial=1, priority=4),
        Asked(trial=1, exclusive=True),
        Asked(trial=10, stop=True),
        Asked(trial=7, priority=4),
    ):
        ask(folder, asked)
    known = trials(folder)
    assert {number: trial.spec.word for number, trial in known.items()} == {
        1: "gandiva-trial:priority=4,exclusive",
        10: "gandiva-trial:exclusive",
    }
    assert [known[number].then for number in (1, 10)] == [None, Then.CANCELLED]


def test_a_submission_and_its_answer(tmp_path: Path) -> None:
    """Whoever submits finds the answer by the name of the request."""
    folder = StudyFolder(tmp_path)
    folder.asked.mkdir()
    for name, table in (("2", {"command": "true"}), ("1", {})):
        (folder.asked / f"{name}.json").write_text(json.dumps({"submit": table, "request": "/etc/passwd"}))
    assert trials(folder) == {}
    one, two = take(folder)
    assert (one, two) == (
        Submission(request="1", submit={}),
        Submission(request="2", submit={"command": "true"}),
    )
    assert isinstance(one, Submission) and isinstance(two, Submission)
    answer(folder, one, "the command is missing")
    answer(folder, two, 7)
    said = [json.loads((folder.answers / f"{n}.json").read_text()) for n in (1, 2)]
    assert said == [{"refused": "the command is missing"}, {"trial": 7}]
    assert stat.S_IMODE((folder.answers / "1.json").stat().st_mode) == 0o600


def test_an_answer_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = StudyFolder(tmp_path)
    folder.answers.write_text("")
    answer(folder, Submission(request="1", submit={}), 1)
    assert str(folder.answers) in caplog.text
