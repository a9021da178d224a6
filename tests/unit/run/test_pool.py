# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva.Pool` and `gandiva.Executor`: programs that submit trials to a real supervisor on mock GPUs."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import CancelledError, wait
from pathlib import Path

import pytest

from gandiva import Executor, Pool, PoolError
from gandiva.pool import Trial
from tests.unit.run.conftest import PATIENCE_SECONDS, Workstation, eventually

LEARN = """
import gandiva
with gandiva.attach() as session:
    for step in range(1, 4):
        session.report(step=step, accuracy=step / 10)
        session.step()
"""
UNTIL_GO = ("sh", "-c", "until test -e go; do sleep 0.02; done")


@pytest.fixture
def folder(workstation: Workstation, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a study; this process is on the workstation."""
    for name in os.environ.keys() - workstation.environ.keys():
        if name.startswith(("SLURM", "GANDIVA", "CUDA")):
            monkeypatch.delenv(name)
    for name, value in workstation.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(workstation.folder)
    return workstation.folder / "lr"


def supervisor(folder: Path) -> int:
    return int(json.loads((folder / "supervisor.json").read_text())["pid"])


def test_trials_of_a_list(folder: Path) -> None:
    with Pool(folder) as pool:
        learns = pool.submit(sys.executable, "-c", LEARN, name="learns", priority=2)
        fails = pool.submit("sh", "-c", "echo {no value}; exit 3")
        (folder / "trials/1.report").touch()
        assert {trial.number for trial in pool.as_completed(timeout=PATIENCE_SECONDS)} == {1, 2}
        assert (learns.state, learns.exit_code, learns.name) == ("COMPLETED", 0, "learns")
        assert (fails.state, fails.exit_code) == ("FAILED", 3)
        assert fails.output.read_text() == "{no value}\n"
        assert learns.last("accuracy") == 0.3 and learns.last("loss") is None
        assert learns.curve("accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3)]
        assert learns.reports == [{"step": n, "accuracy": n / 10} for n in (1, 2, 3)]
        assert fails.reports == []
    assert not (folder / "supervisor.json").exists(), "it has ended with the pool"
    assert [*(folder / "asked").iterdir(), *(folder / "answers").iterdir()] == []
    with pytest.raises(PoolError, match="closed"):
        pool.submit("true")


def test_what_can_never_run_is_refused(folder: Path, workstation: Workstation) -> None:
    file = workstation.study("[trial]\nenvironment = { A = 'from the file' }\n")
    with Pool(folder, file=file) as pool:
        first = pool.submit("sh", "-c", "echo $A", name="first")
        for words, keys in (
            ("needs 3, and there are 2", {"gpus": 3}),
            ("no such key", {"colour": 1}),
            ("directory", {"directory": "/nonexistent"}),
            ("values", {"values": "file.csv"}),
            ("another command", {"name": "first"}),
        ):
            with pytest.raises(PoolError, match=words):
                pool.submit("true", **keys)
        assert pool.submit("sh", "-c", "echo $A", name="first").number == first.number
        assert first.wait(PATIENCE_SECONDS) and first.output.read_text() == "from the file\n"
        ask = pool.ask
        pool.ask = lambda said: ask({**said, "more": 1})  # type: ignore[method-assign]
        with pytest.raises(PoolError, match="not understood"):
            pool.submit("true")
    assert len(list((folder / "trials").glob("*.json"))) == 1


def test_a_trial_is_stopped_and_given_priority(folder: Path, workstation: Workstation) -> None:
    with Pool(folder, policy="tiresias-las", gpus=[1]) as pool:
        long = pool.submit("sleep", "600", name="long")
        eventually("its start", lambda: long.state == "RUNNING")
        assert not long.wait(0.01) and long.exit_code is None
        with pytest.raises(TimeoutError):
            list(pool.as_completed(timeout=0.01))
        long.set_priority(4)
        long.set_exclusive()
        eventually("its word", lambda: "=4,exclusive" in workstation.trials()["long"].spec.word)
        with pytest.raises(ValueError, match="priority"):
            long.set_priority(0)
        long.stop()
        assert long.wait(PATIENCE_SECONDS) and long.state == "CANCELLED"
        assert [gpu for _, gpu in workstation.trials()["long"].binding] == [1]
    assert "tiresias-las" in (folder / "supervisor.out").read_text()


def test_a_killed_supervisor_is_followed_by_another(folder: Path, workstation: Workstation) -> None:
    with Pool(folder) as pool:
        waits = pool.submit(*UNTIL_GO)
        eventually("its start", lambda: waits.state == "RUNNING")
        first = supervisor(folder)
        os.kill(first, signal.SIGKILL)
        second = pool.submit("true")
        assert supervisor(folder) != first
        (workstation.folder / "go").touch()
        assert waits.wait(PATIENCE_SECONDS) and second.wait(PATIENCE_SECONDS)
        assert (waits.state, workstation.trials()[waits.name].restarts) == ("COMPLETED", 0)


def test_a_supervisor_that_was_ended_is_not_started_again(folder: Path) -> None:
    """Whoever sends SIGTERM, or types Ctrl-C, wants an end."""
    with pytest.raises(PoolError, match="has ended"), Pool(folder) as pool:
        waits = pool.submit("sleep", "600")
        os.kill(supervisor(folder), signal.SIGTERM)
        waits.wait(PATIENCE_SECONDS)
    assert not waits.done()


@pytest.mark.parametrize("how", ["killed", "exception"])
def test_a_program_that_ends_leaves_its_trials_to_the_supervisor(
    folder: Path, workstation: Workstation, how: str
) -> None:
    """Which ends when they are over."""
    program = (
        "import gandiva, os\nwith gandiva.Pool('lr') as pool:\n"
        f"    pool.submit(*{UNTIL_GO}, name='waits')\n"
        f"    {'os.kill(os.getpid(), 9)' if how == 'killed' else '1 / 0'}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if how == "exception" else -signal.SIGKILL), done.stderr
    eventually("the start", lambda: workstation.trials()["waits"].state_name == "RUNNING")
    with Pool(folder) as pool:
        (waits,) = (pool.submit(*UNTIL_GO, name="waits"),)
        assert waits.state == "RUNNING", "submitted once more it is the same"
        #   … the pool's end waits for its trials
        (workstation.folder / "go").touch()
    assert waits.state == "COMPLETED"
    eventually("the supervisor's end", lambda: not (folder / "supervisor.json").exists())


def test_ctrl_c_reaches_the_supervisor_too(folder: Path, workstation: Workstation) -> None:
    """Which puts the trials by: they wait for the next start of the program."""
    program = (
        "import gandiva, os, signal, time\n"
        "signal.signal(2, signal.default_int_handler)  # as in a terminal\n"
        "with gandiva.Pool('lr') as pool:\n"
        "    trial = pool.submit('sleep', '600', name='long')\n"
        "    while trial.state != 'RUNNING': time.sleep(0.01)\n"
        "    os.killpg(0, 2)\n    trial.wait()\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=False)
    assert "KeyboardInterrupt" in done.stderr
    eventually("the supervisor's end", lambda: not (folder / "supervisor.json").exists())
    assert workstation.trials()["long"].state_name == "PENDING"


def test_a_pool_joins_whoever_serves_the_study(folder: Path, workstation: Workstation) -> None:
    """And goes on alone when that has ended."""
    file = workstation.study("[[trials]]\nname = 'of the file'\ncommand = ['sleep', '600']\n")
    other = workstation.start(file)
    eventually("the supervisor", (folder / "supervisor.json").exists)
    with Pool(folder) as pool, Pool(folder) as second:
        mine, again = pool.submit("true"), second.submit("true")
        assert mine.wait(PATIENCE_SECONDS) and again.wait(PATIENCE_SECONDS) and mine.number != again.number
        assert supervisor(folder) == other.pid
        Trial(pool, 1).stop()
        said, _ = other.communicate(timeout=PATIENCE_SECONDS)
        assert other.returncode == 1, said
        assert pool.submit("true").wait(PATIENCE_SECONDS)
    with pytest.raises(PoolError, match="is on elsewhere"):
        (folder / "supervisor.json").write_text('{"host": "elsewhere", "pid": 1}')
        Pool(folder)


def test_why_no_supervisor_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PoolError, match="there is no GPU 7"):
        Pool(folder, gpus="7")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PoolError, match=r"pip install 'gandiva-slurm\[run\]'"):
        Pool(folder)


def test_functions_are_trials_too(folder: Path) -> None:
    with Pool(folder) as pool, Executor(pool, gpus="1-2") as executor:
        assert list(executor.map(pow, [2, 3], [3, 2])) == [8, 9]
        raises, ends = executor.submit(int, "x"), executor.submit(sys.exit, 4)
        unpicklable, sleeps = (
            executor.submit(open, os.devnull),
            executor.submit(eval, "__import__('time').sleep(600)"),
        )
        with pytest.raises(ValueError, match="invalid literal"):
            raises.result(PATIENCE_SECONDS)
        with pytest.raises(PoolError, match="FAILED, exit status 4"):
            ends.result(PATIENCE_SECONDS)
        with pytest.raises(RuntimeError, match="cannot be pickled"):
            unpicklable.result(PATIENCE_SECONDS)
        assert sleeps.cancel() and wait([sleeps], PATIENCE_SECONDS).not_done == set()
        stopped = executor.submit(eval, "__import__('time').sleep(600)")
        stopped.trial.stop()
        with pytest.raises(CancelledError):
            stopped.result(PATIENCE_SECONDS)
        with pytest.raises(TypeError, match="from modules"):
            executor.submit(lambda: 1)
    assert list((folder / "calls").iterdir()) == []
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(int)


def test_a_function_of_the_program_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> None: ...

    train.__module__, train.__qualname__ = "__main__", "train"
    monkeypatch.setattr(sys.modules["__main__"], "train", train, raising=False)
    with Pool(folder) as pool, pytest.raises(TypeError, match="of the program itself"):
        Executor(pool).submit(train)
