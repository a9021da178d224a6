# SPDX-License-Identifier: GPL-2.0-or-later
"""The first process of a trial, whatever its command does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from controller.cluster import family, first
from tests.contract.cluster_port_contract import until

FIRST = Path(first.__file__)
NOT_FATAL = {"SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH"}


class World:
    """The trial is in a folder of its own; its status goes to `exit` in another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.exit_file, self.out = folder / "work", folder / "trials" / "exit", folder / "out"
        for each in (self.folder, self.exit_file.parent):
            each.mkdir()
        self.script = FIRST

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with self.out.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(self.script), str(self.exit_file), *command],
                cwd=self.folder,
                env={**os.environ, "EXIT": str(self.exit_file), "WORLD": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def ended(self, *command: str) -> int:
        """The exit status; nothing of it is left."""
        code = self.start(*command).wait(60)
        assert self.exit_file.read_text() == f"{code:<4}\n"
        assert [path.name for path in self.exit_file.parent.iterdir()] == ["exit"]
        assert family.named(f"WORLD={self.folder}") == []
        return code

    def shell(self, script: str) -> int:
        return self.ended("sh", "-c", script)

    def has(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return (self.folder / name).exists()

        return look


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    family.send(family.named(f"WORLD={world.folder}"), signal.SIGKILL)


@pytest.fixture
def impatient(world: World) -> World:
    """Its first process waits for a moment only."""
    world.script = world.folder.parent / "first.py"
    world.script.write_text(FIRST.read_text().replace("GRACE_SECONDS = 10.0", "GRACE_SECONDS = 0.1"))
    assert world.script.read_text() != FIRST.read_text()
    return world


@pytest.mark.parametrize("code", [0, 1, 127, 128, 200, 255])
def test_the_status_is_that_of_the_command(world: World, code: int) -> None:
    assert world.shell(f"exit {code}") == code


def test_death_by_each_signal(world: World) -> None:
    """Also by those that Python ignores for itself."""
    fatal = [number for number in signal.valid_signals() if getattr(number, "name", "") not in NOT_FATAL]
    kinds = [number for number in fatal if number not in range(35, 64)]
    died = {number: world.shell(f"ulimit -c 0; kill -{int(number)} $$") for number in kinds}
    assert died == {number: 128 + number for number in kinds}


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("no-such-program", 127, "No such file or directory"),
        ("./text", 126, "Exec format error"),
        ("/", 126, "Permission denied"),
    ],
)
def test_a_command_that_cannot_be_run(world: World, command: str, code: int, said: str) -> None:
    (world.folder / "text").write_text("no program")
    (world.folder / "text").chmod(0o755)
    assert world.ended(command) == code
    assert world.out.read_text() == f"gandiva: cannot run {command}: {said}\n"


def test_nothing_can_be_said_on_a_full_disk(world: World) -> None:
    world.out.symlink_to("/dev/full")
    world.start("no-such-program").wait(60)
    assert int(world.exit_file.read_text()) == 127


def test_200_kb_of_arguments(world: World) -> None:
    assert world.ended("sh", "-c", 'exit "$(($# / 100))"', "sh", *["x" * 19] * 10_000) == 100


def test_children_that_ignore_a_signal_are_killed(impatient: World) -> None:
    """Below a command that ignores it as well."""
    script = "trap '' TERM; (setsid sleep 600 &); setsid sh -c 'sleep 600 & wait' & exit 9"
    assert impatient.shell(script) == 9


def test_children_that_are_stopped_end_in_order(world: World) -> None:
    child = "trap ': > saved; exit' TERM; kill -STOP $$"
    wait = "until grep -q 'State:.T' /proc/$!/status; do sleep 0.01; done"
    assert world.shell(f'sh -c "{child.replace("$", chr(92) + "$")}" & {wait}; exit 6') == 6
    assert (world.folder / "saved").exists()


def test_many_daemons_of_short_lives(world: World) -> None:
    script = "for i in $(seq 60); do (setsid sh -c 'sleep 0.01 & sh -c : & exit' &); done; exit 3"
    assert world.shell(script) == 3


def test_a_command_without_descriptors_and_folder(world: World) -> None:
    world.exit_file.parent.chmod(0o700)
    script = "import os; os.closerange(0, 1024); os.rmdir(os.getcwd()); os._exit(4)"
    assert world.ended(sys.executable, "-c", script) == 4


async def test_a_command_that_stops_itself(world: World) -> None:
    """It has not ended."""
    process = world.start("sh", "-c", "kill -STOP $$; exit 5")

    async def stopped() -> list[int]:
        return [pid for pid in family.below(process.pid) if family._stat(pid)[0] == "T"]

    (pid,) = await until("its stop", stopped)
    assert process.poll() is None and not world.exit_file.exists()
    os.kill(pid, signal.SIGCONT)
    assert process.wait(60) == 5


NAMED = """
import ctypes, os, time
if os.fork():
    os.wait()
    os._exit(8)
if os.fork():
    os._exit(0)
ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)
open("ready", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(
    "name", [b") S 1 (", b"a\n) (", b"\xff\xfe", b""], ids=["braces", "line", "bytes", "none"]
)
async def test_processes_of_any_name_are_found(world: World, name: bytes) -> None:
    """The name is in the same line as the parent's number."""
    program = "import sys, os, pathlib, time\nif os.fork() == 0:\n    exec(sys.argv[1])\n"
    program += "while not pathlib.Path('go').exists(): time.sleep(0.01)\nsys.exit(8)"
    process = world.start(sys.executable, "-c", program, NAMED.format(name=name))
    await until("the name", world.has("ready"))
    found = [family.process(pid) for pid in family.below(process.pid)]
    (world.folder / "go").touch()
    assert process.wait(60) == 8
    assert found and not any(each.lives() for each in found)
    assert family.named(f"WORLD={world.folder}") == []


async def test_what_has_had_a_signal_is_not_sent_another(world: World) -> None:
    """A shell dies of SIGTERM at once; what it runs has had it too, and saves its state."""
    program = (
        "trap 'echo x >> terms' TERM; : > ready; until [ -e go ]; do sleep 0.02; done; sleep 0.1; exit 0"
    )
    process = world.start("sh", "-c", f"sh -c {program!r} & wait")
    await until("its start", world.has("ready"))
    shell = family.below(process.pid)[0]
    family.send(family.below(process.pid), signal.SIGTERM)

    async def gone() -> bool:
        return shell not in family.below(process.pid)

    await until("the shell's end", gone)
    await until("the signal", world.has("terms"))
    assert process.poll() is None
    (world.folder / "go").touch()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert (world.folder / "terms").read_text() == "x\n"


async def test_a_signal_to_the_first_process_goes_to_the_command(world: World) -> None:
    process = world.start("sh", "-c", "trap 'exit 7' USR1; : > ready; while :; do sleep 0.02; done")
    await until("its start", world.has("ready"))
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 7


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_a_signal_to_what_takes_none(monkeypatch: pytest.MonkeyPatch, error: type[OSError]) -> None:
    """The command has just ended, or is another user's as sudo makes it."""

    def refuse(*_: int) -> None:
        raise error

    monkeypatch.setattr(os, "kill", refuse)
    first._send(4711, signal.SIGTERM)
    family.send([4711], signal.SIGTERM)


def test_the_room_for_the_status_is_there_before(world: World) -> None:
    """The disk may be full at the end."""
    assert world.shell('exit "$(wc -c < "$EXIT.new")"') == 5


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('ln -sf /dev/full "$EXIT.new"; exit 7', "No space left on device"),
        ('rm -r "$(dirname "$EXIT")"; exit 7', "No such file or directory"),
    ],
    ids=["full", "removed"],
)
def test_a_status_that_cannot_be_written(world: World, script: str, said: str) -> None:
    """It ends all the same, and says so."""
    assert world.start("sh", "-c", script).wait(60) == 7
    assert not world.exit_file.exists()
    assert world.out.read_text() == f"gandiva: exit status 7 cannot be written to {world.exit_file}: {said}\n"


def test_no_other_child_is_buried() -> None:
    """Of a process that has ended, another child may have the number now: its end is not ours to take."""
    with subprocess.Popen(["sh", "-c", "exit 3"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        mine = family.process(child.pid)
        assert not mine._replace(ticks=mine.ticks - 1).lives()
        assert child.wait(60) == 3
    child = subprocess.Popen(["sh", "-c", "exit 3"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not family.process(child.pid).lives()
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    child.wait(60)
