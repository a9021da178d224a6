# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva daemon` with settings that it cannot start with."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.main import main


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
