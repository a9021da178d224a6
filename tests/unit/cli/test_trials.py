# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva trials`: what it shows, and what it asks of Slurm."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api import server as server_module
from controller.api.answers import Answers
from controller.api.live import Health, LiveState
from controller.api.server import ApiServer
from controller.cli.main import main
from controller.journal import Journal, JournalReader
from controller.journal.records import JobRecord
from controller.model import GpuId, JobId
from tests.unit.api import scene


@pytest.fixture
def policy() -> str:
    return "gandiva"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> Iterator[str]:
    """A controller that knows three trials and another job."""
    monkeypatch.setattr(server_module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr("controller.settings.loading.DEFAULT_PATH", tmp_path / "none.toml")
    said = {
        1: {"search": "lr", "priority": 1.0, "exclusive": False},
        2: {"search": "lr", "priority": 4.0, "exclusive": True},
        3: {"search": "dropout", "priority": 1.0, "exclusive": False},
        4: {},
    }
    with Journal(tmp_path / "journal") as journal:
        for number, request in said.items():
            known = {"user": "alice" if number != 3 else "bob", "gpus": 1, "submit_time": 100.0}
            record = JobRecord(id=JobId(number), state="RUNNING", request=request, **known)  # type: ignore[arg-type]
            journal.upsert_job(record)
        journal.open_slice(JobId(2), frozenset({GpuId("n1", 0)}), 100.0)
        journal.close_slice(JobId(2), 350.0, "its slice is over")
        journal.upsert_job(
            JobRecord(
                id=JobId(2), user="alice", gpus=1, submit_time=100.0, step_seconds=0.25, request=said[2]
            )
        )
    live = LiveState()
    live.publish(scene.cycle(), Health(policy, scene.NOW))
    server = ApiServer("127.0.0.1:0", Answers(live, JournalReader(tmp_path / "journal")))
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands for a user who may change job 7 and not job 8; returns the file of calls."""
    calls = tmp_path / "calls"
    calls.touch()
    asked = 'gandiva:{"v":1,"gpus":1,"search":"lr"}'
    jobs = [
        {"job_id": number, "job_state": ["RUNNING"], "admin_comment": asked, "comment": comment}
        for number, comment in ((7, "mine"), (8, "gandiva-trial:priority=9"))
    ]
    (tmp_path / "jobs").write_text(json.dumps({"jobs": jobs}))
    scripts = {
        "squeue": f"cat {tmp_path}/jobs",
        "scontrol": 'case "$2" in JobId=8) echo "Access/permission denied for job 8" >&2; exit 1;; esac',
        "scancel": "",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{script}\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return calls


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(["trials", *argv])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    output = capsys.readouterr()
    return code, output.out, output.err


def test_list(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, err = run(capsys, "list", "-u", "alice", "--url", url)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == [
        *("Search", "JobID", "User", "State", "GPUSeconds", "Steps", "Rate", "Priority", "Excl")
    ]
    assert set(lines[1]) == {"-", " "}
    assert lines[2].split() == ["lr", "2", "alice", "PENDING", "250", "4/s", "4", "yes"]
    assert lines[3].split() == ["lr", "1", "alice", "RUNNING", "0", "1"]
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80


def test_a_trial_that_vanished_has_slurms_state(
    capsys: pytest.CaptureFixture[str], url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Journal(tmp_path / "journal") as journal:
        journal.upsert_job(
            JobRecord(
                id=JobId(1), user="alice", gpus=1, submit_time=100.0, end_time=900.0, state="UNKNOWN",
                request={"search": "lr"},
            )
        )  # fmt: skip
    (tmp_path / "sacct").write_text("#!/bin/sh\necho '1|1|CANCELLED by 7|0:0|Unknown|Unknown'\n")
    (tmp_path / "sacct").chmod(0o755)
    _, out, _ = run(capsys, "list", "-n", "-P", "-u", "alice", "--url", url)
    rows = [line.split("|") for line in out.splitlines()]
    assert [(row[1], row[3]) for row in rows] == [("2", "PENDING"), ("1", "CANCELLED by 7")]


@pytest.mark.parametrize(
    ("options", "jobs"),
    [
        ([], []),
        (["-a"], ["2", "1", "3"]),
        (["-a", "dropout"], ["3"]),
        (["-u", "bob"], ["3"]),
        (["-a", "x"], []),
    ],
)
def test_which_are_listed(
    capsys: pytest.CaptureFixture[str], url: str, options: list[str], jobs: list[str]
) -> None:
    _, out, _ = run(capsys, "list", "-n", "-P", *options, "--url", url)
    assert [line.split("|")[1] for line in out.splitlines()] == jobs


def test_list_as_json(capsys: pytest.CaptureFixture[str], url: str) -> None:
    _, out, _ = run(capsys, "list", "-a", "--json", "lr", "--url", url)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["job_id"], row["exclusive"], row["steps_per_second"]) for row in rows] == [
        (2, True, 4.0),
        (1, False, None),
    ]


def test_priority(capsys: pytest.CaptureFixture[str], url: str, slurm: Path) -> None:
    assert run(capsys, "priority", "7", "4", "--url", url) == (0, "job 7 of search lr: priority 4\n", "")
    assert slurm.read_text().splitlines() == [
        "squeue --json --jobs=7",
        "scontrol update JobId=7 Comment=gandiva-trial:priority=4; mine",
    ]
    assert run(capsys, "priority", "7", "0", "--url", url)[0] == 2


@pytest.mark.usefixtures("slurm")
def test_slurm_says_who_may(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, err = run(capsys, "priority", "8", "4", "--url", url)
    assert (code, out) == (1, "")
    assert "Access/permission denied for job 8" in err


def test_exclusive(capsys: pytest.CaptureFixture[str], url: str, slurm: Path) -> None:
    assert run(capsys, "exclusive", "lr", "7", "--url", url) == (0, "search lr: exclusive: 7\n", "")
    assert (
        slurm.read_text().splitlines()[-1] == "scontrol update JobId=7 Comment=gandiva-trial:exclusive; mine"
    )
    code, _, err = run(capsys, "exclusive", "lr", "--top", "1", "--url", url)
    assert code == 1 and "JobId=8" in err, "the one with the highest priority"
    code, _, err = run(capsys, "exclusive", "lr", "7", "--top", "1", "--url", url)
    assert code == 1 and "not both" in err


def test_stop(capsys: pytest.CaptureFixture[str], slurm: Path) -> None:
    assert run(capsys, "stop", "7", "8")[0] == 0
    assert [line for line in slurm.read_text().splitlines() if "scancel" in line] == [
        "scancel 7",
        "scancel 8",
    ]
    code, _, err = run(capsys, "stop", "9")
    assert code == 1 and "job 9" in err


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("policy", ["tiresias-las"])
def test_another_policy_does_not_read_it_and_the_user_is_told(
    capsys: pytest.CaptureFixture[str], url: str
) -> None:
    code, _, err = run(capsys, "priority", "7", "4", "--url", url)
    assert code == 0
    assert "the policy tiresias-las of this cluster does not slice" in err


@pytest.mark.usefixtures("slurm")
def test_no_controller_is_said_and_does_not_undo_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "priority", "7", "4", "--url", "http://127.0.0.1:1")
    assert code == 0 and out
    assert "written; whether its policy reads it cannot be told" in err
