# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon records a decision when asked, and it replays to the same plan."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.daemon.daemon import Daemon
from controller.loop import Tick
from controller.settings import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from tests.unit.simulation.test_simulation import trace


def test_a_decision_is_recorded_once_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f'[policy]\nname = "tiresias-las"\n[journal]\npath = "{tmp_path}/journal.sqlite"\n'
    settings = parse_settings(text)
    daemon = Daemon(tmp_path / "g.toml", settings)
    ticks: list[Tick] = []
    Simulation(Path("t"), trace(20), parse_cluster("v100:16", 4), settings, on_tick=ticks.append).run()

    for number, tick in enumerate(ticks):
        if number == len(ticks) // 2:
            daemon._ask_for_record()
        daemon._publish(tick)

    (file,) = tmp_path.glob("decision-*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.endswith("The same decision as recorded.\n")
    assert main(["replay", "--job", "999", str(file)]) == 1
    assert capsys.readouterr() == ("", f"gandiva: {file}: there is no job 999 in it\n")
