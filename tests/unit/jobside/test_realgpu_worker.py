# SPDX-License-Identifier: GPL-2.0-or-later
"""The PyTorch jobs of `benchmarks.realgpu`: deterministic, and the same after a time off the "GPU".

Tensors of the CPU stand in for those of a GPU, all but bytes, which are the session's own host memory and the
states of random number generators.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gandiva.layout import State, Verb

from .conftest import Block
from .need_torch import need_torch

need_torch()
ROOT = Path(__file__).resolve().parents[3]

CPU_AS_GPU = """
import torch
from gandiva import _accelerator

class CpuAsGpu(_accelerator.Accelerator):
    pinned = False
    def initialized(self): return True
    def owns(self, tensor): return tensor.dtype is not torch.uint8
    def synchronize(self): pass
    def release_caches(self): pass
    def check_supported(self, objects): pass
    def left_bytes(self): return 0
    def allocated_bytes(self): return 1 << 40

_accelerator.Accelerator = CpuAsGpu
import worker
worker.main()
"""


def start(folder: Path, *arguments: str, block: Block | None = None) -> subprocess.Popen[bytes]:
    folder.mkdir()
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    paths = (ROOT, ROOT / "benchmarks" / "realgpu", ROOT / "examples")
    environ["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths)
    if block is not None:
        environ["GANDIVA_CONTROL_DIR"] = str(block.directory)
    files = ("--log", str(folder / "log"), "--out", str(folder / "out"), "--until", str(folder / "until"))
    words = [sys.executable, "-c", CPU_AS_GPU, "--device", "cpu", "--small", "--state-mib", "1"]
    return subprocess.Popen([*words, *arguments, *files], env=environ, cwd=folder)


def result(folder: Path, process: subprocess.Popen[bytes]) -> Any:
    assert process.wait(timeout=120) == 0
    return json.loads((folder / "out").read_text())


@pytest.mark.parametrize(
    "words",
    [("gpt",), ("resnet",), ("mlp",), ("mlp", "--hazard", "dtensor"), ("mlp", "--hazard", "ddp")],
    ids=lambda words: words[-1],
)
def test_a_job_that_left_ends_with_the_digests_of_one_left_alone(
    tmp_path: Path, words: Sequence[str]
) -> None:
    block = Block(tmp_path / "1")
    away, alone = tmp_path / "away", tmp_path / "alone"
    process = start(away, "--model", *words, block=block)
    try:
        block.wait_for(State.RUNNING)
        block.wait(lambda: record if (record := block.rank()).steps_done > 2 else None)
        sequence = block.command(Verb.PAUSE, block.rank().steps_done + 2)
        step = block.wait_for(State.BLOCKED, sequence=sequence).steps_done
        block.wait_for(State.OFFLOADED, sequence=block.command(Verb.OFFLOAD, step))
        block.wait_for(State.RUNNING, sequence=block.command(Verb.RUN))
        (away / "until").touch()
        left = result(away, process)
    finally:
        process.kill()
        process.wait()
    entries = [json.loads(line) for line in (away / "log").read_text().splitlines()]
    switches = {entry["switch"]: entry for entry in entries if "switch" in entry}
    assert set(switches["count"]["parts"]) == {"gc", "plan"}
    assert set(switches["offload"]["parts"]) == {"wait", "plan", "reserve", "caches"}
    assert switches["restore"]["seconds"] > 0
    undisturbed = start(alone, "--model", *words, "--no-session", "--steps", str(left["steps"]))
    assert result(alone, undisturbed) == left
    losses = [entry["loss"] for entry in entries if "step" in entry]
    assert len(set(losses)) > 1, "it learns something"
