# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests as they stand in admin_comment."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.request import InvalidRequest
from controller.model import Request, Size, SuspendMethod
from controller.observe.requests import parse_request
from controller.settings.schema import RequestsSettings, Settings
from tests.unit.loop.world import World, run

FULL = {
    "v": 1,
    "gpus_per_node": 2,
    "nodes": 2,
    "weight": 2.5,
    "min_gpus": 2,
    "max_gpus": 8,
    "pack": True,
    "migrate": False,
    "suspend": "transparent",
    "gpu_types": ["a100", "v100"],
    "model": "resnet50",
    "nodelist": "n[1-2]",
    "site": {"x": 1},
}


def text(**changes: object) -> str:
    return "gandiva:" + json.dumps({k: v for k, v in {**FULL, **changes}.items() if v != "absent"})


def test_every_field_is_read() -> None:
    assert parse_request(text()) == Request(
        size=Size(2, 4, 8),
        nodes=2,
        weight=2.5,
        may_pack=True,
        may_migrate=False,
        suspend=SuspendMethod.TRANSPARENT,
        gpu_types=("a100", "v100"),
        model="resnet50",
        nodelist=("n1", "n2"),
    )


def test_what_is_absent_is_left_to_the_site() -> None:
    request = parse_request('gandiva:{"v":1,"gpus":8}', RequestsSettings(weight=3.0))
    assert request == Request(size=Size.exactly(8), nodes=None, weight=3.0)


@pytest.mark.parametrize("default", [True, False])
def test_the_sites_defaults_count_where_a_user_did_not_say(tmp_path: Path, default: bool) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        given = {"pack": default, "migrate": default}
        silent, asking = world.submit(), world.submit(pack=not default, migrate=not default)
        controller = world.start()
        for setting in (given, {}, given):
            controller.use_settings(Settings.model_validate({"requests": setting}), world.policy)
            await asyncio.sleep(2)
        jobs = world.cycles[-1].snapshot.jobs
        assert (jobs[silent].request.may_pack, jobs[silent].request.may_migrate) == (default, default)
        assert (jobs[asking].request.may_pack, jobs[asking].request.may_migrate) == (not default, not default)
        await world.stop()

    run(scenario)


def test_without_settings_a_job_that_does_not_say_is_not_packed() -> None:
    assert not RequestsSettings().pack and RequestsSettings().migrate


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"v": 2}, "v"),
        ({"gpus_per_node": 0}, "gpus_per_node"),
        ({"gpus_per_node": "2"}, "gpus_per_node"),
        ({"weight": 1000}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"suspend": "kill"}, "suspend"),
        ({"gpu_types": ["A100; rm"]}, "gpu_types"),
        ({"model": "x" * 65}, "model"),
        ({"nodelist": "n[1-"}, "nodelist"),
        ({"extra": 1}, "extra"),
        ({"gpus_per_node": None}, "gpus"),
    ],
)
def test_a_bad_field_is_named(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        parse_request(text(**changes))


@given(st.text(max_size=2000))
def test_junk_is_refused_not_raised(junk: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_request("gandiva:" + junk + "}")
    with pytest.raises(InvalidRequest):
        parse_request(junk if not junk.startswith("gandiva:") else "")
