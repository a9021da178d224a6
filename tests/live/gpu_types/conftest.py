# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests on three GPU types of different speed, on one cluster of their own: their marks `xdist_group` let one
worker run them all.

    GANDIVA_TYPES_CLUSTER=types …      use a cluster that runs already, made from container/types.toml
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from container.cluster import MiniCluster
from container.images import REPOSITORY_ROOT
from container.spec import load
from tests.live.conftest import own_name, running
from tests.live.rounds import TYPES


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    """Three nodes of two GPUs each: v100, p100, k80."""
    if existing := os.environ.get("GANDIVA_TYPES_CLUSTER"):
        yield MiniCluster.attach(existing)
        return
    request.getfixturevalue("engine_ready")
    spec = load(REPOSITORY_ROOT / "container" / "types.toml")
    assert {group.names: group.gpu_model for group in spec.nodes} == TYPES
    changes = {"name": own_name("-types"), "release": os.environ.get("RELEASE") or spec.release}
    with running(spec.model_copy(update=changes), request.session) as mini:
        yield mini
