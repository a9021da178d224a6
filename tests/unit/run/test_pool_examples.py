# SPDX-License-Identifier: GPL-2.0-or-later
"""The examples that use a pool, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.run.conftest import PATIENCE_SECONDS, ROOT, Workstation

TRAINING = "--steps=60 --tell=5 --minibatch-ms=5"


def run(workstation: Workstation, example: str, *words: str, path: tuple[Path, ...] = ()) -> str:
    environ = {**workstation.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path)))}
    command = [sys.executable, str(ROOT / "examples" / example), "--trial", TRAINING, *words]
    done = subprocess.run(
        command,
        cwd=workstation.folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_list_of_rates(workstation: Workstation) -> None:
    said = run(workstation, "pool_list.py", "--rates", "0.0003,1,3")
    assert set(re.findall("rate=[0-9.]+: COMPLETED, accuracy 0[.]", said)) == {
        f"rate={rate}: COMPLETED, accuracy 0." for rate in ("0.0003", "1", "3")
    }
    assert "best: rate=3" in said
    again = run(workstation, "pool_list.py", "--rates", "0.0003,1,3")
    assert sorted(again.splitlines()) == sorted(said.splitlines()), "nothing is trained twice"


def test_a_real_optuna_study_with_pruning(workstation: Workstation) -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not there: make env")
    path = Path(optuna.__file__).parents[1]
    words = ("--trials", "10", "--at-once", "3", "--warm-up", "10", "--seed", "1")
    said = run(workstation, "optuna_study.py", *words, path=(path,))
    count = {state: int(number) for state, number in re.findall("([A-Z]+): ([0-9]+)", said)}
    assert count["COMPLETE"] + count["PRUNED"] == 10 and count["FAIL"] == 0
    assert count["PRUNED"] >= 1
    states = [trial.state_name for trial in workstation.trials().values()]
    assert states.count("CANCELLED") <= count["PRUNED"]
    assert "best: rate" in said
