# SPDX-License-Identifier: GPL-2.0-or-later
"""Every value of a decision comes back from its file as it was."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest

from controller.cli.main import main
from controller.errors import GandivaError
from controller.model import Configuration, Memory, Plan, Rate, Snapshot
from controller.settings.loading import parse_settings
from controller.simulation.replay import replay
from controller.simulation.snapshot_file import RecordedDecision, dump_decision, read_decision
from tests.unit.draws import draws

FLOATS = (0.0, -1.5, 1e-9, 1e300, math.inf, -math.inf, 0.1 + 0.2)


def some(hint: Any, rng: random.Random) -> Any:
    """Any value of a type, with all that it may contain."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return some(rng.choice([int, float, str, bool, type(None)]), rng)
    if isinstance(hint, NewType):
        return rng.randint(1, 9)
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        return hint(**{name: some(hints[name], rng) for name in _names(hint)})
    if origin in (Union, UnionType):
        return some(rng.choice(parts), rng)
    if origin is Mapping:
        return {some(parts[0], rng): some(parts[1], rng) for _ in range(rng.randint(0, 2))}
    if origin is frozenset:
        return frozenset(some(parts[0], rng) for _ in range(rng.randint(0, 2)))
    if origin is tuple and parts[-1] is ...:
        return tuple(some(parts[0], rng) for _ in range(rng.randint(0, 3)))
    if origin is tuple:
        return tuple(some(part, rng) for part in parts)
    if issubclass(hint, Enum):
        return rng.choice(list(hint))
    plain = {
        int: rng.randint(-9, 2**60),
        float: rng.choice(FLOATS),
        bool: rng.random() < 0.5,
        type(None): None,
    }
    return plain.get(hint, f"ü\ud800'{rng.randint(0, 99)}")


def _names(hint: Any) -> list[str]:
    return [field.name for field in fields(hint) if field.init] if is_dataclass(hint) else list(hint._fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decisions")


@pytest.mark.parametrize("seed", range(draws(20, 1000)))
def test_a_decision_comes_back_as_it_was(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    text = '[policy]\nname = "tiresias-las"\nmoves = ["pack"]\n[policy.trials]\ntrial_seconds = 3.0\n'
    policy = parse_settings(text).policy
    decision = RecordedDecision(policy, some(Snapshot, rng), some(Memory, rng), some(Plan, rng))
    (folder / "d.json").write_bytes(dump_decision(decision))
    assert read_decision(folder / "d.json") == decision


def test_every_field_is_in_the_file(folder: Path) -> None:
    decision = RecordedDecision(
        parse_settings("").policy,
        Snapshot(time=1.0, nodes={}, jobs={}, rates={"m": {Configuration("a100", 2): Rate(3.0)}}),
        Memory(),
        Plan({}, wake_at=math.inf),
    )
    content = json.loads(dump_decision(decision))
    for name, cls in (("snapshot", Snapshot), ("memory", Memory), ("plan", Plan)):
        assert is_dataclass(cls)
        assert content[name].keys() == {field.name for field in fields(cls)}
    (folder / "r.json").write_bytes(dump_decision(decision))
    assert read_decision(folder / "r.json") == decision


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a recorded decision"),
        ('{"gandiva_snapshot": 1}', "gandiva_snapshot"),
        ('{"gandiva_snapshot": 2, "gandiva_snapshot": 2}', "the key 'gandiva_snapshot' is there twice"),
        ('{"gandiva_snapshot": 2, "policy": {}, "snapshot": {}, "memory": {}, "plan": {}}', "time"),
    ],
)
def test_what_is_no_decision_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / "bad.json").write_text(text)
    with pytest.raises(GandivaError, match=message):
        read_decision(folder / "bad.json")


def test_code_that_a_file_names_is_run_only_when_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "from controller.model import Plan\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "class Mine:\n    def plan(self, snapshot, memory):\n        return Plan({})\n"
    )
    own = parse_settings(f'[policy]\nname = "{tmp_path}/mine.py:Mine"\n').policy
    decision = RecordedDecision(own, Snapshot(time=1.0, nodes={}, jobs={}), Memory(), Plan({}))
    (tmp_path / "d.json").write_bytes(dump_decision(decision))
    assert main(["replay", str(tmp_path / "d.json")]) == 1
    assert "--own-parts runs that code" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert main(["replay", "--own-parts", str(tmp_path / "d.json")]) == 0
    assert (tmp_path / "ran").exists()
    assert "The same decision as recorded." in capsys.readouterr().out


def test_an_own_part_decides_again_with_its_settings_as_recorded(tmp_path: Path) -> None:
    """Keys of parts that a record does not have, such as that of progress, are no fault."""
    (tmp_path / "mine.py").write_text(
        "from pydantic import BaseModel\n"
        "from controller.model import Plan\n"
        "class Mine:\n"
        "    class Settings(BaseModel):\n        pause_seconds: float\n"
        "    def __init__(self, settings):\n        self.pause_seconds = settings.pause_seconds\n"
        "    def plan(self, snapshot, memory):\n"
        "        return Plan({}, wake_at=snapshot.time + self.pause_seconds)\n"
    )
    text = f'[policy]\nname = "{tmp_path}/mine.py:Mine"\nown = {{ pause_seconds = 7.0, of_another = 1 }}\n'
    made = RecordedDecision(
        parse_settings(text).policy, Snapshot(time=1.0, nodes={}, jobs={}), Memory(), Plan({})
    )
    (tmp_path / "d.json").write_bytes(dump_decision(made))
    assert replay(read_decision(tmp_path / "d.json"))[0].wake_at == 8.0
