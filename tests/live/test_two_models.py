# SPDX-License-Identifier: GPL-2.0-or-later
"""A cluster whose nodes have GPUs of two models (a public case)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from container.cluster import MiniCluster
from container.spec import load
from tests.live.conftest import own_name, running
from tests.live.support import Site

pytestmark = [pytest.mark.live, pytest.mark.nightly, pytest.mark.public]
PUBLIC = Path(__file__).parents[1] / "public"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    request.getfixturevalue("engine_ready")
    spec = load(PUBLIC / "two-models.toml").model_copy(update={"name": own_name("-models")})
    with running(spec, request.session) as mini:
        yield mini


def test_a_gang_runs_on_nodes_of_one_model(site: Site) -> None:
    """Slurm binds a job to GPUs of one type. One node of each model is free: it takes turns on a second."""
    beside = [
        site.train("alice", "--gandiva", "--gres=gpu:1", "-w", node, keep_context=True)
        for node in ("n2", "n2", "n4", "n4")
    ]
    site.wait_on_gpu(*beside)
    gang = site.submit("alice", "srun hostname", "--gandiva", "--nodes=2", "--gpus-per-node=2")
    assert site.wait_ended([gang]) == {gang: "COMPLETED"}
    assert set(site.output("alice", gang).split()) in ({"n1", "n2"}, {"n3", "n4"})
    assert "internal error" not in site.log()
