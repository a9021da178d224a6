# SPDX-License-Identifier: GPL-2.0-or-later
"""The option --study: who is asked, and that Slurm is not."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.api import server as server_module
from controller.api.answers import Answers
from controller.api.server import ApiServer
from controller.cli.main import main
from controller.cluster.trial import Trial, TrialSpec, write_trial
from controller.journal import Journal, JournalReader
from controller.journal.records import JobRecord
from controller.model import JobId
from controller.reports.units import moment
from controller.run.folder import StudyFolder, Supervisor
from tests.unit.api import scene

from .test_cli import Terminal

COMMANDS = (["report"], ["explain", "101"], ["status"], ["top", "--once"], ["trials", "list"])


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StudyFolder]:
    """`lr`, in the current folder, where nothing runs; Slurm's commands must not be called."""
    found = StudyFolder(tmp_path / "lr")
    found.trials.mkdir(parents=True)
    scene.write_journal(found.journal)
    calls = tmp_path / "calls"
    for name in ("sacct", "scontrol", "squeue"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("GANDIVA_CONFIG", str(tmp_path / "broken.toml"))
    (tmp_path / "broken.toml").write_text("[")
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    monkeypatch.chdir(tmp_path)
    yield found
    assert not calls.exists(), calls.read_text()


@pytest.fixture
def running(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[StudyFolder]:
    """Its supervisor is this process."""
    monkeypatch.setattr(server_module, "POLL_SECONDS", 0.02)
    with tempfile.TemporaryDirectory(prefix="g") as folder:
        server = ApiServer(f"unix:{folder}/s", Answers(scene.live_state(), JournalReader(study.journal)))
        server.start()
        study.write_note(note(socket=f"{folder}/s"))
        yield study
        server.stop()


def note(**more: object) -> Supervisor:
    values = {"host": os.uname().nodename, "pid": os.getpid(), "socket": "/nowhere/s", "started": 1.0}
    return Supervisor.model_validate({**values, **more})


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["report"], "105 "),
        (["explain", "102", "105"], "Trial 102 (train-102, bob) is suspended"),
        (["explain", "100"], "is over: COMPLETED"),
        (["explain", "105"], "in the study file"),
        (["status"], "works."),
        (["top", "--once"], "no node has 4 free GPUs"),
        (["trials", "list", "--allusers"], "GPUSeconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_its_supervisor_is_asked(capsys: pytest.CaptureFixture[str], command: list[str], shown: str) -> None:
    code, out, err = run(capsys, *command, "--study", "lr")
    assert (code, err) == (0, "")
    assert shown in out


def test_top_shows_the_output_of_a_trial(running: StudyFolder) -> None:
    (running.trials / "105.out").write_text("loss 0.5\n")
    terminal = Terminal("--study", str(running.path))
    try:
        terminal.wait_for("101 alice train-101")
        terminal.press(b"/105\r\x1b[B\r")
        terminal.wait_for("To stop it: gandiva trials stop --study")
        terminal.wait_for("trials/105.out")
        terminal.wait_for("loss 0.5")
    finally:
        terminal.close()


@pytest.mark.usefixtures("running")
def test_a_trial_that_vanished_is_listed_without_slurm(
    capsys: pytest.CaptureFixture[str], running: StudyFolder
) -> None:
    with Journal(running.journal) as journal:
        known = {"user": "alice", "gpus": 1, "submit_time": 100.0, "end_time": 900.0, "state": "UNKNOWN"}
        journal.upsert_job(JobRecord(id=JobId(1), request={"search": "lr"}, **known))  # type: ignore[arg-type]
    code, out, err = run(capsys, "trials", "list", "-a", "-n", "-P", "--study", "lr")
    assert (code, err) == (0, "")
    assert out.startswith("1||UNKNOWN|")


def test_slurm_says_how_a_step_has_failed(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for trials that were steps, and have failed. One that is run again is not over."""
    known = {"user": "alice", "gpus": 1, "submit_time": 100.0, "end_time": 900.0, "request": {}}
    with Journal(study.journal) as journal:
        for number, state in enumerate(("FAILED", "FAILED", "COMPLETED"), 1):
            journal.upsert_job(JobRecord(id=JobId(number), state=state, **known))  # type: ignore[arg-type]
    for number in (1, 3):
        (study.trials / f"{number}.step").write_text(f"77.{number}\n")
    sacct = tmp_path / "bin" / "sacct"
    sacct.parent.mkdir()
    sacct.write_text(
        '#!/bin/sh\nfor step; do :; done; echo "$step|x|OUT_OF_MEMORY|0:125|2024-05-17T10:00:00|Unknown"\n'
    )
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sacct.parent}:/usr/bin:/bin")
    code, out, err = run(capsys, "report", "-nPo", "JobID,State", "-j", "1,2,3", "--study", "lr")
    assert (code, out.split(), err) == (0, ["1|OUT_OF_MEMORY", "2|FAILED", "3|COMPLETED"], "")
    assert "OUT_OF_MEMORY" in run(capsys, "explain", "1", "--study", "lr")[1]
    assert "OUT_OF_MEMORY" not in run(capsys, "report", "--no-sacct", "--study", "lr")[1]


@pytest.mark.parametrize("runs", [True, False])
def test_the_report_has_all_trials_at_any_time(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, runs: bool
) -> None:
    """Without a supervisor from the journal."""
    request.getfixturevalue("running" if runs else "study")
    for options, jobs in (
        ([], "100 101 102 103 104 105"),
        (["-j", "103,100"], "100 103"),
        (["-u", "carol"], "103 104"),
        (["-S", "now-1hours"], "101 102 103 104 105"),
    ):
        code, out, err = run(capsys, "report", "-nPo", "JobID", *options, "--study", "lr")
        assert (code, out.split(), err) == (0, jobs.split(), ""), options


def test_the_report_warns_in_the_words_of_a_study(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.reports.report.unsuspendable", lambda _, words: [f"see{words.options}"])
    assert run(capsys, "report", "--study", study.path.name)[2] == "gandiva: see --study lr\n"


def test_the_page_of_a_study_does_not_overwrite_its_journal(
    capsys: pytest.CaptureFixture[str], study: StudyFolder
) -> None:
    before = study.journal.read_bytes()
    code, out, _ = run(capsys, "report", "--study", "lr", "--html", "page.html")
    assert code == 0 and "6 jobs" in out
    code, _, err = run(capsys, "report", "--study", "lr", "--html", "lr/journal.sqlite")
    assert code == 1 and "that --study names" in err
    assert study.journal.read_bytes() == before


def name_trials(study: StudyFolder, names: Mapping[int, str]) -> None:
    for number, name in names.items():
        spec = TrialSpec(name=name, command=("true",), directory="/", request="")
        write_trial(study.trials / f"{number}.json", Trial(number=number, spec=spec, submit_time=1.0))


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("101,103", "101 103"),
        ("lr=0.1,seed=2", "102"),
        ("104,lr=0.1,seed=2,best,101", "101 102 103 104"),
        ("104", "104"),
        ("8", "105"),
    ],
)
def test_trials_have_numbers_and_names(
    capsys: pytest.CaptureFixture[str], running: StudyFolder, words: str, numbers: str
) -> None:
    """Names have commas too; a number is first of all a number."""
    name_trials(running, {101: "a", 102: "lr=0.1,seed=2", 103: "best", 104: "101", 105: "8"})
    code, out, err = run(capsys, "report", "-nPo", "JobID", "-j", words, "--study", "lr")
    assert (code, out.split(), err) == (0, numbers.split(), "")
    code, out, err = run(capsys, "explain", words, "--study", "lr")
    assert (code, err) == (0, "")
    assert sorted(re.findall(r"^Trial (\d+) ", out, re.MULTILINE)) == numbers.split()


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("word", ["101_3", "lr=0.1,seed=3"])
@pytest.mark.parametrize("command", [["report", "-j"], ["explain"]])
def test_a_name_that_no_trial_has(
    capsys: pytest.CaptureFixture[str], running: StudyFolder, command: list[str], word: str
) -> None:
    name_trials(running, {102: "lr=0.1,seed=2"})
    said = run(capsys, *command, f"101,{word}", "--study", "lr")
    assert (said[0], said[2]) == (1, f"gandiva: study lr has no trial {word}\n")


def test_names_are_not_cut(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user has chosen columns."""
    with Journal(study.journal) as journal:
        for number, name in enumerate(("lr=0.1,seed=12", "x" * 40), 1):
            values: dict[str, Any] = {"user": "alice", "gpus": 1, "submit_time": 100.0, "name": name}
            journal.upsert_job(JobRecord(id=JobId(number), state="PENDING", request={}, **values))
    lines = run(capsys, "report", "-j", "1,101", "--study", "lr")[1].splitlines()
    assert lines[1].split()[1] == "-" * 14 and "lr=0.1,seed=12 " in lines[2]
    assert "x" * 29 + "+ " in run(capsys, "report", "-l", "--study", "lr")[1]
    for option in ("JobName", "JobName%-12"):
        assert "x" * 12 not in run(capsys, "report", "-o", option, "--study", "lr")[1]
    monkeypatch.setenv("GANDIVA_REPORT_FORMAT", "JobName")
    assert "x" * 12 not in run(capsys, "report", "--study", "lr")[1]
    monkeypatch.delenv("GANDIVA_REPORT_FORMAT")
    assert (
        "x" * 12
        not in run(capsys, "report", "-aS", "1980-01-01", "--no-sacct", "--journal", str(study.journal))[1]
    )


@pytest.mark.parametrize("dead", [True, False], ids=["dead", "none"])
@pytest.mark.parametrize("command", COMMANDS[2:4], ids=" ".join)
def test_no_supervisor(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, command: list[str], dead: bool
) -> None:
    if dead:
        study.write_note(note(pid=(1 << 31) - 1))
    code, out, err = run(capsys, *command, "--study", "lr")
    assert (code, out) == (1, "")
    assert err == (
        "gandiva: study lr is not running: 'gandiva report --study lr' shows what is known, 'gandiva run' "
        "with its file goes on with it\n"
    )


@pytest.mark.parametrize("command", COMMANDS[2:4], ids=" ".join)
def test_what_only_a_supervisor_on_another_host_knows(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, command: list[str]
) -> None:
    study.write_note(note(host="n7", pid=123))
    code, out, err = run(capsys, *command, "--study", "lr")
    assert (code, out) == (1, "")
    there = f"ssh -t n7 gandiva {command[0]} --study {study.path}"
    assert err == f"gandiva: study lr runs on host n7 (process 123): {there}\n"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["report", "-nPo", "JobID,Elapsed"], "101|00:16:40\n"),
        (["explain", "101"], "(train-101, alice) is RUNNING"),
        (["trials", "list", "-a"], "Name"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_from_another_host(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, command: list[str], shown: str
) -> None:
    """What was known when the copy in the folder was written, and nothing is written there."""
    with Journal(study.journal) as journal:
        journal.heartbeat(scene.NOW + 100)
    study.write_note(note(host="n7"))
    before = {file.name: file.stat().st_mtime_ns for file in study.path.iterdir()}
    code, out, err = run(capsys, *command, "--study", "lr")
    assert code == 0 and shown in out
    assert err == f"gandiva: as of {moment(scene.NOW + 100)}; 'gandiva run' on host n7 knows more\n"
    assert {file.name: file.stat().st_mtime_ns for file in study.path.iterdir()} == before


@pytest.mark.parametrize("rebooted", [True, False])
def test_after_a_supervisor_here_was_killed(
    capsys: pytest.CaptureFixture[str], study: StudyFolder, tmp_path: Path, rebooted: bool
) -> None:
    """What it knew last, unless the machine has lost its memory since."""
    study.write_note(note(pid=(1 << 31) - 1, socket=f"{tmp_path}/api"))
    if not rebooted:
        scene.write_journal(tmp_path / "journal.sqlite")
        with Journal(tmp_path / "journal.sqlite") as journal:
            journal.record_event(scene.NOW, JobId(101), None, "news", "of the last minute")
    code, out, err = run(capsys, "explain", "101", "--study", "lr")
    assert (code, err) == (0, "") and ("of the last minute" in out) is not rebooted


@pytest.mark.parametrize("runs", [True, False])
def test_a_trial_that_nothing_is_known_of(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, runs: bool
) -> None:
    request.getfixturevalue("running" if runs else "study")
    assert run(capsys, "explain", "7", "--study", "lr/") == (1, "", "gandiva: study lr has no trial 7\n")


def test_a_supervisor_that_does_not_answer(capsys: pytest.CaptureFixture[str], study: StudyFolder) -> None:
    study.write_note(note())
    for command in COMMANDS:
        code, out, err = run(capsys, *command, "--study", "lr")
        assert (code, out) == (1, "")
        assert err == (
            "gandiva: cannot reach the Gandiva controller at unix:/nowhere/s (No such file or directory): "
            f"is process {os.getpid()}, its supervisor, about to begin or to end, or in another /tmp?\n"
        )


@pytest.mark.usefixtures("study")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_folder_that_is_no_study(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    code, out, err = run(capsys, *command, "--study", "lr/trials")
    assert (code, out) == (1, "")
    assert err == "gandiva: lr/trials is not a study: there is no folder lr/trials/trials\n"


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("option", ["--url", "--config", "--journal"])
def test_one_source(capsys: pytest.CaptureFixture[str], option: str) -> None:
    for command in COMMANDS if option != "--journal" else COMMANDS[:1]:
        code, out, err = run(capsys, *command, option, "x", "--study", "lr")
        assert (code, out) == (1, "")
        assert err == f"gandiva: --study and {option} both say what to ask: give one of them\n"
