# SPDX-License-Identifier: GPL-2.0-or-later
"""How kernels of several processes share a GPU: exactly, in made-up time, and once for real."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.mock_gpu.bench import SOURCE, Node


@pytest.fixture(scope="session")
def clock_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc)")
    program = tmp_path_factory.mktemp("clock") / "clock_table"
    source = Path(__file__).with_name("clock_table.c")
    subprocess.run(
        [
            "cc",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-o",
            str(program),
            str(source),
            str(SOURCE / "src/gpu_clock.c"),
            "-lm",
        ],
        check=True,
    )
    return program


def play(program: Path, script: str) -> list[str]:
    done = subprocess.run(
        [str(program)], input=script, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_alone_a_kernel_takes_its_time(clock_table: Path) -> None:
    script = "start 0 0 100 60\nlook 40\nlook 99\nlook 100\nlook 500"
    assert play(clock_table, script) == [
        "40000 40000 0:100 util=4",
        "99000 99000 0:100 util=10",
        "100000 100000 util=10",
        "100000 100000 util=11",  # of the last seven eighths of a second, and the eighth under way
    ]


def test_shares_of_up_to_a_hundred_do_not_disturb_each_other(clock_table: Path) -> None:
    script = "start 0 0 100 60\nstart 20 1 100 40\nlook 50\nlook 110\nlook 120"
    lines = play(clock_table, script)
    assert lines[0].split()[2:4] == ["0:100", "1:120"]
    assert lines[1].split()[2] == "1:120"
    assert lines[2].split()[:2] == ["120000", "120000"]


def test_above_a_hundred_all_slow_down_in_proportion(clock_table: Path) -> None:
    # 80 + 80: both at 100/160 of their speed, so 100 ms take 160.
    script = "start 0 0 100 80\nstart 0 1 100 80\nlook 80\nlook 160"
    lines = play(clock_table, script)
    assert lines[0].split()[2:4] == ["0:160", "1:160"]
    assert lines[1].split()[0] == "100000"


def test_a_kernel_speeds_up_when_the_other_ends(clock_table: Path) -> None:
    # Until 80 ms both run at 100/160: kernel 1 (50 ms) is done, kernel 0 has 50 ms to go, now at full speed.
    script = "start 0 0 100 80\nstart 0 1 50 80\nlook 10\nlook 80\nlook 130"
    lines = play(clock_table, script)
    assert lines[0].split()[2:4] == ["0:130", "1:80"]
    assert lines[1].split()[2:3] == ["0:130"]
    assert lines[2].startswith("100000 130000 util")


def test_a_late_look_finds_all_ends_in_between(clock_table: Path) -> None:
    # Nobody looks for an hour, as when all processes are stopped: busy time is that of the kernels.
    script = "start 0 0 100 80\nstart 0 1 50 80\nstart 200 2 30 100\nlook 3600000"
    assert play(clock_table, script) == ["130000 160000 util=0"]


def test_a_faster_gpu_needs_less_time(clock_table: Path) -> None:
    assert play(clock_table, "speed 2.0\nstart 0 0 100 50\nlook 10")[0].split()[2] == "0:50"
    assert play(clock_table, "speed 0.5\nstart 0 0 100 50\nlook 10")[0].split()[2] == "0:200"


def test_kernels_of_one_process_queue_up(clock_table: Path) -> None:
    assert play(clock_table, "start 0 0 100 50\nstart 10 0 100 50\nlook 20")[0].split()[2] == "0:200"


def test_two_processes_slow_each_other_down_for_real(node: Node) -> None:
    one, other = node.worker(), node.worker()
    one.send("timed", 1_000_000, 90)
    other.send("timed", 1_000_000, 90)
    # Together they need 1.8 s of the GPU; the second to end cannot have been done before (less what it
    # started later than the first, which then ran alone for that time).
    assert one.answer() + other.answer() > 2.5
    assert node.show()["gpus"][0]["busy_ns"] >= 1_795_000_000
    busy = [event for event in node.history() if event["event"] == "busy"]
    assert all(0 < event["busy_ns"] <= event["window_ns"] for event in busy)
