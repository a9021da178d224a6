# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon records a decision when asked, and it replays to the same plan."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.daemon.publishing import DecisionFile
from controller.loop.loop import Cycle
from controller.model import ALL_CHANGED
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from tests.unit.simulation.test_simulation import trace


def test_a_decision_is_recorded_once_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = parse_settings('[policy]\nname = "tiresias-las"\n')
    recording = DecisionFile(tmp_path)
    cycles: list[Cycle] = []

    def keep(cycle: Cycle) -> None:
        cycles.append(replace(cycle, snapshot=cycle.snapshot.kept()))

    Simulation(Path("t"), trace(20), parse_cluster("v100:16", 4), settings, on_cycle=keep).run()

    for number, cycle in enumerate(cycles):
        if number == len(cycles) // 2:
            recording.ask(None)
        if number == len(cycles) // 2 + 2:  # the controller makes this one anew
            cycle = replace(cycle, snapshot=replace(cycle.snapshot, changed=ALL_CHANGED))
        recording.completed(cycle, settings.policy)

    (file,) = tmp_path.glob("decision-*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.endswith("The same decision as recorded.\n")
    assert main(["replay", "--job", "999", str(file)]) == 1
    assert capsys.readouterr() == ("", f"gandiva: {file}: there is no job 999 in it\n")
