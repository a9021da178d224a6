# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva explain`: what Slurm adds, and what to do next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from controller.api.messages import EventMessage, ExplainMessage
from controller.cli.main import main
from controller.cluster.states import held_by_other
from controller.reports import units
from controller.reports.advice import next_step, not_started_by_slurm
from controller.reports.explain import explain, ordinary
from controller.reports.sacct import Accounting
from controller.reports.slurm_job import SlurmJob, ask_slurm

from .test_words_about_jobs import NOW, QUEUED, SUSPENDED, job, live

BROKEN: dict[str, Any] = {
    "binding": ["n1:0"],
    "bad_gpus": {"n1:0": "it has uncorrected memory errors (ECC)"},
}
FAILED: dict[str, Any] = {"tries": 2, "since": NOW - 300, "why": "node n1: two processes"}
INELIGIBLE: dict[str, Any] = {**QUEUED, "phase": "ineligible", "reason": "waits for other jobs"}


def fake_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int = 0) -> None:
    (tmp_path / "answer").write_text(text)
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat {tmp_path}/answer\nexit {code}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def text(answer: ExplainMessage, slurm: SlurmJob | None = None) -> str:
    return " ".join(" ".join(explain(answer, rows=3, columns=80, slurm=slurm)).split())


@pytest.mark.parametrize(
    ("slurm", "step"),
    [
        (SlurmJob(9, reason="JobHeldUser", eligible_time="2100-01-01T00"), "scontrol release 9"),
        (SlurmJob(9, reason="JobHeldUser", eligible_time="2099-12-31T18"), "scontrol release 9"),
        (SlurmJob(9, reason="JobHeldAdmin"), "ask the operator"),
        (SlurmJob(9, reason="JobHeldUser"), "nothing"),
        (None, "nothing"),
    ],
)
def test_a_job_that_slurm_holds_back(slurm: SlurmJob | None, step: str) -> None:
    said = text(ExplainMessage(time=NOW, live=live(9, **INELIGIBLE)), slurm)
    assert f"is not eligible yet why {INELIGIBLE['reason']} asked" in said and f"next {step}" in said


def test_who_ends_a_hold_that_is_not_its_users() -> None:
    held = held_by_other(["PENDING", "SPECIAL_EXIT"], "JobHeldUser", None)
    after_a_failed_run = live(9, **INELIGIBLE | {"reason": held})
    assert next_step(None, after_a_failed_run, SlurmJob(9, reason="JobHeldUser")) == "scontrol release 9"
    for phase in ("suspended", "yielded"):
        off_its_gpus = live(9, **SUSPENDED | {"phase": phase})
        assert "operator" in next_step(None, off_its_gpus, SlurmJob(9, reason="JobHeldAdmin"))


def test_a_job_that_cannot_be_suspended_says_since_when_why_and_what_follows() -> None:
    said = text(ExplainMessage(time=NOW, live=live(failed_suspends=FAILED)))
    assert "note could not be suspended since" in said
    assert "2 attempts: node n1: two processes; it keeps its GPUs" in said
    said = text(ExplainMessage(time=NOW, live=live(failed_suspends=FAILED | {"way_out": "cancel"})))
    assert "two processes; it is cancelled next" in said


def test_a_broken_gpu_is_named_with_the_reason() -> None:
    said = text(ExplainMessage(time=NOW, live=live(**SUSPENDED | BROKEN)))
    assert "no job is put on GPU n1:0: it has uncorrected memory errors (ECC)" in said
    said = text(ExplainMessage(time=NOW, live=live(**BROKEN, suspendable=False)))
    assert "(ECC); the job stays on it" in said
    assert "a short while ago" not in said


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (QUEUED, "it starts when there is room"),
        (SUSPENDED, "when its turn comes"),
        ({"phase": "stuck"}, "scancel frees them"),
        ({"phase": "unknown"}, "gandiva status names the node"),
        (SUSPENDED | BROKEN, "scontrol requeue 9"),
        (SUSPENDED | BROKEN | {"may_requeue": False}, "scancel 9"),
        (SUSPENDED | BROKEN | {"may_migrate": True}, "policy moves jobs"),
        (BROKEN | {"suspendable": False}, "it starts on other GPUs"),
        ({"suspendable": False}, "--gandiva-suspend=requeue"),
        ({"failed_suspends": FAILED}, "--gandiva-suspend=requeue"),
        ({}, ""),
    ],
)
def test_what_to_do_about_a_job_that_is_there(changes: dict[str, Any], word: str) -> None:
    step = next_step(None, live(9, **changes), None)
    assert word in step and bool(word) is bool(step)


def test_what_to_do_about_a_job_that_is_over() -> None:
    over = job(state="OUT_OF_MEMORY", end_time=NOW - 5, exit_code=137)
    said = text(ExplainMessage(time=NOW, job=over))
    assert "more --mem" in said and "exit code 0:9" in said
    assert next_step(job(state="COMPLETED", end_time=NOW), None, None) == ""
    never = job(state="CANCELLED by 1000", start_time=None, end_time=NOW - 5)
    assert "waited 00:16:35 until it ended, without having started" in text(
        ExplainMessage(time=NOW, job=never)
    )


def test_what_sacct_says_of_a_job_that_is_over_comes_first() -> None:
    """pyslurm takes 128 off an exit code of 255; a job that vanished has no state of its own."""
    accounting = Accounting("9", "FAILED", "255:0", NOW - 5)
    over = ExplainMessage(time=NOW, job=job(state="FAILED", end_time=NOW - 5, exit_code=127))
    assert "exit code 255:0" in " ".join(explain(over, rows=3, columns=200, accounting=accounting))
    vanished = ExplainMessage(time=NOW, job=job(state="UNKNOWN", end_time=NOW - 5, exit_code=None))
    accounting = Accounting("9", "CANCELLED by 1000", "0:0", NOW - 65)
    said = " ".join(explain(vanished, rows=3, columns=200, accounting=accounting))
    assert "is over: CANCELLED by 1000" in said and "UNKNOWN" not in said
    assert f"ended       {units.moment(NOW - 65)}, exit code 0:0" in said
    assert "is over: UNKNOWN" in " ".join(explain(vanished, rows=3, columns=200)), "without sacct"
    assert "exit code 255:0" in text(
        ExplainMessage(time=NOW, job=job(state="FAILED", end_time=NOW, exit_code=255))
    )


@pytest.mark.parametrize(("part", "shown"), [("8_1", "task 8_1"), ("8+1", "component 8+1")])
def test_parts_of_jobs_have_their_index_in_the_first_line(part: str, shown: str) -> None:
    said = text(ExplainMessage(time=NOW, live=live(9, **QUEUED)), SlurmJob(9, part=part))
    assert said.startswith(f"Job 9, {shown} (train, alice) waits in the queue")


def test_ordinary_jobs_and_those_the_controller_does_not_take() -> None:
    said = " ".join(ordinary(SlurmJob(5, "x\x1b[2J", "bob", "PENDING", "Priority"), 200))
    assert "Job 5 (x?[2J, bob) is an ordinary Slurm job" in said and "PENDING (Priority)" in said
    said = " ".join(ordinary(SlurmJob(5, "x", "bob", "PENDING", gandiva=True), 200))
    assert "the controller refuses its request" in said
    assert "before the controller saw it" in " ".join(
        ordinary(SlurmJob(5, state="FAILED", gandiva=True), 200)
    )


def test_slurms_answer_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_scontrol(
        tmp_path, monkeypatch,
        "JobId=51 ArrayJobId=49 ArrayTaskId=1 JobName=my job UserId=alice(1000) GroupId=g(1) "
        "JobState=PENDING Reason=Dependency Dependency=afterok:7(unfulfilled) EligibleTime=Unknown "
        'AdminComment=gandiva:{"v":1} StdOut=/home/a/o JobId=7.txt JobState=EVIL TresPerNode=x\n'
        "JobId=50 ArrayJobId=49 ArrayTaskId=0 JobName=b UserId=alice(1000) JobState=RUNNING "
        "Reason=None\nnonsense\n",
    )  # fmt: skip
    one, two = ask_slurm("49")
    assert (one.job_id, one.part, one.name, one.user) == (51, "49_1", "my job", "alice")
    assert (one.state, one.reason) == ("PENDING", "Dependency")
    assert one.gandiva and one.eligible_time == ""
    assert (two.part, two.reason, two.gandiva) == ("49_0", "", False)


def test_without_slurm_there_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_scontrol(tmp_path, monkeypatch, "JobId=5 JobState=RUNNING\n", code=1)
    assert ask_slurm("5") == []
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert ask_slurm("5") == []


@pytest.mark.parametrize("word", ["x", "12_", "_3", "1 2", "12_3_4", "-1", "١٢"])
def test_what_is_not_a_job_id(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--url", "http://127.0.0.1:1", "--", word])
    assert "is not a job id: 12, or 12_3" in capsys.readouterr().err


def failed(kind: str = "place-failed", reason: str = "AssocGrpGRES") -> EventMessage:
    return EventMessage(time=NOW, kind=kind, message=f"Slurm did not start it within 60 s (reason: {reason})")


def test_why_slurm_did_not_start_what_was_placed() -> None:
    assert not_started_by_slurm([failed(reason="Resources"), failed()]) == "AssocGrpGRES"
    assert not_started_by_slurm([failed(), failed(kind="resume-failed")]) == "", "the last try counts"
    assert not_started_by_slurm([]) == ""
    assert not_started_by_slurm([EventMessage(time=NOW, kind="place-failed", message="no memory")]) == ""


@pytest.mark.parametrize("phase", ["queued", "starting"])
@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("AssocGrpGRES", "a limit of your account or QOS is reached (AssocGrpGRES)"),
        ("QOSMaxJobsPerUserLimit", "a limit of your account or QOS is reached"),
        ("ReqNodeNotAvail, May be reserved for other job", "a shorter --time may start it earlier"),
        ("ReqNodeNotAvail, May be reserved for other job", "it is tried on other nodes"),
        ("Priority", "an ordinary job that waits"),
        ("PartitionTimeLimit", "waiting alone does not help, by Slurm's reason (PartitionTimeLimit)"),
        ("Licenses", "waiting alone does not help"),
        ("BadConstraints", "waiting alone does not help"),
    ],
)
def test_a_limit_of_slurms_is_not_called_a_lack_of_room(phase: str, reason: str, said: str) -> None:
    assert said in next_step(None, live(9, phase=phase), None, reason)
    assert said not in next_step(None, live(9, phase="running"), None, reason), "it has started since"


def test_other_reasons_leave_the_advice_as_it_is() -> None:
    queued = live(9, phase="queued")
    assert next_step(None, queued, None, "BurstBufferResources") == next_step(None, queued, None)


def test_a_job_that_grew() -> None:
    grew = live(gpus=4, asked_gpus=1, running_on=[f"n1:{i}" for i in range(4)])
    asked = job(gpus=1, request={"gpus": 1, "max_gpus": 4})
    said = text(ExplainMessage(time=NOW, live=grew, job=asked))
    assert "asked for 1 GPU (1-4), weight" in said
    assert "is on n1:0-3: 4 GPUs, more than it asked for" in said
    said = text(ExplainMessage(time=NOW, live=live(gpus=2, asked_gpus=2), job=job(gpus=2)))
    assert "asked for 2 GPUs, weight" in said and "more than" not in said
