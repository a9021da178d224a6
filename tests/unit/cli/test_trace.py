# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva trace sacct`: what becomes of sacct's lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.cli.trace import FIELDS

REQUEST = (
    'gandiva:{"v":1,"gpus_per_node":2,"nodes":1,"weight":1,"min_gpus":null,"max_gpus":null,"pack":null,"migrate":null,'
    '"suspend":null,"gpu_types":[],"model":"a|b","site":{}}'
)
TIMES = "2026-11-21T14:58:54|2026-11-21T14:58:55|2026-11-21T14:59:59"


def trace(tmp_path: Path, *lines: str) -> tuple[int, Path]:
    (tmp_path / "answer").write_text("\n".join([f"{FIELDS.replace(',', '|')}|AdminComment", *lines]) + "\n")
    (tmp_path / "sacct").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/answer\n')
    (tmp_path / "sacct").chmod(0o755)
    out = tmp_path / "trace.txt"
    return main(["trace", "sacct", "-S", "now-1days", "--sacct", f"{tmp_path}/sacct", "-o", str(out)]), out


def line(job: int, tres: str, comment: str) -> str:
    return f"{job}|{TIMES}|60|{tres}|{tres}|COMPLETED|alice|a|gpu|{comment}"


def test_jobs_of_gandiva_count_with_the_gpus_they_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = trace(
        tmp_path,
        line(1, "cpu=1,gres/gpu=4", ""),
        line(2, "billing=1,cpu=1,gres/shard=4,gres/shard:a100_0=1,node=1", REQUEST.replace("a|b", "bert")),
        line(3, "", REQUEST.replace("a|b", "bert")),
    )
    assert code == 0 and "2 jobs with GPUs" in capsys.readouterr().err
    rows = [row.split("|") for row in out.read_text().splitlines()]
    assert rows[0] == FIELDS.split(","), "requests do not get into the trace"
    assert [row[5] for row in rows[1:]] == ["cpu=1,gres/gpu=4", "billing=1,cpu=1,node=1,gres/gpu=2", ""]
    assert "AdminComment" in (tmp_path / "asked").read_text()


def test_a_request_that_makes_no_sense_is_said_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = trace(tmp_path, line(1, "cpu=1,gres/gpu=4", ""), line(2, "gres/shard=4", "gandiva:{|}"))
    assert code == 0 and "job 2: its request is invalid" in capsys.readouterr().err
    assert "|gres/shard=4|" in out.read_text() and "gandiva:" not in out.read_text()


def test_no_jobs_at_all_is_said_of_the_times_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = trace(tmp_path)
    message = capsys.readouterr().err
    assert code == 1 and not out.exists()
    assert "sacct from now-1days to now: line 1: no jobs" in message and "/tmp" not in message
