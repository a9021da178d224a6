# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures: the job_submit module in a real Lua."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.slurm_plugin.standin import Slurmctld


@pytest.fixture(scope="session")
def lua() -> str:
    """A Lua interpreter of the version that Slurm is built with."""
    for name in ("lua5.4", "lua5.3"):
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip("no Lua interpreter: install lua5.4 (or lua5.3)")


@pytest.fixture(scope="session")
def make_slurmctld(lua: str) -> Iterator[Callable[..., Slurmctld]]:
    """Start one with other settings than the usual."""
    started: list[Slurmctld] = []

    def make(**settings: Any) -> Slurmctld:
        started.append(Slurmctld(lua, **settings))
        return started[-1]

    yield make
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def slurmctld(make_slurmctld: Callable[..., Slurmctld]) -> Slurmctld:
    """One with the usual settings: cases do not influence each other."""
    return make_slurmctld()
