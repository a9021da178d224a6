# SPDX-License-Identifier: GPL-2.0-or-later
"""Owner files of GPUs."""

from __future__ import annotations

from pathlib import Path

from controller.nodes.gpustat import OwnerFiles

ONE, TWO = "GPU-aaaa-1", "GPU-aaaa-2"


def test_claim_and_release(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path / "gpustat")
    files.claim([ONE, TWO], 7, 2001)
    assert (tmp_path / "gpustat" / ONE).read_text() == "7 2001\n"
    files.claim([TWO], 8, 2002)
    files.release([ONE, TWO], 7)
    assert [p.name for p in (tmp_path / "gpustat").iterdir()] == [TWO]


def test_sweep_clears_what_gone_jobs_held_and_nothing_of_others(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path)
    files.claim([ONE], 7, 2001)
    (tmp_path / TWO).write_text("99 2001\n")
    files.sweep({7})
    assert sorted(p.name for p in tmp_path.iterdir()) == [ONE, TWO]
    files.sweep(set())
    assert [p.name for p in tmp_path.iterdir()] == [TWO]


def test_names_that_are_no_uuid_are_never_paths(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path / "gpustat")
    files.claim(["../escape", "/etc/passwd", ""], 7, 2001)
    assert not (tmp_path / "gpustat").exists() and not (tmp_path / "escape").exists()
