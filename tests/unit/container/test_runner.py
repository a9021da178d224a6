# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands by a process that stays on a host: here one of this machine, behind an engine that frames its
outputs as Docker does."""

from __future__ import annotations

import getpass
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import pytest

from container.errors import CommandError, DeadlineError
from container.execute import Completed
from container.runner import Runner


class Engine:
    """What `Runner` asks of an engine's client; `processes` are those that it has started."""

    def __init__(self) -> None:
        self.api = self
        self.processes: list[subprocess.Popen[bytes]] = []
        self._words: list[str] = []

    def exec_create(self, container: str, words: list[str], stdin: bool) -> dict[str, str]:
        self._words = [sys.executable, *words[1:]]
        return {"Id": container}

    def exec_start(self, number: str, *, socket: bool) -> Any:
        return self._connected()

    def _connected(self) -> Any:
        ours, theirs = socket.socketpair()
        pipe = subprocess.PIPE
        process = subprocess.Popen(self._words, stdin=theirs.fileno(), stdout=pipe, stderr=pipe)
        self.processes.append(process)
        assert process.stdout is not None and process.stderr is not None
        pumps = [
            threading.Thread(target=_pump, args=(kind, source, theirs), daemon=True)
            for kind, source in ((1, process.stdout), (2, process.stderr))
        ]
        for pump in pumps:
            pump.start()
        threading.Thread(target=_end, args=(pumps, theirs), daemon=True).start()
        return ours


def _pump(kind: int, source: BinaryIO, target: socket.socket) -> None:
    while piece := source.read1(1000):  # type: ignore[attr-defined]
        target.sendall(struct.pack(">BxxxI", kind, len(piece)) + piece)


def _end(pumps: list[threading.Thread], target: socket.socket) -> None:
    for pump in pumps:
        pump.join()
    target.shutdown(socket.SHUT_RDWR)
    target.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    for process in made.processes:
        process.kill()
        process.wait()  # Its pumps read to the end.


@pytest.fixture
def runner(engine: Engine) -> Iterator[Runner]:
    made = Runner(engine, "some-container", "n1")
    yield made
    made.close()


def run(runner: Runner, command: str, *, timeout_seconds: float = 60.0, **options: Any) -> Completed:
    wanted = {"check": True, "env": {}, "stdin": None, "workdir": None, **options}
    return runner.run(command, user=getpass.getuser(), timeout_seconds=timeout_seconds, **wanted)


def test_outputs_status_environment_folder_and_input(runner: Runner, tmp_path: Any) -> None:
    script = 'echo "$WORD"; pwd >&2; cat; exit 3'
    done = run(runner, script, check=False, env={"WORD": "a b"}, workdir=str(tmp_path), stdin=b"\0\xff\n")
    assert done == Completed("a b\n\0\ufffd\n", f"{tmp_path}\n", 3)
    assert run(runner, "cat; echo end").stdout == "end\n"


def test_a_status_other_than_0_raises_with_what_was_said(runner: Runner) -> None:
    with pytest.raises(CommandError, match="n1: 'echo no room; exit 4' ended with status 4: no room"):
        run(runner, "echo no room; exit 4")
    assert run(runner, "kill -KILL $$", check=False).exit_code == 137


def test_much_output_and_many_at_once_by_one_process(runner: Runner, engine: Engine) -> None:
    def much(number: int) -> bool:
        done = run(runner, f"yes {number} | head -n 200000", check=False)
        return done.stdout == f"{number}\n" * 200_000

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(much, range(4)))
    assert len(engine.processes) == 1


def test_it_ends_with_its_process_whatever_keeps_the_outputs_open(runner: Runner) -> None:
    done = run(runner, "sleep 300 & echo $!")
    assert (
        run(runner, f"ps -o args= -p {done.stdout.strip()}; kill {done.stdout.strip()}").stdout
        == "sleep 300\n"
    )


def test_a_command_that_takes_too_long_is_killed(runner: Runner) -> None:
    with pytest.raises(DeadlineError, match=r"n1: 'exec sleep 300' was killed after 0.2 s"):
        run(runner, "exec sleep 300", timeout_seconds=0.2)


def test_where_the_host_goes_away_its_commands_end_and_the_next_opens_it_again(
    runner: Runner, engine: Engine, tmp_path: Any
) -> None:
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, runner, f"touch {begun}; exec sleep 60", check=False)
        while not begun.exists():
            time.sleep(0.01)
        engine.processes[0].kill()
        with pytest.raises(CommandError, match=r"n1: .* the host went away"):
            waiting.result()
    assert run(runner, "echo again").stdout == "again\n"
    assert len(engine.processes) == 2


def test_what_cannot_be_started_is_said(runner: Runner) -> None:
    with pytest.raises(CommandError, match=r"status 126: cannot run .*/nowhere"):
        run(runner, "true", workdir="/nowhere")
