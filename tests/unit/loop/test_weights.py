# SPDX-License-Identifier: GPL-2.0-or-later
"""Weights above what the site allows: which limit counts, and who is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controller.journal import JobFilter, JournalReader
from controller.settings.schema import Settings
from tests.unit.loop.world import SLICE_SECONDS, World, run


def settings(**requests: Any) -> Settings:
    return Settings.model_validate({"requests": requests})


LIMITS = settings(
    max_weight=4.0,
    max_weight_by_account={"ML": 2.0, "vip": 20.0},
    max_weight_by_qos={"urgent": 10.0, "scavenger": 1.0},
)


@pytest.mark.parametrize(
    ("account", "qos", "weight", "whose"),
    [
        ("physics", "normal", 4.0, "site"),
        ("ml", "normal", 2.0, "account ml"),
        ("ML", "normal", 2.0, "account ML"),
        ("vip", "normal", 20.0, "account vip"),
        ("ml", "urgent", 10.0, "qos urgent"),
        ("vip", "scavenger", 1.0, "qos scavenger"),
        ("", "", 4.0, "site"),
    ],
)
def test_the_limit_of_the_qos_counts_before_the_accounts_and_the_sites(
    account: str, qos: str, weight: float, whose: str
) -> None:
    assert LIMITS.requests.weight_limit(account, qos) == (weight, whose)


def test_a_limited_weight_shares_as_the_limit_says_and_follows_the_account(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, gpus=1)
        world.settings = LIMITS
        heavy = world.submit(weight=100.0, account="ml")
        light = world.submit(account="physics")
        controller = world.start()
        await asyncio.sleep(24 * SLICE_SECONDS)
        ratio = world.worked_seconds(heavy) / world.worked_seconds(light)
        assert ratio == pytest.approx(2.0, rel=0.1)
        (row, _) = JournalReader(world.journal_path).jobs(JobFilter())
        assert row.record.weight == 2.0
        request = row.record.request
        assert (request["weight_asked"], request["weight_limit"]) == (100.0, "account ml")

        world.cluster.jobs[heavy].account = "vip"
        world.cluster.touch(heavy)
        await asyncio.sleep(2)
        assert world.cycles[-1].snapshot.jobs[heavy].request.weight == 20.0

        controller.use_settings(settings(max_weight=1.0), world.policy)
        await asyncio.sleep(2)
        limited = world.cycles[-1].snapshot.jobs[heavy].request
        assert (limited.weight, limited.weight_limit) == (1.0, "site")
        await world.stop()
        world.check()

    run(scenario)
