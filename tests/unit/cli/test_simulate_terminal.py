# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva simulate` on a terminal: a bar with percent and time left, which leaves nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from controller.cli import simulate

ROOT = Path(__file__).resolve().parents[3]


class Terminal:
    """The master end of a terminal of `columns`."""

    def __init__(self, columns: int) -> None:
        self.end, self.terminal = pty.openpty()
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def text(self) -> str:
        """All that was written to it; the writer must be gone."""
        os.close(self.terminal)
        found = b""
        try:
            while piece := os.read(self.end, 65536):
                found += piece
        except OSError:  # how Linux says that a terminal has no other end any more
            os.close(self.end)
        return found.decode()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    lines = ["job_id,submit_seconds,duration_seconds,gpus"]
    path.write_text("\n".join(lines + [f"{n},{n * 7},{600 + n % 50},1" for n in range(1, 301)]) + "\n")
    return path


def command(trace: Path) -> list[str]:
    words = f"simulate --trace {trace} --trace-format native --cluster a100:32 --policy fifo --json"
    return [sys.executable, "-m", "controller.cli.main", *words.split()]


ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TERM": "xterm", "COLUMNS": ""}


def test_a_bar_on_the_terminal_and_only_the_result_on_the_output(trace: Path) -> None:
    terminal = Terminal(100)
    done = subprocess.run(
        command(trace), cwd=trace.parent, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=terminal.terminal,
        timeout=120, check=True,
    )  # fmt: skip
    shown = terminal.text()
    assert json.loads(done.stdout)["completed"] == 300
    assert "100 % of 300 jobs at " in shown and "s left" in shown and "\n" not in shown
    assert shown.endswith("\r\x1b[K"), "the line is wiped at the end"


def test_no_bar_where_errors_go_to_a_file(trace: Path) -> None:
    done = subprocess.run(
        command(trace), cwd=trace.parent, env=ENVIRONMENT, capture_output=True, timeout=120, check=True
    )
    assert done.stderr == b"" and json.loads(done.stdout)["completed"] == 300


def test_the_bar_counts_and_fits_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(40)
    clock = iter([0.0, 5.0, 10.0, 10.05, 20.0, 30.0])
    monkeypatch.setattr("controller.cli.simulate.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("shutil.get_terminal_size", lambda _fallback: os.terminal_size((200, 24)))
    with os.fdopen(os.dup(terminal.terminal), "w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        show = simulate._progress("fifo")
        for done, simulated in ((0, 5.0), (25, 93784.0), (26, 93784.0), (50, 93785.0)):
            show(done, 100, simulated)
        monkeypatch.setattr("shutil.get_terminal_size", lambda _fallback: os.terminal_size((40, 24)))
        show(75, 100, 0.0)
        monkeypatch.undo()
    lines = terminal.text().split("\r")[1:]
    assert lines[0] == f"fifo [{'.' * 24}] 0 % of 100 jobs at 00:00:05\x1b[K"
    assert lines[1] == "fifo [######..................] 25 % of 100 jobs at 1-02:03:04, 30 s left\x1b[K"
    assert lines[2] == "fifo [############............] 50 % of 100 jobs at 1-02:03:05, 20 s left\x1b[K", (
        "at most ten a second"
    )
    assert len(lines[3]) == 39 + len("\x1b[K")
