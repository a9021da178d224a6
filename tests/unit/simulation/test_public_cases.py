# SPDX-License-Identifier: GPL-2.0-or-later
"""Traces as people have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.policies.presets import PRESETS

PUBLIC = Path(__file__).parents[2] / "public"


@pytest.mark.public
@pytest.mark.parametrize("policy", sorted(PRESETS))
def test_a_gang_that_no_gpu_type_has_room_for_is_refused(
    capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    words = ["--trace", str(PUBLIC / "gang-wider-than-a-type.csv"), "--trace-format", "native"]
    words += ["--cluster", "v100:4,p100:4,k80:4", "--gpus-per-node", "4", "--policy", policy]
    assert main(["simulate", *words]) == 1
    said = capsys.readouterr().err
    assert "line 3, column `gpus`: job z: 8 GPUs" in said and len(said.splitlines()) == 1


@pytest.mark.public
def test_sacct_writes_its_elapsed_times_in_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trace", str(PUBLIC / "elapsed-only.sacct"), "--trace-format", "sacct", "--cluster", "a100:8"]
    assert main(["simulate", *words, "--policy", "fifo", "--jobs-out", "-"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[1], float(row[7])) for row in rows] == [("100", "2", 93783), ("101", "1", 300)]


@pytest.mark.public
def test_jobs_without_gpus_do_not_end_the_reading(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    header, *rows = (PUBLIC / "helios.csv").read_text().splitlines()
    for theirs, ours in (("submit_time", "timestamp"), ("gpu_num", "num_gpus")):
        header = header.replace(theirs, ours)
    (tmp_path / "helios.csv").write_text("\n".join([header, *rows]) + "\n")
    words = ["--trace", str(tmp_path / "helios.csv"), "--trace-format", "philly", "--cluster", "v100:64"]
    assert main(["simulate", *words, "--policy", "fifo", "--jobs-out", "-"]) == 0
    said = capsys.readouterr()
    assert "3 jobs are read; left out: 1 without GPUs, 1 that never ran" in said.err
    assert [line.split(",")[1] for line in said.out.splitlines()[1:]] == ["1", "4", "16"]


@pytest.mark.public
def test_a_trace_of_sacct_is_the_native_one(capsys: pytest.CaptureFixture[str]) -> None:
    ends = []
    for kind in ("csv", "sacct"):
        words = ["--trace", str(PUBLIC / f"accounts.{kind}"), "--cluster", "a100:1"]
        words += ["--trace-format", "native" if kind == "csv" else kind, "--policy", "gavel-hierarchical"]
        assert main(["simulate", *words, "--jobs-out", "-"]) == 0
        ends.append(capsys.readouterr().out)
    assert ends[0] == ends[1] and len(ends[0].splitlines()) > 10
