# SPDX-License-Identifier: GPL-2.0-or-later
"""Comparisons in the mini cluster's image: what is asked of Docker, and what becomes of it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from benchmarks import run
from benchmarks.peers import in_image, tiresias
from benchmarks.peers.in_image import Interpreter
from benchmarks.peers.measure import ROOT
from container import engine, images
from container.errors import EngineError, ImageError


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Of Tiresias, with a space in its name."""
    folder = tmp_path / "a clone"
    for name in ("simulator/run_sim.py", "simulator/old.pyc", ".git/config", ".hidden", "py/bin/python"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder


def answering(path: Path, *words: object) -> str:
    """A program that says of itself what a Python would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{json.dumps(words)}'\n")
    path.chmod(0o755)
    return str(path)


def test_a_virtual_environment_needs_the_python_it_was_made_with(tmp_path: Path) -> None:
    """And both names of what is a link."""
    (tmp_path / "3.11.7").mkdir()
    (tmp_path / "3.11").symlink_to(tmp_path / "3.11.7")
    program = tmp_path / "venv/bin/python"
    python = answering(program, str(program), str(tmp_path / "venv"), str(tmp_path / "3.11"), "/elsewhere")
    names = ("3.11", "3.11.7", "venv")
    assert in_image.interpreter(python) == Interpreter(python, tuple(tmp_path / name for name in names))


def test_a_link_to_a_python_is_not_where_it_lives(tmp_path: Path) -> None:
    link, real = tmp_path / "bin/python2.7", tmp_path / "2.7/bin/python2.7"
    answering(real, str(link), str(tmp_path / "2.7"), str(tmp_path / "2.7"), "/elsewhere")
    link.parent.mkdir()
    link.symlink_to(real)
    assert in_image.interpreter(str(link)) == Interpreter(str(real), (tmp_path / "2.7",))


@pytest.mark.parametrize("prefix", ["/usr", "/"])
def test_the_systems_python_does_not_bring_its_system_along(tmp_path: Path, prefix: str) -> None:
    """The image's own lies in the same place."""
    python = answering(tmp_path / "python", "/usr/bin/python9.9", prefix, prefix, "/usr/lib/python9.9")
    paths = (Path("/usr/bin/python9.9"), Path("/usr/lib/python9.9"))
    assert in_image.interpreter(python) == Interpreter("/usr/bin/python9.9", paths)


def test_this_python_lives_where_it_says() -> None:
    found = in_image.interpreter(sys.executable)
    assert Path(sys.prefix) in found.paths
    assert found.executable == sys.executable


def test_the_comparison_is_told_where_everything_is(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the last words, so whatever else was given, relative paths too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refs").mkdir()
    python = answering(
        clone / "py/bin/python", str(clone / "py/bin/python"), str(clone / "py"), "/", "/lib/x"
    )
    options = [
        "--tiresias",
        "a clone",
        "--python2",
        python,
        "--refs",
        "refs",
        "--only",
        "xs|60",
        "--repeat",
        "7",
    ]
    plan = in_image.plan(in_image.PEERS["tiresias"], options, tiresias.parsed(options))
    assert plan.clone == clone
    assert {tmp_path / "refs", clone / "py"} <= set(plan.read)
    begin = f"exec {in_image.PYTHON} -m benchmarks.peers.tiresias "
    words = next(line for line in plan.script.splitlines() if line.startswith(begin))
    told = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {words}"], capture_output=True, text=True, check=True
    )
    args = tiresias.parsed(told.stdout.splitlines()[4:])
    assert (args.tiresias, args.python2, args.refs) == (clone, python, tmp_path / "refs")
    assert (args.only, args.repeat) == ("xs|60", 7)

    asked = in_image.container_options(plan)
    assert all(mount["ReadOnly"] and mount["Type"] == "bind" for mount in asked["mounts"])
    mounts = {mount["Target"]: mount["Source"] for mount in asked["mounts"]}
    assert mounts == mounts | {
        in_image.OURS: str(ROOT),
        in_image.CLONE: str(clone),
        str(clone / "py"): str(clone / "py"),
        str(tmp_path / "refs"): str(tmp_path / "refs"),
    }
    assert set(asked["tmpfs"]) == {"/tmp", str(clone)}
    assert asked["read_only"] and asked["auto_remove"] and asked["network_mode"] == "none"
    assert asked["user"] == f"{os.geteuid()}:{os.getegid()}" and asked["cap_drop"] == ["ALL"]


def test_the_container_runs_copies_that_are_compiled(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ours what runs, of theirs all but the history and their Python, which is there already."""
    shutil.move(clone, tmp_path / "theirs")
    for name in ("benchmarks", "controller/__pycache__", "gandiva", "docs"):
        (tmp_path / "ours" / name).mkdir(parents=True)
        (tmp_path / "ours" / name / "file").write_text("")
    for name, place in (("OURS", "ours"), ("CLONE", "theirs"), ("COPY", "copy")):
        monkeypatch.setattr(in_image, name, str(tmp_path / place))
    said = tmp_path / "said"
    (tmp_path / "python").write_text(f'#!/bin/sh\npwd >> {said}\nprintf "%s." "$@" >> {said}\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(in_image, "PYTHON", str(tmp_path / "python"))
    theirs = Interpreter(str(tmp_path / "python"), (clone / "py", tmp_path / "elsewhere"))
    script = in_image.script("the.module", clone, theirs, ["--only", "a b|c"])
    subprocess.run(["bash", "-c", script], check=True)
    copied = {str(path.relative_to(tmp_path)) for path in (tmp_path / "copy").rglob("*")}
    assert copied == {
        *("copy/benchmarks", "copy/controller", "copy/gandiva"),
        *("copy/benchmarks/file", "copy/gandiva/file"),
    }
    assert {path.name for path in clone.iterdir()} == {"simulator", ".hidden"}
    before, after = said.read_text().split(f"\n{'-m.compileall'}", 1)
    assert before and after.startswith(f".-q.{clone}.")
    assert after.endswith(f"{tmp_path}/copy\n-m.the.module.--only.a b|c.")


class FakeContainer:
    id = "cafe"

    def __init__(self, fails: bool, removal: int = 404) -> None:
        self.fails, self.removal, self.done = fails, removal, list[str]()

    def start(self) -> None:
        self.done.append("start")
        if self.fails:
            raise docker.errors.APIError("bind source path does not exist")

    def remove(self, force: bool) -> None:
        assert force
        self.done.append("remove")
        response = SimpleNamespace(status_code=self.removal, url="", reason="see its number")
        raise docker.errors.APIError("not removed", response)


def client(container: FakeContainer) -> Any:
    return SimpleNamespace(containers=SimpleNamespace(create=lambda *_words, **_options: container))


def test_a_container_is_gone_after_its_use() -> None:
    container = FakeContainer(fails=False)
    with pytest.raises(SystemExit), in_image.started(client(container), "image", {}) as name:
        assert name == "cafe" and container.done == ["start"]
        raise SystemExit(143)
    assert container.done == ["start", "remove"]


def test_a_container_that_does_not_start_is_gone() -> None:
    container = FakeContainer(fails=True)
    with (
        pytest.raises(docker.errors.APIError, match="bind source"),
        in_image.started(client(container), "image", {}),
    ):
        pytest.fail("it did start")
    assert container.done == ["start", "remove"]


@pytest.mark.parametrize(("status", "told"), [(404, False), (409, False), (500, True)])
def test_a_removal_that_fails_is_told_unless_the_engine_is_at_it(status: int, told: bool) -> None:
    container = FakeContainer(fails=False, removal=status)
    with pytest.raises(docker.errors.APIError) if told else nullcontext():
        in_image.remove(container)


def test_what_ends_us_waits_for_the_removal() -> None:
    """Also with a second thread, which a signal to the process may reach."""
    before = signal.signal(signal.SIGTERM, in_image.interrupted)
    done = []
    over = threading.Event()
    threading.Thread(target=over.wait, daemon=True).start()
    try:
        with pytest.raises(SystemExit) as ended, in_image.held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)  # the other thread takes it
            done.append("removed")
        assert done == ["removed"] and ended.value.code == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is in_image.interrupted
    finally:
        over.set()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Something to run: nothing is missing for it."""
    monkeypatch.setattr(tiresias, "missing", lambda _args: "")
    monkeypatch.setattr(in_image, "plan", lambda *_: in_image.Plan("script", Path("/clone"), ()))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return argparse.Namespace()


def failing(error: Exception) -> Any:
    def fail(*_words: object, **_options: object) -> None:
        raise error

    return fail


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("what", ["engine", "image", "container"])
def test_without_a_container_nothing_is_run_and_why_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    container = FakeContainer(fails=what == "container")
    monkeypatch.setattr(engine, "connect", lambda **_: client(container))
    ensure = failing(ImageError("no mirror")) if what == "image" else lambda: "image"
    monkeypatch.setattr(images, "Images", lambda *_: SimpleNamespace(ensure=ensure))
    if what == "engine":
        monkeypatch.setattr(engine, "connect", failing(EngineError("no engine, and not root")))
    assert in_image.main(["tiresias"]) == in_image.NO_CONTAINER == run.NO_CONTAINER
    shown = capsys.readouterr()
    why = {"engine": "no engine, and not root", "image": "no mirror", "container": "bind source"}[what]
    assert shown.out == "" and shown.err.count("\n") == 1 and why in shown.err


@pytest.mark.usefixtures("planned")
def test_the_status_is_that_of_the_comparison_and_its_output_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(_client: object, name: str, words: list[str], **options: Any) -> object:
        assert (name, words, options["check"]) == ("cafe", ["bash", "-c", "script"], False)
        options["on_output"]("| a row |\n")
        return SimpleNamespace(exit_code=7)

    container = FakeContainer(fails=False)
    made: list[str] = []
    monkeypatch.setattr(engine, "connect", lambda **_: client(container))

    def image(_client: object, release: str, _report: object) -> object:
        made.append(release)
        return SimpleNamespace(ensure=lambda: "image")

    monkeypatch.setattr(images, "Images", image)
    monkeypatch.setattr(in_image, "execute", execute)
    assert in_image.main(["--release", "trixie", "tiresias", "--repeat", "1"]) == 7
    assert capsys.readouterr().out == "| a row |\n"
    assert made == ["trixie"] and container.done == ["start", "remove"]


def test_without_a_clone_no_engine_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GANDIVA_TIRESIAS", raising=False)
    monkeypatch.setattr(engine, "connect", lambda **_: pytest.fail("asked"))
    assert in_image.main(["tiresias"]) == 0
    assert capsys.readouterr().out.startswith("not compared with Tiresias")


@pytest.mark.parametrize(
    ("name", "here", "status_in_image", "modules", "status"),
    [
        ("tiresias", False, 0, ["in_image tiresias"], 0),
        ("blox", False, 3, ["in_image blox"], 3),
        ("blox", False, run.NO_CONTAINER, ["in_image blox", "blox"], 5),
        ("blox", True, 0, ["blox"], 5),
    ],
)
def test_comparisons_run_in_the_image_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    here: bool,
    status_in_image: int,
    modules: list[str],
    status: int,
) -> None:
    asked = []

    def fake(*words: str) -> int:
        asked.append(" ".join(words).removeprefix("benchmarks.peers."))
        return status_in_image if words[0] == run.IN_IMAGE else 5

    monkeypatch.setattr(run, "run", fake)
    assert run.benchmark(name, here) == status
    assert asked == modules
    assert ("in this Python instead" in capsys.readouterr().out) == (len(modules) == 2)


def test_other_benchmarks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run", lambda *words: 0 if words == ("benchmarks.plan_time",) else 1)
    assert run.benchmark("plan", here=False) == 0


def test_a_benchmark_ends_in_its_own_way_when_we_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would leave its container."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path('cleaned').write_text('')))\n"
        "pathlib.Path('ready').write_text('')\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(run, "ROOT", tmp_path)
    before = signal.signal(signal.SIGUSR1, in_image.interrupted)

    def end_us() -> None:
        for _ in range(3000):
            if (tmp_path / "ready").exists():
                os.kill(os.getpid(), signal.SIGUSR1)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=end_us, daemon=True)
    try:
        thread.start()
        with pytest.raises(SystemExit):
            run.run("slow")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (tmp_path / "cleaned").exists()
