# SPDX-License-Identifier: GPL-2.0-or-later
"""The catalogue of live faults leaves nothing out. (These tests need no cluster.)"""

from __future__ import annotations

import ast
import datetime
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from container.errors import MiniClusterError
from controller.act import migrate, place, requeue, resume, save, store, suspend
from controller.act.recorder import Step
from tests.faults import catalogue, migrating, runner
from tests.faults.enumerated import POINTS
from tests.faults.fault import Evidence, Fault, Result
from tests.faults.parts import PARTS
from tests.faults.report import BEGIN, END, Run, table, write
from tests.faults.runner import ROUND_FAULTS, rounds
from tests.faults.scenarios import JOURNAL_LOST
from tests.faults.stage import Stage


def steps_by_operation() -> dict[str, set[Step]]:
    """From the code of the operations: which steps each of them takes, helpers included."""
    functions = {
        node.name: node
        for module in (place, suspend, resume, requeue, migrate, save, store)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
    }

    def steps(name: str, seen: frozenset[str]) -> set[Step]:
        found: set[Step] = set()
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "Step":
                    found.add(Step[node.attr])
            elif isinstance(node, ast.Name) and node.id in functions and node.id not in seen:
                found |= steps(node.id, seen | {node.id})
        return found

    operations = ("place", "suspend", "resume", "requeue", "withdraw", "migrate")
    return {name: steps(name, frozenset({name})) for name in operations}


def test_every_step_of_every_operation_is_a_place_for_faults() -> None:
    wanted = {(operation, step) for operation, steps in steps_by_operation().items() for step in steps}
    # No job of these workloads is saved before it leaves its GPUs (tests/unit/loop/test_saving.py), or is
    # cancelled (tests/unit/loop/test_unsuspendable.py).
    wanted.remove(("suspend", Step.SAVE))
    assert {step for _, step in wanted} == set(Step) - {Step.CANCEL}
    points = (*POINTS, *migrating.POINTS)
    assert {(point.operation, point.step) for point in points} == wanted


def test_a_migration_is_cut_at_every_step_by_each_part_it_needs() -> None:
    steps = {(p.operation, p.step) for p in migrating.POINTS}
    taken = steps_by_operation()
    assert steps >= {("migrate", step) for step in taken["migrate"]}
    assert steps >= {("place", step) for step in taken["place"] - {Step.UNDO}}
    details = {(fault.group, fault.where, fault.detail) for fault in migrating.migrating()}
    for part in ("controller", "node agent", "slurmctld", "slurmd"):
        for point in migrating.POINTS:
            assert (f"migration, {part}", point.operation_in_words, f"before {point.step.value}") in details
    source = "migrate, checkpoint store, its source"
    assert {("migration, node agent", source, f"during {step}") for step in ("pause", "save")} <= details
    for part in ("node agent", "slurmd", "node"):
        sides = {where.rpartition(", ")[2] for group, where, _ in details if group == f"migration, {part}"}
        assert sides == {"its source", "its target"}


def test_every_part_breaks_at_every_point_and_the_controller_on_both_sides() -> None:
    faults = catalogue.every()
    assert max(Counter(fault.name for fault in faults).values()) == 1
    details = {(fault.group, fault.where, fault.detail) for fault in faults}
    for part in PARTS:
        for point in POINTS:
            assert (part.name, point.operation_in_words, f"before {point.step.value}") in details
    for point in POINTS:
        assert ("controller", point.operation_in_words, f"after {point.step.value}") in details
    assert sum(fault.times for fault in faults if "random kills" in fault.group) >= 200


def test_the_light_list_leaves_out_of_the_quick_one_what_takes_a_minute() -> None:
    quick, light = ({fault.name for fault in faults} for faults in (catalogue.quick(), catalogue.light()))
    (node,) = {name for name in quick - light if name.endswith("(node)")}
    assert {name for name in quick ^ light if "random kills" not in name} == {node}


def test_the_quick_list_has_one_of_each_kind() -> None:
    whole, quick = catalogue.every(), catalogue.quick()
    assert {part.name for part in PARTS} <= {fault.what.partition(":")[0] for fault in quick}
    left_out = {fault.what for fault in whole} - {fault.what for fault in quick}
    # Two that take a minute each, and one that is another's twin.
    allowed = ("stopped for good", "answers after 30 s", "scontrol resume by an operator")
    assert all(any(words in what for words in allowed) for what in left_out), left_out


def result(**fields: object) -> Result:
    given: dict[str, object] = {
        "group": "munge",
        "what": "munge: SIGKILL",
        "where": "suspend, cooperative",
        "detail": "before pause",
    }
    ending: dict[str, object] = {"passed": True, "evidence": "", "seconds": 60.0, "converged_seconds": 2.0}
    for name, value in fields.items():
        (given if name in given else ending)[name] = value
    fault = Fault(**given, run=lambda _: Evidence(""))  # type: ignore[arg-type]
    return Result(fault, **ending)  # type: ignore[arg-type]


def test_the_table_counts_and_names_places(tmp_path: Path) -> None:
    results = [
        result(),
        result(detail="before offload", converged_seconds=4.0),
        result(where="suspend, gang", passed=False),
        result(where="place", detail="before claim"),
    ]
    run = Run("abc1234", datetime.date(2026, 11, 22), 2400.0, 3)
    lost = result(
        group=JOURNAL_LOST, what="the journal's file is damaged", where="before a start", detail="empty"
    )
    assert "| 1 | 1–4, 7–10 |" in table([lost], run)
    text = table(results, run)
    assert "4 faults, 4 injections, all in one run of 40 minutes on 3 mini clusters" in text
    assert "2026-11-22, commit abc1234: **3 passed, 1 failed**" in text
    assert "| suspend: cooperative (before pause, offload), gang (before pause) | 3 |" in text
    assert "3.0 s, 4.0 s | **1 failed** |" in text
    assert "| \u2033 | place: before claim | 1 |" in text

    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(results, run, page)
    assert page.read_text() == f"before\n{BEGIN}\n\n{text}\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="marks"):
        write(results, run, page)


def test_rounds_keep_groups_apart_and_leave_nothing_out() -> None:
    faults = catalogue.every()
    found = rounds(faults)
    assert sorted(f.name for group in found for f in group) == sorted(f.name for f in faults)
    assert all(len({f.group for f in group}) == 1 for group in found)
    assert max(len(group) for group in found) <= ROUND_FAULTS
    assert [f.name for f in found[0]] == [faults[-1].name], "the longest first: 200 kills"


def test_what_is_written_comes_from_a_whole_run() -> None:
    for words in (["--quick", "--write"], ["--write", "munge"]):
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults", *words], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2 and "a whole run only" in done.stderr


class FakeStage:
    """A cluster on which every fault passes, or none can be tried."""

    def __init__(self, name: str, broken: bool = False) -> None:
        self.cluster = SimpleNamespace(name=name)
        self.said: list[str] = []
        self.broken = broken

    def prepare(self) -> None:
        if self.broken:
            raise MiniClusterError("no node is idle")

    def learn_digests(self, _workloads: object) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None: ...


def test_clusters_share_the_rounds_and_a_broken_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def passes(_stage: Stage, faults: Sequence[Fault], _logs: Path) -> list[Result]:
        return [Result(fault, True, "", 1.0) for fault in faults]

    monkeypatch.setattr(runner, "run_group", passes)
    faults = catalogue.every()
    reported: list[Result] = []
    stages = [FakeStage("a"), FakeStage("b", broken=True), FakeStage("c")]
    found = runner.run(stages, faults, reported.extend)  # type: ignore[arg-type]
    assert [r.fault.name for r in found] == [f.name for f in faults], "in the order of the catalogue"
    assert len(reported) == len(faults)
    assert any("mini cluster b is left out" in text and "no node is idle" in text for text in stages[1].said)

    none = runner.run([FakeStage("b", broken=True)], faults, reported.extend)  # type: ignore[list-item]
    assert none == [], "what was not run has no result, and the table is not written"
