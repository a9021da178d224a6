# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm's commands find in their environment, whoever starts them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.cluster.commands import run
from controller.reports.sacct import ask_sacct
from controller.reports.slurm_job import ask_slurm
from gandiva import trials

WHERE_AND_WHO = {"SLURM_CONF": "/etc/x", "SLURM_CONF_SERVER": "ctl:6817", "SLURM_JWT": "a.b.c"}
"""Where slurmctld is, and who asks."""
FIXED = {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "standard"}
KEPT = {"PATH", "HOME", "USER", "LD_LIBRARY_PATH", *WHERE_AND_WHO, *FIXED}
OF_THE_SHELL = {"PWD", "SHLVL", "_", "OLDPWD"}
ASK: dict[str, Callable[[], object]] = {
    "report": lambda: ask_sacct([1]),
    "explain": lambda: ask_slurm("1"),
    "trace": lambda: main(["trace", "sacct", "-S", "2026-10-01"]),
    "daemon": lambda: asyncio.run(run("scontrol", "ping", what="ping")),
    "trials": lambda: trials.find("1"),
}


@pytest.mark.parametrize("who", ASK)
def test_slurms_commands_run_in_utc_and_without_what_changes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    for name in ("sacct", "scontrol", "squeue"):
        (tmp_path / name).write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\n")
        (tmp_path / name).chmod(0o755)
    changes = {
        "SLURM_TIME_FORMAT": "%s",
        "SACCT_FORMAT": "User",
        "TZ": "Europe/Berlin",
        "SLURM_CLUSTERS": "b",
    }
    for name, value in {**changes, "SQUEUE_STATES": "R", "LANG": "de_DE", **WHERE_AND_WHO}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with contextlib.suppress(trials.TrialsError, ValueError):
        ASK[who]()
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert seen.keys() - OF_THE_SHELL <= KEPT
    assert seen.items() >= (FIXED | WHERE_AND_WHO).items()
