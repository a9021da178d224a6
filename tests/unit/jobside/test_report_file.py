# SPDX-License-Identifier: GPL-2.0-or-later
"""`session.report()`: what a training says of itself, in all kinds of sessions."""

from __future__ import annotations

import json
import math
import os
import warnings
from pathlib import Path

import pytest

import gandiva
from gandiva import Session
from gandiva._report_file import parse
from gandiva._reporting import ReportingSession
from gandiva._session import LiveSession


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_JOB_ID", "GANDIVA_TRIAL", "GANDIVA_ALLOCATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GANDIVA_REPORT", str(tmp_path / "report"))
    return tmp_path / "report"


def read(file: Path) -> list[dict[str, float]]:
    known: list[dict[str, float]] = []
    parse(file.read_bytes() if file.exists() else b"", known)
    return known


def test_each_report_is_a_line_of_json(file: Path) -> None:
    session = Session()
    session.report(step=1, accuracy=0.5, loss=2)
    assert json.loads(file.read_text()) == {"step": 1, "accuracy": 0.5, "loss": 2}
    session.report(2, accuracy=0.75)
    assert read(file) == [{"step": 1, "accuracy": 0.5, "loss": 2}, {"step": 2, "accuracy": 0.75}]


def test_a_diverged_training_says_so_in_json(file: Path) -> None:
    Session().report(step=1, a=math.nan, b=math.inf, c=-math.inf)
    assert json.loads(file.read_text(), parse_constant=pytest.fail)["a"] == "NaN"
    (said,) = read(file)
    assert math.isnan(said["a"]) and (said["b"], said["c"]) == (math.inf, -math.inf)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_reports_whatever_the_session(
    file: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    live = gandiva.attach(rank=rank, world_size=2)
    assert isinstance(live, LiveSession)
    live.report(step=1)
    ReportingSession(0, rank).report(step=2)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    Session().report(step=3)
    assert [said["step"] for said in read(file)] == ([] if rank else [1, 2, 3])


def test_nowhere_to_report_to(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("GANDIVA_TRIAL", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "12")  # submitted from within a trial
    Session().report(step=1)
    assert not file.exists()
    monkeypatch.delenv("GANDIVA_REPORT")
    Session().report(step=1, accuracy="no number")  # type: ignore[arg-type]


def test_a_report_that_fails_warns_once_and_raises_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    with pytest.warns(RuntimeWarning, match="incomplete: could not convert"):
        session.report(step=1, accuracy="no number")  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.report(step=2, accuracy=object())  # type: ignore[arg-type]
        session.report(step=3, accuracy=1)
    assert read(file) == [{"step": 3, "accuracy": 1}]
    for path in ("/dev/full", str(file.parent)):
        monkeypatch.setenv("GANDIVA_REPORT", path)
        broken = Session()
        with pytest.warns(RuntimeWarning, match="incomplete: "):
            broken.report(step=1)


def test_what_is_no_report_counts_for_nothing() -> None:
    known: list[dict[str, float]] = []
    parse(
        b'{"step": 1}\n{"step": 2, "acc{"step": 3}\n[]\n\n\xff\n{"x": 1}\n{"step": "a"}\n{"step": 4}\n', known
    )
    assert known == [{"step": 1}, {"step": 4}]


def test_a_training_that_begins_anew_replaces_what_it_said() -> None:
    known: list[dict[str, float]] = []
    parse(b'{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a": 3}\n{"step": 2, "a": 4}\n', known)
    assert known == [{"step": 1, "a": 1}, {"step": 2, "a": 4}]


def test_processes_do_not_mix_their_lines(file: Path) -> None:
    """Each opens the file for itself."""
    child = os.fork()
    session = Session()
    for step in range(500):
        session.report(step=step, pid=os.getpid())
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 1000
