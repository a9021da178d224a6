# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva daemon` with settings that it cannot start with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.errors import SettingsError
from controller.settings.ownership import require_own


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[policy]\nnmae = 'gandiva'\n", ("policy.nmae", "name")),
        ("[policy.gandiva]\nslice_seconds = 'long'\n", ("policy.gandiva.slice_seconds", "long")),
        ("[policy.gandiva]\nslice_seconds = -5\n", ("policy.gandiva.slice_seconds", "-5")),
        ("[cluster]\nadapter = 'carrier pigeon'\n", ("cluster.adapter", "pyslurm", "command")),
        ("[cluster\n", ("gandiva.toml", "line 1")),
    ],
)
def test_it_ends_at_once_with_one_clear_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "gandiva.toml"
    path.write_text(text)
    assert main(["daemon", "-D", "--config", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    assert len([line for line in err.splitlines() if line.strip()]) <= 2, err
    assert [word for word in words if word not in err] == [], err


ORDER = """
from controller.policies.orders.order import Order
open({mark!r}, "w").close()
class Mine(Order):
    def rank(self, job, note, now): return (job.id,)
"""
FIFO = '[policy]\nname = "fifo"\nmoves = ["{file}:Mine"]\n'
MINE = '[policy]\nname = "{file}:Mine"\n'


@pytest.mark.parametrize("text", [MINE, FIFO])
@pytest.mark.parametrize("of", ["file", "folder", "folder above"])
def test_a_policy_or_move_that_others_can_write_is_not_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, of: str
) -> None:
    """The daemon has the key to root's agents on all nodes."""
    folder = tmp_path / "etc" / "gandiva"
    folder.mkdir(parents=True)
    file, mark = folder / "mine.py", tmp_path / "it-ran"
    file.write_text(ORDER.format(mark=str(mark)))
    place = {"file": file, "folder": folder, "folder above": folder.parent}[of]
    place.chmod(0o666 if of == "file" else 0o777)
    path = tmp_path / "gandiva.toml"
    path.write_text(text.format(file=file))
    assert main(["daemon", "-D", "--config", str(path)]) == 1
    _, err = capsys.readouterr()
    assert "Traceback" not in err and not mark.exists()
    assert f"chmod go-w {place}" in err


def test_who_may_have_written_it(tmp_path: Path) -> None:
    file, names = tmp_path / "mine.py", [f"{tmp_path}/mine.py:Mine"]
    file.write_text("")
    file.chmod(0o644)
    require_own(names, os.geteuid())
    require_own(["gandiva", "an-entry-point", f"{tmp_path}/none.py:Mine"], os.geteuid())
    if os.geteuid() == 0:
        os.chown(file, 2001, -1)
        with pytest.raises(SettingsError, match=f"uid 2001.*belongs to another user.*chown root {file}"):
            require_own(names, 0)
        require_own(names, 2001)
    link = tmp_path / "open" / "link.py"
    link.parent.mkdir()
    link.symlink_to(file)
    require_own([f"{link}:Mine"], 2001 if os.geteuid() == 0 else os.geteuid())
    link.parent.chmod(0o777)
    with pytest.raises(SettingsError, match="can be written by others"):
        require_own([f"{link}:Mine"], 2001 if os.geteuid() == 0 else os.geteuid())
    link.parent.chmod(0o1777)
    require_own([f"{link}:Mine"], 2001 if os.geteuid() == 0 else os.geteuid())
