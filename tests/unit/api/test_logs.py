# SPDX-License-Identifier: GPL-2.0-or-later
"""The log: debug flags per part, and objects with fields for machines."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from controller.act.actions import Suspend
from controller.act.recorder import Outcome, Step
from controller.api.metrics import Metrics
from controller.daemon import logs
from controller.daemon.measuring import CycleMeter, MeasuringRecorder
from controller.journal import MemoryJournal
from controller.model import JobId, Snapshot
from controller.settings.schema import LogSettings

from . import scene
from .test_metrics import N1


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    # pytest's own handlers come back; `configure` takes away whatever it finds.
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    for name in logs.DEBUG_FLAGS.values():
        logging.getLogger(name).setLevel(logging.NOTSET)


def configure(path: Path, **values: object) -> None:
    logs.configure(LogSettings.model_validate({"file": str(path), **values}))


def test_every_flag_has_a_logger_and_every_setting_a_flag() -> None:
    annotation = LogSettings.model_fields["debug"].annotation
    (words,) = get_args(annotation)
    assert set(get_args(words)) == set(logs.DEBUG_FLAGS)
    for name in logs.DEBUG_FLAGS.values():
        __import__(name)


@pytest.mark.parametrize("flag", logs.DEBUG_FLAGS)
def test_a_flag_makes_one_part_say_everything_and_a_reload_ends_it(tmp_path: Path, flag: str) -> None:
    def speak() -> list[str]:
        for other, name in logs.DEBUG_FLAGS.items():
            logging.getLogger(f"{name}.part").debug("detail of %s", other)
        text = (tmp_path / "log").read_text()
        (tmp_path / "log").write_text("")
        return [line.split("detail of ")[1] for line in text.splitlines()]

    configure(tmp_path / "log", debug=[flag])
    assert speak() == [flag]
    configure(tmp_path / "log", debug=[])
    assert speak() == []


def test_an_object_says_what_it_is_about(tmp_path: Path) -> None:
    configure(tmp_path / "log", format="json")
    log = logging.getLogger("controller.nodes.connection")
    log.error("node %s: lost\nforged", "n1", extra={"node": "n1", "job": JobId(7), "file": tmp_path})
    log.warning("plain")
    first, second = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert (first["job"], first["node"], first["file"]) == (7, "n1", str(tmp_path))
    assert first["subsystem"] == "nodes.connection" and first["message"] == "node n1: lost\nforged"
    assert not {"job", "node", "file"} & set(second)


@pytest.mark.parametrize(
    ("template", "values", "fields"),
    [
        ("job %s (user %s): %s", (7, "alice", "node n9"), {"job": 7}),
        ("%s of job %d on node %s failed after %.1f s", ("pause", 7, "n1", 2.0), {"job": 7, "node": "n1"}),
        ("journal %s: %r", ("/j", "x"), {"file": "/j"}),
        ("jobs %s, mynode %s", ("1,2", "n1"), {}),
        ("nothing", (), {}),
    ],
)
def test_fields_come_from_the_programs_words(
    tmp_path: Path, template: str, values: tuple[object, ...], fields: dict[str, object]
) -> None:
    configure(tmp_path / "log", format="json")
    logging.getLogger("controller.x").error(template, *values)
    entry = json.loads((tmp_path / "log").read_text())
    assert {key: entry[key] for key in logs.FIELDS if key in entry} == fields


HOSTILE = "a\x1b[2J\rb\x9b1mc\u2028d\u202ee\udcfff\x85g"
"""Clears the screen, goes back in the line, colours, breaks lines, turns the direction, is no UTF-8."""


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_users_write_does_nothing_to_a_terminal_and_is_not_lost(tmp_path: Path, format: str) -> None:
    configure(tmp_path / "log", format=format)
    logging.getLogger("controller.x").error("job %s: %s", 7, HOSTILE)
    line = (tmp_path / "log").read_bytes().decode()
    assert line.endswith("\n") and line[:-1].isprintable() and "job 7" in line
    for kept in "abcdefg":
        assert kept in line
    if format == "json":
        assert json.loads(line)["message"] == f"job 7: {HOSTILE}"


SUBJECT = re.compile(
    r"\b(jobs?|node|journal|file|process|settings) %|%s has changed|owner files in %s|cannot write %s"
)
OTHERWISE = {
    # The error's own text names what it is about, and what to do.
    ("daemon.py", "%s"), ("store.py", "%s"), ("file.py", "%s; going on"), ("memory.py", "%s; policy"),
    ("main.py", "%s %s: a bug"),
    ("looking.py", "%s; try nvidia-smi"), ("looking.py", "%s; its GPUs"),
    ("main.py", "work for %s"), ("lease.py", "%s: %s"),
    # All operations, or all files, at once.
    ("daemon.py", "this controller does not lead any more"), ("accounting.py", "the wall clock was stepped"),
    ("state_store.py", "what was measured of models cannot be read"),
    ("stopping.py", "some operations were still under way"),
    ("stopping.py", "not all jobs could be released"),
    ("stopping.py", "jobs are not released"), ("main.py", "gave up on work in flight"),
    ("gpustat.py", "the record of owner files is damaged"), ("server.py", "API: cannot answer"),
    ("failures.py", "cannot be reported"),
}  # fmt: skip


def test_every_complaint_names_what_it_is_about() -> None:
    """Each log.error, warning, critical and exception of the daemon and of the agent."""
    root = Path(logs.__file__).parents[1]
    nameless = []
    for path in sorted(root.rglob("*.py")):
        if "simulation" in path.parts:
            continue
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr not in ("error", "warning", "critical", "exception"):
                continue
            if not (isinstance(call.func.value, ast.Name) and call.func.value.id in ("log", "_log")):
                continue
            template = call.args[0].value if isinstance(call.args[0], ast.Constant) else "(not a constant)"
            named = any(keyword.arg == "extra" for keyword in call.keywords) or SUBJECT.search(str(template))
            known = any(path.name == name and str(template).startswith(text) for name, text in OTHERWISE)
            if not named and not known:
                nameless.append(f"{path.relative_to(root)}:{call.lineno}: {template!r}")
    assert nameless == [], "say job %s, node %s, journal %s or file %s: what is it about?"


def test_the_executors_steps_and_the_policys_reasons_are_told(tmp_path: Path) -> None:
    from controller.api.live import LiveState

    configure(tmp_path / "log", format="json", debug=["executor", "policy"])
    metrics = Metrics(LiveState(), Path("/nowhere"))
    recorder = MeasuringRecorder(MemoryJournal(), metrics)
    action = Suspend(JobId(7), "its slice is over")
    number = recorder.operation_begins(action, N1, 1.0)
    recorder.operation_step(number, Step.PAUSE, 1.0)
    recorder.operation_ends(number, Outcome.FAILED, "rank 0 is late", 3.0)
    CycleMeter(metrics).completed(
        replace(scene.cycle(Snapshot(time=0.0, nodes={}, jobs={})), actions=(action,), observe_seconds=0.01)
    )
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [entry["message"] for entry in said] == [
        "job 7: suspend: pause",
        "job 7: suspend is failed after 2.000 s: rank 0 is late",
        "cycle: 0 jobs (0 in transition), 0 targets, 1 actions; observed in 10.0 ms, decided in 1.0 ms",
        "job 7: suspend: its slice is over",
    ]
    assert [entry.get("job") for entry in said] == [7, 7, None, 7]
