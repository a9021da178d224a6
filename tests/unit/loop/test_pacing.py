# SPDX-License-Identifier: GPL-2.0-or-later
"""How often the loop looks when something happens all the time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.cluster.simulated import SlurmCosts
from controller.loop.pacing import PaceSettings
from controller.simulation.virtual_time import run_virtual
from tests.unit.loop.world import World

SECONDS = 20.0


async def _turns(folder: Path, rest_factor: float, interval_seconds: float) -> int:
    """Turns within SECONDS in which something happens every 10 ms, when a look at Slurm takes 0.1 s."""
    world = World(folder, slurm_costs=SlurmCosts(0.1, 0.3, 0.1))
    controller = world.start()
    pace = PaceSettings(interval_seconds=interval_seconds, rest_factor=rest_factor)
    controller.pace.settings = pace
    end = asyncio.get_running_loop().time() + SECONDS
    while asyncio.get_running_loop().time() < end:
        controller.pace.poke()
        await asyncio.sleep(0.01)
    await world.stop()
    return len(world.cycles)


@pytest.mark.parametrize(
    ("rest_factor", "interval_seconds", "turns"),
    [
        pytest.param(0.0, 5.0, SECONDS / (0.1 + 0.02), id="no rest"),
        pytest.param(3.0, 5.0, SECONDS / (0.1 + 0.3), id="a quarter of the time"),
        pytest.param(3.0, 0.2, SECONDS / (0.1 + 0.2), id="never later than the interval"),
    ],
)
def test_a_busy_cluster_is_not_looked_at_all_the_time(
    tmp_path: Path, rest_factor: float, interval_seconds: float, turns: float
) -> None:
    seen = run_virtual(_turns(tmp_path, rest_factor, interval_seconds))
    assert seen == pytest.approx(turns, rel=0.1)
