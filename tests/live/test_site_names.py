# SPDX-License-Identifier: GPL-2.0-or-later
"""A site with its own names of GPU types, a rule of its own, and a limit of a type (public cases)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.cluster import MiniCluster
from container.spec import ClusterSpec, NodeGroup
from tests.live.conftest import own_name, running
from tests.live.support import Site
from tests.live.test_operators import PATIENT, bad, check

pytestmark = [pytest.mark.live, pytest.mark.nightly, pytest.mark.public]
PUBLIC = Path(__file__).parents[1] / "public"
NAMES = {"n1": "h100-sxm5_80gb", "n2": "2080ti", "n3": "A100.80gb"}
LUA = "/etc/slurm/job_submit.lua"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    request.getfixturevalue("engine_ready")
    spec = ClusterSpec(
        name=own_name("-names"),
        release=os.environ.get("RELEASE") or "forky",
        nodes=tuple(NodeGroup(names=node, gpu_model=name, gpus=2) for node, name in NAMES.items()),
        slurm_conf=(
            "AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/shard",
            "AccountingStorageEnforce=limits,qos",
        ),
    )
    with running(spec, request.session) as mini:
        yield mini


def gres_of(site: Site, job: int) -> str:
    return site.job(job).get("TresPerNode", "")


@pytest.mark.parametrize(("node", "name"), NAMES.items())
def test_jobs_of_both_kinds_run_on_gpus_that_they_ask_for_by_name(site: Site, node: str, name: str) -> None:
    plain = [site.submit("bob", "hostname", f"--gres=gpu:{name}{count}") for count in ("", ":1", ":2")]
    assert set(site.wait_ended(plain).values()) == {"COMPLETED"}
    assert {site.output("bob", job).strip() for job in plain} == {node}
    ways = (f"--gres=gpu:{name}:1", f"--gandiva-gpu-types={name}", f"--constraint=gandiva_{name}")
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", ways[0])]
    jobs += [site.train("alice", "--gandiva", "--gres=gpu:1", way) for way in ways[1:]]
    site.wait_on_gpu(*jobs, timeout_seconds=120)
    assert {site.job(job)["NodeList"] for job in jobs} == {node}
    assert all(gres_of(site, job).startswith(f"gres/shard:{name}_") for job in jobs), (
        "three take turns on two"
    )


def test_a_type_that_the_site_does_not_have_is_refused_by_slurm(site: Site) -> None:
    command = ["sbatch", "--gres=gpu:k80:1", "--wrap", "true"]
    done = site.cluster.exec("login", command, user="bob", check=False)
    assert done.exit_code != 0 and "gandiva" not in done.stderr


@pytest.fixture
def rule(site: Site) -> Iterator[None]:
    good = site.cluster.read_file("ctl", LUA)
    where = next(line for line in good.splitlines(keepends=True) if "your own rules here" in line)
    text = (PUBLIC / "site-rule-typed-gres.lua").read_text()
    site.cluster.write_file("ctl", LUA, good.replace(where, where + text, 1))
    site.cluster.exec("ctl", ["scontrol", "reconfigure"])
    yield
    site.cluster.write_file("ctl", LUA, good)
    site.cluster.exec("ctl", ["scontrol", "reconfigure"])


@pytest.mark.usefixtures("rule")
def test_a_sites_rule_sees_what_the_user_wrote(site: Site) -> None:
    plain = site.submit("bob", "true", "--gres=gpu:2080ti:1")
    ours = site.submit("alice", "true", "--gandiva", "--gres=gpu:2080ti:1")
    assert set(site.wait_ended([plain, ours]).values()) == {"COMPLETED"}
    for flags in ([], ["--gandiva"]):
        command = ["sbatch", *flags, "--gres=gpu:1", "--wrap", "true"]
        done = site.cluster.exec("login", command, user="alice", check=False)
        assert done.exit_code != 0 and "site: name a GPU type" in done.stderr


def test_check_names_a_limit_of_a_type_that_is_gone_and_is_content_with_the_names(site: Site) -> None:
    _, findings = check(site.cluster, *PATIENT)
    (accounted,) = bad(findings)
    assert accounted["found"].startswith("AccountingStorageTRES="), accounted
    assert [each["where"] for each in findings if each["check"] == "product"] == list(NAMES.values())
    limit = "sacctmgr -i modify qos normal set MaxTRESPerUser=gres/gpu:a100"
    site.cluster.exec("ctl", f"{limit}=1")
    try:
        _, findings = check(site.cluster, *PATIENT)
        said = [each["found"] for each in bad(findings) if each["check"] == "GPU types"]
        assert any("MaxTRESPU=gres/gpu:a100=1 of QOS normal" in text for text in said), said
    finally:
        site.cluster.exec("ctl", f"{limit}=-1")
