# SPDX-License-Identifier: GPL-2.0-or-later
"""What is looked for in jobs that migrate, and the move that the test decides about. (No cluster needed.)"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from controller.model import GpuId, GpuSet, Job, Memory, Snapshot, StateAt
from controller.policies import assemble
from controller.settings.policies import PolicySettings
from tests.faults import injected
from tests.faults.moves import done_twice, twice_at_once, wrong_starts, wrong_steps
from tests.live.gpu_history import Hold
from tests.unit.policies.ideal import cluster, make_job, running


def test_a_job_at_two_places_is_found() -> None:
    first, second = Hold("n1", 0, 5, 1.0, 2.0), Hold("n2", 0, 5, 2.0, 3.0)
    assert not [*twice_at_once([second, first])]
    assert [*twice_at_once([second, Hold("n1", 0, 5, 1.0, 2.1)])] == ["on n1 and n2 at once"]


@pytest.mark.parametrize(
    ("steps", "starts", "saved", "wrong"),
    [
        ([1, 2, 3, 4], [0], set(), 0),
        ([1, 2, 3, 4], [0, 2], {2}, 0),
        ([1, 2, 3, 2, 3, 4], [0, 1], {1}, 0),
        ([1, 2, 1, 2, 3, 4], [0, 0], set(), 0),
        ([1, 2, 4], [0], set(), 1),  # a step is missing
        ([1, 2, 3], [0], set(), 1),  # it did not get to its end
        ([], [], set(), 1),
        ([1, 2, 3, 4], [0, 2], {3}, 1),  # from a step that was not saved
        ([1, 2, 3, 3, 4], [0], set(), 1),  # done anew without a start
        ([1, 2, 3, 2, 3, 4], [0, 2], {2}, 1),  # from another step than it says
        ([1, 2, 3, 1, 2, 3, 4], [0, 2, 0], {2}, 1),  # from nothing, though a generation was there
    ],
)
def test_steps_and_starts(steps: list[int], starts: list[int], saved: set[int], wrong: int) -> None:
    assert len([*wrong_steps(steps, 4), *wrong_starts(starts, steps, frozenset(saved))]) == wrong


def test_steps_done_twice_are_found() -> None:
    assert not [*done_twice([1, 2, 3])]
    assert [*done_twice([1, 2, 3, 2, 3])] == ["steps done twice: [2, 3], 2 in all"]


def test_the_job_migrates_that_the_test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injected, "MIGRATE", tmp_path / "migrate")
    monkeypatch.setattr(assemble, "MOVES", assemble.MOVES)
    injected.wrap_moves()
    policy = assemble.make_policy(PolicySettings(name="gandiva", moves=["defragment"]))
    gpus = frozenset({GpuId("n1", 0)})
    job = replace(running(make_job(5), gpus), may_migrate=True)
    nodes = {each.name: each for each in cluster(3, 1)}

    def moved(job: Job) -> GpuSet:
        plan = policy.plan(Snapshot(time=10.0, nodes=nodes, jobs={job.id: job}), Memory())
        target = plan.targets.get(job.id)
        if target is None:
            return frozenset()
        assert target.keep is StateAt.STORE
        return target.placement.allocation

    assert moved(job) == frozenset()
    way = {"job": 5, "source": "n1", "target": "n3"}
    injected.MIGRATE.write_text(json.dumps(way))
    assert moved(job) == {GpuId("n3", 0)}
    assert moved(replace(job, may_migrate=False)) == frozenset()
    injected.MIGRATE.write_text(json.dumps({**way, "source": "n2"}))
    assert moved(job) == frozenset(), "it has left that node already"
