# SPDX-License-Identifier: GPL-2.0-or-later
"""What a way to run short trials costs: all that it starts is counted; and a few trials with our own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.short_trials import Cost

ROOT = Path(__file__).resolve().parents[3]
BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def told(script: str) -> Any:
    """What a script prints in a process of its own: `measure` waits for all children of its process."""
    lines = f"import json, subprocess, sys\nfrom benchmarks.short_trials import *\n{script}"
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_what_a_trial_costs_beyond_its_own_work() -> None:
    plain = Cost(100, 25.0, 0.2, 0.0, 0, 1.0)
    assert Cost(2000, 600.0, 44.0, 20.0, 1, 1.0).beyond(plain) == pytest.approx(0.02)


@pytest.mark.parametrize("script", ["{python} -c '{busy}'", "({python} -c '{busy}' &)"])
def test_the_time_of_processes_below_counts_also_when_they_are_orphaned(script: str) -> None:
    words = ["sh", "-c", script.format(python=sys.executable, busy=BUSY)]
    cost = told(f"print(json.dumps(measure(1, lambda: subprocess.Popen({words}), Path()).cpu_seconds))")
    assert cost >= 0.3


def test_a_way_that_fails_has_no_cost(tmp_path: Path) -> None:
    (tmp_path / "said").write_text("no GPU")
    script = f"try: measure(1, lambda: subprocess.Popen(['false']), Path({str(tmp_path / 'said')!r}))\n"
    assert told(f"{script}except subprocess.CalledProcessError as error: print(error.returncode)") == 1


@pytest.mark.usefixtures("mock_gpu")
def test_a_few_trials_with_gandiva_run() -> None:
    cost = told("print(json.dumps(asdict(with_gandiva(5, 'fifo'))))")
    assert cost["trials"] == 5 and cost["wall_seconds"] >= 2.0
    assert cost["cpu_seconds"] > cost["main_cpu_seconds"] > 0 < cost["peak_bytes"]
