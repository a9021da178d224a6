# SPDX-License-Identifier: GPL-2.0-or-later
"""The example of a job of several ranks goes on with more ranks or fewer, and learns the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import PATIENCE_SECONDS
from .need_torch import need_torch

torch: Any = need_torch()
ROOT = Path(__file__).resolve().parents[3]


def train(folder: Path, ranks: int, until: int, *words: str) -> list[dict[str, Any]]:
    """Up to this step, from where the start before has ended. Returns what was logged so far."""
    folder.mkdir(exist_ok=True)
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("GANDIVA", "SLURM"))}
    environ |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(ranks)))}
    environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    script = [str(ROOT / "examples/train_ddp.py"), "--store", "store", "--log", "log", "--until", str(until)]
    program = [sys.executable, "-m", "gandiva.launch", *script, *words]
    subprocess.run(program, cwd=folder, env=environ, check=True, timeout=PATIENCE_SECONDS * 4)
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, until + 1))
    return lines


def losses(lines: list[dict[str, Any]]) -> list[float]:
    return [line["loss"] for line in lines]


@pytest.mark.parametrize("words", [(), ("--fsdp",)], ids=["ddp", "fsdp"])
def test_with_a_global_batch_the_curve_is_that_of_one_size(tmp_path: Path, words: tuple[str, ...]) -> None:
    undisturbed = losses(train(tmp_path / "plain", 2, 120, *words))
    found: list[dict[str, Any]] = []
    for ranks, until in ((2, 40), (4, 80), (2, 120)):
        found = train(tmp_path / "sizes", ranks, until, *words)
    assert [line["ranks"] for line in found] == [2] * 40 + [4] * 40 + [2] * 40
    assert losses(found)[:40] == undisturbed[:40], "bit for bit"
    assert losses(found) == pytest.approx(undisturbed, rel=1e-4)
    assert undisturbed[-1] < undisturbed[0] / 4, "it learns"


def test_with_a_batch_of_each_rank_a_step_has_more_samples(tmp_path: Path) -> None:
    for ranks, until in ((1, 10), (2, 15)):
        found = train(tmp_path, ranks, until, "--per-rank", "16")
    assert [line["samples"] for line in found] == [*range(16, 161, 16), *range(192, 321, 32)]
