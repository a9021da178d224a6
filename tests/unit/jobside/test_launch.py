# SPDX-License-Identifier: GPL-2.0-or-later
"""One rank for each GPU that a start of the job has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gandiva._processes import PASSED_ON
from gandiva.launch import gpus

from .conftest import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]


def start(folder: Path, script: str, devices: str = "4,7", launcher: str = "launch") -> subprocess.Popen[str]:
    (folder / "script.py").write_text(script)
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
    environ |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": devices}
    words = [sys.executable, "-m", f"gandiva.{launcher}", "script.py", "word"]
    return subprocess.Popen(words, cwd=folder, env=environ, text=True, stdout=subprocess.PIPE)


def test_each_rank_is_told_which_it_is(tmp_path: Path) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR CUDA_VISIBLE_DEVICES"
    line = f"' '.join([*(os.environ[n] for n in {names.split()}), sys.argv[1]]) + '\\n'"
    # One write: both ranks have the same pipe.
    script = f"import os, sys\nos.write(1, ({line}).encode())\nassert int(os.environ['MASTER_PORT']) > 0"
    done = start(tmp_path, script)
    out, _ = done.communicate(timeout=PATIENCE_SECONDS)
    assert sorted(out.splitlines()) == [f"{rank} {rank} 2 2 127.0.0.1 4,7 word" for rank in range(2)]
    assert done.returncode == 0


def test_when_one_fails_the_others_are_ended(tmp_path: Path) -> None:
    failing = "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '2' else time.sleep(900)"
    done = start(tmp_path, failing, "0,1,2")
    done.communicate(timeout=PATIENCE_SECONDS)
    assert done.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, *PASSED_ON])
@pytest.mark.parametrize("launcher", ["launch", "ranks"])
def test_a_signal_reaches_every_rank(tmp_path: Path, launcher: str, number: signal.Signals) -> None:
    if launcher == "ranks" and number in (signal.SIGTERM, signal.SIGINT):
        pytest.skip("these end gandiva.ranks, which then ends its ranks")
    # A rank ends when all have been told: the launcher ends the others as soon as one has exited.
    waiting = (
        "import os, pathlib, signal, sys, time\n"
        "here, name = pathlib.Path(), os.environ['RANK']\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"signal.signal({int(number)}, lambda *_: (here / (name + '.told')).touch())\n"
        "(here / (name + '.ready')).touch()\n"
        "while len(list(here.glob('*.told'))) < 2: time.sleep(0.01)\n"
        "sys.exit(5)"
    )
    done = start(tmp_path, waiting, launcher=launcher)
    until = time.monotonic() + PATIENCE_SECONDS
    while len(list(tmp_path.glob("*.ready"))) < 2:
        assert time.monotonic() < until and done.poll() is None
        time.sleep(0.02)
    done.send_signal(number)
    done.communicate(timeout=PATIENCE_SECONDS)
    assert done.returncode == 5 and len(list(tmp_path.glob("*.told"))) == 2


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2,GPU-3"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "4"}, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
    ],
)
def test_how_many_gpus_there_are(environ: dict[str, str], count: int) -> None:
    assert gpus(environ) == count


def test_without_a_script_it_says_how_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-m", "gandiva.launch"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "usage" in done.stderr
