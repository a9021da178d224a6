# SPDX-License-Identifier: GPL-2.0-or-later
"""What a rank below `gandiva.ranks` writes into, by the variable that all processes below it inherit."""

from __future__ import annotations

import os
from pathlib import Path

from gandiva._reporting import FD_NAME, Reports, reporting_session


def test_a_rank_reports_to_its_launcher() -> None:
    reports = Reports()
    name = f"{reports.descriptor}:{os.fstat(reports.descriptor).st_ino}"
    session = reporting_session({FD_NAME: name, "RANK": "0"})
    assert session is not None
    session.step(samples=3)
    assert reports.take() == [3.0]


def test_another_file_with_that_number_stays_as_it_is(tmp_path: Path) -> None:
    """A process below the rank has the variable and not the pipe."""
    reports = Reports()
    inode = os.fstat(reports.descriptor).st_ino
    with (tmp_path / "own").open("wb") as own:
        for number in (str(own.fileno()), "99999", str(10**20)):
            assert reporting_session({FD_NAME: f"{number}:{inode}", "RANK": "0"}) is None
    assert reporting_session({FD_NAME: str(reports.descriptor), "RANK": "0"}) is None
