# SPDX-License-Identifier: GPL-2.0-or-later
"""The simulation that docs/gavel.md shows runs from a checkout, and says what the page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from controller.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "gavel.md"


def test_the_simulation_of_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    command = re.search(r"^    gandiva (simulate (?:.*\\\n)*.*)", text, re.MULTILINE)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    monkeypatch.chdir(ROOT)
    assert main([*words, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["completed"] for each in found] == [18, 18, 18]
    means = [each["avg_jct_seconds"] / 60 for each in found]
    said = re.search(r"Jobs end after (.*) on average", text)
    assert said is not None
    minutes = [int(h) * 60 + int(m) for h, m in re.findall(r"(\d+) h (\d+) min", said[1])]
    assert means == pytest.approx(minutes, rel=0.03)
    assert means == sorted(means, reverse=True)
