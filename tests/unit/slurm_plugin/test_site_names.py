# SPDX-License-Identifier: GPL-2.0-or-later
"""The job_submit module at a site that keeps its own names of GPU types, and its own rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.observe.requests import parse_request
from controller.slurm_config.lua import EXAMPLE
from tests.unit.slurm_plugin.standin import Slurmctld

PUBLIC = Path(__file__).parents[2] / "public"
NAMES = (PUBLIC / "gpu-type-names.txt").read_text().split()
ON = {"gandiva": ""}
BATCH: dict[str, Any] = {"script": "#!/bin/sh\n"}


@pytest.fixture(scope="module")
def site(make_slurmctld: Callable[..., Slurmctld]) -> Slurmctld:
    return make_slurmctld(
        models=NAMES,
        nodes={"gpu": [{"model": name, "gpus": 4, "count": 1} for name in NAMES]},
        aliases={"a100": "A100", "a100-80": "A100_80GB"},
        shard_types=["l4"],
    )


@pytest.mark.public
@pytest.mark.parametrize("name", NAMES)
def test_a_job_asks_for_gpus_by_the_name_that_the_site_gave_them(site: Slurmctld, name: str) -> None:
    for written in (f"gres/gpu:{name}:2", f"gpu:{name}=2"):
        ordinary = site.submit(tres_per_node=written)
        assert (ordinary.rc, ordinary.said) == (0, [])
        assert ordinary.fields == {"tres_per_node": "gres/gpu:2", "features": f"gandiva_{name}"}
        ours = site.submit(ON, **BATCH, tres_per_node=written)
        assert parse_request(ours.fields["admin_comment"]).gpu_types == (name,)
    # Without a number it is one, also where the name begins with digits: so Slurm reads it.
    assert site.submit(tres_per_node=f"gres/gpu:{name}").fields["tres_per_node"] == "gres/gpu:1"
    named = site.submit({"gandiva_gpu_types": f"{name},h200" if name == "h200" else name}, **BATCH, **GPU)
    assert named.request["gpu_types"] == [name]
    by_feature = site.submit(ON, **BATCH, **GPU, features=f"gandiva_{name}")
    assert by_feature.request["gpu_types"] == [name]
    exact = site.submit(tres_per_node=f"gres/gpu:{name}_3:1")
    assert (exact.rc, exact.fields) == (0, {})
    assert "names one GPU" in site.submit(ON, **BATCH, tres_per_node=f"gres/gpu:{name}_3:1").said[0]


GPU: dict[str, Any] = {"tres_per_node": "gres/gpu:1"}


@pytest.mark.parametrize("name", NAMES)
def test_one_name_replaces_another_in_a_change(site: Slurmctld, name: str) -> None:
    answer = site.modify({"features": f"fat&gandiva_{name}"}, tres_per_node="gres/gpu:H800:1")
    assert answer.fields == {"tres_per_node": "gres/gpu:1", "features": "fat&gandiva_H800"}


def test_what_srun_inherits_is_compared_as_text(site: Slurmctld) -> None:
    name = "a100-sxm4-80gb"
    environment = {"SLURM_GPUS": f"{name}:2", "SLURM_TRES_PER_TASK": f"cpu:2,gres/gpu:{name}:1"}
    answer = site.submit(tres_per_job=f"gres/gpu:{name}:2", environment=environment)
    assert answer.environment == {"SLURM_GPUS": "2", "SLURM_TRES_PER_TASK": "cpu:2,gres/gpu:1"}
    other = site.submit(tres_per_job="gres/gpu:A100.80gb:2", environment={"SLURM_GPUS": "A100x80gb:2"})
    assert other.environment == {"SLURM_GPUS": "A100x80gb:2"}


@pytest.mark.parametrize(
    ("asked", "inherited", "count"),
    [
        ("2080ti", {"SLURM_GPUS": "2080ti"}, "1"),
        ("a100", {"SLURM_GPUS": "a100"}, "1"),
        ("A100", {"SLURM_GPUS_PER_NODE": "A100"}, "1"),
        ("A100:1,gres/gpu:a100:2", {"SLURM_GPUS": "A100:1,a100:2"}, "3"),
        ("A100", {"SLURM_TRES_PER_TASK": "cpu:2,gres/gpu:A100"}, "cpu:2,gres/gpu:1"),
        ("A100:2", {"SLURM_TRES_PER_TASK": "gres/gpu:a100=2,license/x:1"}, "license/x:1,gres/gpu:2"),
        ("A100:2", {"SLURM_GPUS": "A1002"}, "A1002"),
        ("A100:2", {"SLURM_GPUS": "A100:1,k80:1"}, "A100:1,k80:1"),
        ("A100:2", {"SLURM_GPUS": "," * 5000}, "," * 5000),
    ],
)
def test_what_srun_inherits_has_the_count_that_the_job_has(
    make_slurmctld: Callable[..., Slurmctld], asked: str, inherited: dict[str, str], count: str
) -> None:
    site = make_slurmctld(models=["2080ti", "A100"], aliases={"a100": "A100"})
    answer = site.submit(tres_per_job=f"gres/gpu:{asked}", environment=inherited)
    assert answer.rc == 0 and [*{**inherited, **answer.environment}.values()] == [count]


@pytest.mark.parametrize(("unit", "factor"), [("k", 1024), ("kib", 1024), ("kb", 1000), ("KB", 1000)])
def test_units_are_slurms(site: Slurmctld, unit: str, factor: int) -> None:
    answer = site.submit(tres_per_node=f"gres/gpu:A100:2{unit}")
    assert answer.fields["tres_per_node"] == f"gres/gpu:{2 * factor}"


def test_a_constraint_that_names_another_type_is_refused_at_submission(site: Slurmctld) -> None:
    for constraint in ("gandiva_H800", "fat&gandiva_H800"):
        answer = site.submit(tres_per_node="gres/gpu:a100:1", features=constraint)
        assert answer.rc != 0 and answer.fields == {}
        assert f"gpu:a100 with --constraint={constraint}" in answer.said[0]
    for constraint in ("gandiva_A100", "gandiva_a100"):
        same = site.submit(tres_per_node="gres/gpu:a100:1", features=constraint)
        assert (same.rc, same.fields["features"]) == (0, "gandiva_A100")


def test_jobs_for_other_nodes_are_told_nothing_where_time_slicing_is_the_default(
    make_slurmctld: Callable[..., Slurmctld],
) -> None:
    site = make_slurmctld(default="on", models=["a100"])
    for words in ("gres/gpu:k80:2", "gres/gpu:a100:1,gres/gpu:k80:1"):
        answer = site.submit(**BATCH, tres_per_node=words)
        assert (answer.rc, answer.said, answer.fields) == (0, [], {})


def test_an_alias_is_the_model_it_stands_for(site: Slurmctld) -> None:
    answer = site.submit(tres_per_job="gres/gpu:a100:2", environment={"SLURM_GPUS": "a100:2"})
    assert answer.fields == {"tres_per_job": "gres/gpu:2", "features": "gandiva_A100"}
    assert answer.environment == {"SLURM_GPUS": "2"}
    assert (
        site.submit(tres_per_node="gres/gpu:a100:1,gres/gpu:A100:1").fields["tres_per_node"] == "gres/gpu:2"
    )
    ours = site.submit({"gandiva_gpu_types": "a100-80"}, **BATCH, **GPU)
    assert ours.request["gpu_types"] == ["A100_80GB"]
    contradiction = site.submit({"gandiva_gpu_types": "H800"}, **BATCH, tres_per_node="gres/gpu:a100:1")
    assert contradiction.rc != 0


@pytest.mark.parametrize(
    "words",
    [
        "gres/gpu:k80:2",  # nodes that are not described keep their types
        "gres/gpu:a100:1,gres/gpu:k80:1",
        "gres/gpu:A100_0:1,gres/gpu:A100_1:1",
        "gres/gpu:1:2:3",
        "gres/gpu:99999999999999",
        "gres/shard:l4:2",
        "gres/localtmp:100,gres/vmem:2G",
    ],
)
def test_what_the_module_does_not_know_is_left_to_slurm(site: Slurmctld, words: str) -> None:
    for client in ([], ["GANDIVA_CLIENT=srun"]):
        for name in ("tres_per_node", "tres_per_job"):
            job: dict[str, Any] = {name: words}
            answer = site.submit(client, **job)
            assert (answer.rc, answer.said, answer.fields) == (0, [], {})
    assert site.modify({}, tres_per_node=words).fields == {}
    refused = site.submit(ON, **BATCH, tres_per_node=words)
    assert refused.rc != 0 and len(refused.said) == 1


@pytest.mark.parametrize("words", ["gres/shard:2", "shard:A100_0:1", "gres/shard:l4=x", "shard:_100A0:1"])
def test_shards_that_may_be_of_a_time_sliced_gpu_are_not(site: Slurmctld, words: str) -> None:
    """A name of another spelling will not do: Slurm compares sums of their letters."""
    answer = site.submit(tres_per_node=words)
    assert answer.rc != 0 and "shards belong to time-sliced jobs" in answer.said[0]
    assert site.modify({}, tres_per_node=words).rc != 0


def test_a_model_that_looks_like_a_gpu_of_another_is_a_model(
    make_slurmctld: Callable[..., Slurmctld],
) -> None:
    site = make_slurmctld(models=["a100", "a100_80"])
    assert site.submit(tres_per_node="gres/gpu:a100_80:2").fields["features"] == "gandiva_a100_80"
    assert site.submit(tres_per_node="gres/gpu:a100_80_1:1").fields == {}
    assert site.submit(tres_per_node="gres/gpu:a100_1:1").fields == {}


@pytest.fixture
def ruled(make_slurmctld: Callable[..., Slurmctld], tmp_path: Path) -> Slurmctld:
    """The shipped job_submit.lua with a site's rule wherever it says that these go: GPU types are named."""
    rule = (PUBLIC / "site-rule-typed-gres.lua").read_text()
    lines = EXAMPLE.format(sysconfdir="/etc/slurm", slurm_files="/etc/slurm").splitlines()
    places = [line for line in lines if "your own rules here" in line]
    assert len(places) == 2, "one for submissions, one for changes"
    script = tmp_path / "job_submit.lua"
    script.write_text("".join(f"{line}\n{rule if line in places else ''}" for line in lines))
    return make_slurmctld(script=script)


@pytest.mark.public
def test_a_sites_rule_sees_what_the_user_wrote(ruled: Slurmctld) -> None:
    for options in ({}, ON):
        taken = ruled.submit(options, **BATCH, tres_per_node="gres/gpu:a100:1")
        assert (taken.rc, taken.said) == (0, [])
        assert taken.fields["tres_per_node"] == "gres/gpu:1", "and then it was rewritten"
        refused = ruled.submit(options, **BATCH, tres_per_node="gres/gpu:1")
        assert refused.rc == -1 and refused.said == ["site: name a GPU type"]
    assert ruled.submit({"gandiva_weight": "0"}, **BATCH, tres_per_node="gres/gpu:a100:1").rc == -1


def test_the_controllers_changes_pass_by_the_sites_rules(ruled: Slurmctld) -> None:
    ours = {"admin_comment": 'gandiva:{"v":1}'}
    for uid in (0, 64030, 997):
        unbound = ruled.modify(ours, uid=uid, tres_per_node="gres/gpu:1")
        assert (unbound.rc, unbound.said) == (0, [])
    assert ruled.modify({}, tres_per_node="gres/gpu:1").said == ["site: name a GPU type"]
    assert ruled.modify({}, tres_per_node="gres/gpu:a100:1").fields["features"] == "gandiva_a100"
    assert ruled.modify(ours, req_nodes="n1").rc == 2002
