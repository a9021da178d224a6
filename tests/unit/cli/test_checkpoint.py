# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva checkpoint` on stores that are whole, damaged, being written to, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkpointing.store import Store
from controller.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store(tmp_path / "run7", rank=0, world_size=1)
    for step in (10, 20, 30):
        store.save(step, {"model": bytes(step << 20)})
    return tmp_path / "run7"


def damage(folder: Path) -> None:
    with (folder / "generation-00000003/rank-00000/model").open("r+b") as file:
        file.write(b"?")


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "list", str(folder)]) == 0
    header, newest, other = capsys.readouterr().out.splitlines()
    assert header.split() == ["GENERATION", "STEP", "RANKS", "MIB", "WRITTEN", "STATE"]
    assert newest.split()[:4] == ["3", "30", "1", "30.0"] and newest.endswith(" complete")
    assert other.split()[:2] == ["2", "20"]
    (folder / "generation-00000003/rank-00000/model").write_bytes(b"")
    assert main(["checkpoint", "list", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "not complete: rank-00000: model has 0 bytes, not 31457280" in shown


def test_verify_reads_every_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(folder)]) == 0
    assert capsys.readouterr().out.count(" valid\n") == 2
    damage(folder)
    assert main(["checkpoint", "list", str(folder)]) == 0
    assert main(["checkpoint", "verify", str(folder)]) == 1
    assert "not valid: rank-00000: the SHA-256 of model" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(folder), "--generation", "2"]) == 0
    assert main(["checkpoint", "verify", str(folder), "--generation", "1"]) == 1
    assert "no generation 1" in capsys.readouterr().err


def test_verify_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "writing-\x1b[2J").mkdir()
    damage(folder)
    assert main(["checkpoint", "verify", "--json", str(folder)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(row["number"], row["step"], bool(row["problem"])) for row in found["rows"]] == [
        (3, 30, True),
        (2, 20, False),
    ]
    assert found["leftovers"] == ["writing-\x1b[2J"]
    assert main(["checkpoint", "list", str(folder)]) == 0
    assert "\x1b" not in capsys.readouterr().out, "nothing that a terminal obeys"


def test_prune(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "writing-dead" / "rank-00000").mkdir(parents=True)
    assert main(["checkpoint", "prune", str(folder)]) == 0
    assert capsys.readouterr().out == "no generation was removed\n"
    assert main(["checkpoint", "prune", "--keep", "1", str(folder)]) == 0
    assert capsys.readouterr().out == "removed: 2\n"
    assert sorted(path.name for path in folder.iterdir()) == ["generation-00000003", "lock"]


@pytest.mark.parametrize("action", ["list", "verify", "prune"])
def test_what_is_no_folder(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        assert main(["checkpoint", action, str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.startswith(f"gandiva: {tmp_path / name}: No")
    if action == "verify":
        assert main(["checkpoint", action, str(tmp_path)]) == 1, "nothing there is not valid"
