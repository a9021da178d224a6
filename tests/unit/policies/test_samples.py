# SPDX-License-Identifier: GPL-2.0-or-later
"""The file of job sizes is read where the policy is put together, and every mistake in it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.errors import SettingsError
from controller.model import JobId, Memory, Snapshot, Usage
from controller.policies.assemble import make_policy
from controller.policies.settings import TiresiasGittinsSettings
from controller.settings.policies import PolicySettings
from tests.unit.policies.ideal import cluster, gpu_set, make_job, suspended

GPU = gpu_set("n1:0")


def settings(path: Path) -> PolicySettings:
    return PolicySettings(
        name="tiresias-gittins",
        tiresias_gittins=TiresiasGittinsSettings(distribution=str(path), samples_needed=2),
    )


def test_the_policy_begins_with_the_samples(tmp_path: Path) -> None:
    """Sizes of 10 and 1000: one that has had 5 is most likely to end soon, before one that has had 200."""
    path = tmp_path / "sizes.csv"
    path.write_text("name,duration\na,10\nb,1000\n")
    policy = make_policy(settings(path))
    older = replace(suspended(make_job(1), GPU), start_time=0.0)
    younger = replace(suspended(make_job(2, submit=1.0), GPU), start_time=1.0)
    usage = {JobId(1): Usage(seconds=200.0, gpu_seconds=200.0), JobId(2): Usage(seconds=5.0, gpu_seconds=5.0)}
    (node,) = cluster(1, 1)
    jobs = {job.id: job for job in (older, younger)}
    plan = policy.plan(Snapshot(time=300.0, nodes={node.name: node}, jobs=jobs, usage=usage), Memory())
    assert [job_id for job_id, target in plan.targets.items() if target.placement.gpus] == [2]


@pytest.mark.parametrize(
    "text,words",
    [
        (b"size\n1\n", "line 1: there is no column `duration`"),
        (b"duration\n5\nlong\n", "line 3, column `duration`: 'long' is not a positive number"),
        (b"a,duration\nx,5\nx\n", "line 3, column `duration`: None is not a positive number"),
        (b"duration\n-1\n", "line 2, column `duration`: '-1' is not"),
        (b"duration\nnan\n", "line 2, column `duration`: 'nan' is not"),
        (b"duration\n", "no samples"),
        (b"duration\n\xff\n", "not a CSV file"),
    ],
)
def test_a_bad_file_is_refused_with_place(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "sizes.csv"
    path.write_bytes(text)
    with pytest.raises(SettingsError, match=words.replace("`", ".")) as caught:
        make_policy(settings(path))
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the distribution .*No such file"):
        make_policy(settings(tmp_path / "none.csv"))
