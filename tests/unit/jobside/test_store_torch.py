# SPDX-License-Identifier: GPL-2.0-or-later
"""The PyTorch example is killed after it has saved, starts again from its store, and learns the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gandiva.layout import State, Verb

from .conftest import PATIENCE_SECONDS, Block
from .need_torch import need_torch

torch: Any = need_torch()
ROOT = Path(__file__).resolve().parents[3]
STEPS = 80


def start(folder: Path, block: Block | None) -> subprocess.Popen[str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("GANDIVA")}
    environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if block is not None:
        environ["GANDIVA_CONTROL_DIR"] = str(block.directory)
    words = ["--steps", str(STEPS), "--store", str(folder / "store"), "--state-out", str(folder / "out")]
    program = [sys.executable, str(ROOT / "examples/train_torch.py"), *words]
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(program, env=environ, text=True, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=PATIENCE_SECONDS * 4)
    assert process.returncode == 0
    return text


def test_the_example_goes_on_bit_for_bit(block: Block, tmp_path: Path) -> None:
    assert "goes on from step 0" in finish(start(tmp_path / "plain", None))
    block.command(Verb.PAUSE, 50)
    first = start(tmp_path / "moved", block)
    try:
        assert block.wait_for(State.BLOCKED).steps_done == 50
        found = block.wait_for(State.BLOCKED, sequence=block.command(Verb.SAVE, 50))
        assert (found.saved_step, found.saved_generation) == (50, 1)
    finally:
        first.kill()
        first.communicate()
    block.command(Verb.RUN)
    assert "goes on from step 50" in finish(start(tmp_path / "moved", block))
    ended = [json.loads((tmp_path / name / "out").read_text()) for name in ("plain", "moved")]
    assert ended[0] == ended[1]
