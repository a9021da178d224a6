# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva trials --study`: what is asked of trials, whoever runs."""

from __future__ import annotations

import json

import pytest

from controller.cluster.port import JobState
from controller.cluster.trial import Trial, TrialSpec, write_trial
from controller.journal import Journal
from controller.journal.records import JobRecord
from controller.model import JobId
from controller.run.asked import Asked, Submission, take
from controller.run.folder import StudyFolder

from .test_study import note, run, running, study

__all__ = ["running", "study"]

LATER = "gandiva: study lr is not running: it takes effect with the next 'gandiva run'\n"
NAMES = ("lr=0.1", "lr=0.3", "baseline", "9")


@pytest.fixture(autouse=True)
def trials(study: StudyFolder) -> None:
    """1 to 3 go on, 4 is over."""
    for number, name in enumerate(NAMES, 1):
        spec = TrialSpec(name=name, command=("true",), directory="/", request="")
        trial = Trial(number=number, spec=spec, submit_time=1.0)
        if number == 4:
            trial = trial.model_copy(update={"state": JobState.ENDED, "state_name": "FAILED"})
        write_trial(study.trials / f"{number}.json", trial)


def asked(study: StudyFolder) -> list[Asked | Submission]:
    return list(take(study))


@pytest.mark.parametrize("job", ["1", "lr=0.1"])
def test_priority(capsys: pytest.CaptureFixture[str], study: StudyFolder, job: str) -> None:
    said = run(capsys, "trials", "priority", "--study", "lr", job, "2.5")
    assert said == (0, "trial 1 (lr=0.1) of study lr: priority 2.5\n", LATER)
    assert asked(study) == [Asked(trial=1, priority=2.5)]


@pytest.mark.parametrize("argv", [["--study", "lr", "3", "lr=0.3"], ["3", "lr=0.3", "--study", "lr"]])
def test_exclusive(capsys: pytest.CaptureFixture[str], study: StudyFolder, argv: list[str]) -> None:
    said = run(capsys, "trials", "exclusive", *argv)
    assert said == (0, "study lr: exclusive: 3 (baseline), 2 (lr=0.3)\n", LATER)
    assert asked(study) == [Asked(trial=2, exclusive=True), Asked(trial=3, exclusive=True)]


def test_others_are_exclusive_no_more(capsys: pytest.CaptureFixture[str], study: StudyFolder) -> None:
    """Also where nothing has been carried out yet."""
    run(capsys, "trials", "exclusive", "--study", "lr", "3")
    run(capsys, "trials", "priority", "--study", "lr", "2", "4")
    _, out, _ = run(capsys, "trials", "exclusive", "--study", "lr", "--top", "1")
    assert out == "study lr: exclusive: 2 (lr=0.3)\n"
    assert asked(study)[2:] == [Asked(trial=3, exclusive=False), Asked(trial=2, exclusive=True)]
    run(capsys, "trials", "exclusive", "--study", "lr", "2")
    _, out, _ = run(capsys, "trials", "exclusive", "--study", "lr")
    assert out == "study lr: exclusive: none\n"
    assert asked(study)[1:] == [Asked(trial=2, exclusive=False)]


def test_stop(capsys: pytest.CaptureFixture[str], study: StudyFolder) -> None:
    said = run(capsys, "trials", "stop", "--study", "lr", "1", "baseline")
    lines = "trial 1 (lr=0.1) of study lr: stopped\ntrial 3 (baseline) of study lr: stopped\n"
    assert said == (0, lines, LATER)
    _, out, _ = run(capsys, "trials", "exclusive", "--study", "lr", "--top", "2")
    assert out == "study lr: exclusive: 2 (lr=0.3)\n", "the others are being stopped"
    assert asked(study)[:2] == [Asked(trial=1, stop=True), Asked(trial=3, stop=True)]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["priority", "7", "4"], "study lr has no trial 7"),
        (["priority", "lr", "4"], "study lr has no trial lr"),
        (["exclusive", "1", "lr"], "study lr has no trial lr"),
        (["stop", "1", "x"], "study lr has no trial x"),
        (["stop", "1", "4"], "trial 4 (9) of study lr is over: FAILED"),
        (["priority", "9", "4"], "trial 4 (9) of study lr is over: FAILED"),
        (["exclusive", "1", "--top", "2"], "trials exclusive: give jobs or --top, not both"),
    ],
)
def test_what_cannot_be_asked(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, argv: list[str], why: str
) -> None:
    assert run(capsys, "trials", *argv, "--study", "lr") == (1, "", f"gandiva: {why}\n")
    assert asked(study) == []


def test_the_priority_has_limits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "trials", "priority", "1", "101", "--study", "lr")
    assert "'101' is not a number from 0.01 to 100" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["priority", "1", "4"], ["exclusive", "1"], ["stop", "1"]])
def test_a_supervisor_on_another_host_carries_it_out(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, argv: list[str]
) -> None:
    study.write_note(note(host="n7"))
    code, _, err = run(capsys, "trials", *argv, "--study", "lr")
    assert code == 0 and len(asked(study)) == 1
    assert err == "gandiva: 'gandiva run' on host n7 carries it out if it runs there, else the next one\n"


def test_while_it_runs_it_takes_effect_at_once(
    capsys: pytest.CaptureFixture[str], running: StudyFolder
) -> None:
    assert run(capsys, "trials", "stop", "1", "--study", "lr")[2] == ""
    code, _, err = run(capsys, "trials", "priority", "1", "4", "--study", "lr")
    assert (code, err) == (0, "")
    assert len(asked(running)) == 2


def test_another_policy_does_not_read_it(
    capsys: pytest.CaptureFixture[str], running: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.api.client.ApiClient.status", lambda _: type("S", (), {"policy": "fifo"}))
    code, _, err = run(capsys, "trials", "exclusive", "1", "--study", "lr")
    assert code == 0 and "the policy fifo of this study does not slice" in err
    assert len(asked(running)) == 1


def test_without_a_study_the_search_is_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "trials", "exclusive") == (1, "", "gandiva: trials exclusive: name the search\n")


def test_the_list_has_names_and_what_was_asked_last(
    capsys: pytest.CaptureFixture[str], study: StudyFolder
) -> None:
    """From the journal, while nothing runs."""
    with Journal(study.journal) as journal:
        for number, name in enumerate(NAMES, 1):
            request = {"search": "lr", "priority": 2.0 if number == 3 else 1.0, "exclusive": number == 3}
            journal.upsert_job(
                JobRecord(id=JobId(number), user="me", gpus=1, submit_time=1.0, name=name, request=request)
            )
    run(capsys, "trials", "exclusive", "--study", "lr", "2")
    run(capsys, "trials", "priority", "--study", "lr", "1", "4")
    code, out, err = run(capsys, "trials", "list", "--study", "lr")
    assert (code, err) == (0, "")
    head, line, *rows = out.splitlines()
    assert head.split() == ["JobID", "Name", "State", "GPUSeconds", "Steps", "Rate", "Priority", "Excl"]
    assert len(line) <= 80
    shown = [(row.split()[:2], row.split()[-2:]) for row in rows]
    assert shown == [
        (["2", "lr=0.3"], ["1", "yes"]),
        (["1", "lr=0.1"], ["0", "4"]),
        (["3", "baseline"], ["0", "1"]),
        (["4", "9"], ["0", "1"]),
    ]
    _, out, _ = run(capsys, "trials", "list", "--json", "--study", "lr")
    assert [json.loads(row)["exclusive"] for row in out.splitlines()] == [True, False, False, False]
