# SPDX-License-Identifier: GPL-2.0-or-later
"""Three GPU types of different speed in one cluster: where jobs may be, and that everything that tells of
types agrees."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.live.rounds import TYPES
from tests.live.slices import POLICY
from tests.live.support import Site
from tests.live.test_operators import PATIENT, bad, check

pytestmark = [
    pytest.mark.live,
    pytest.mark.xdist_group("gpu-types"),
    pytest.mark.settings(policy={**POLICY, "moves": ["pack"]}),
]


def nodes_of(site: Site, job_id: int) -> set[str]:
    """Where the job ever had memory on a GPU, as the mock GPUs saw it."""
    return {hold.node for hold in site.holds() if hold.job_id == job_id}


def seen_by_nvml(site: Site, node: str) -> list[dict[str, Any]]:
    """The mock GPUs of a node."""
    return list(json.loads(site.cluster.exec(node, ["mockgpu", "show", "--json"]).stdout)["gpus"])


def test_slurm_nvml_and_the_controller_name_the_same_types(site: Site) -> None:
    for node, model in TYPES.items():
        shown = site.cluster.exec("ctl", ["scontrol", "-o", "show", "node", node]).stdout
        gres = re.search(r" Gres=(\S+)", shown)
        assert gres is not None and re.findall(r"gpu:(\w+):1", gres[1]) == [f"{model}_0", f"{model}_1"]
        assert {model.upper() in gpu["model"] for gpu in seen_by_nvml(site, node)} == {True}
    v100, p100, k80 = (seen_by_nvml(site, node)[0]["total_bytes"] for node in TYPES)
    assert v100 > p100 > k80
    status, findings = check(site.cluster, *PATIENT)
    assert (status, bad(findings)) == (0, []), bad(findings)


def test_an_ordinary_job_gets_the_type_that_it_names(site: Site) -> None:
    jobs = {
        site.train("bob", "--no-gandiva", f"--gres=gpu:{model}:1", steps=10, minibatch_ms=10): node
        for node, model in TYPES.items()
    }
    assert set(site.wait_ended(jobs).values()) == {"COMPLETED"}
    assert {job: nodes_of(site, job) for job in jobs} == {job: {node} for job, node in jobs.items()}


def test_jobs_limited_to_a_type_are_never_elsewhere(site: Site) -> None:
    """Five jobs take turns on the two p100, while four faster and slower GPUs are idle."""
    p100 = ("--gandiva", "--gandiva-gpu-types=p100", "--gres=gpu:1")
    limited = [site.train("alice", *p100) for _ in range(4)]
    limited.append(site.train("bob", "--gandiva", "--gres=gpu:p100:1"))
    either = site.train("bob", "--gandiva", "--gandiva-gpu-types=v100,k80", "--gres=gpu:2", gpus=2)
    site.wait_on_gpu(*limited, either)
    assert [nodes_of(site, job) for job in limited] == [{"n2"}] * 5
    assert nodes_of(site, either) <= {"n1", "n3"} and nodes_of(site, either)
    assert set(site.states([*limited, either]).values()) <= {"RUNNING", "SUSPENDED"}


def test_a_type_without_room_for_the_job_says_so(site: Site) -> None:
    done = site.cluster.exec(
        "login",
        ["sbatch", "--gandiva", "--gandiva-gpu-types=h100", "--gres=gpu:1", "--wrap", "true"],
        user="alice",
        check=False,
    )
    assert done.exit_code != 0 and "different GPU models of this cluster (" in done.stderr
    assert all(model in done.stderr for model in TYPES.values())
    job = site.train("alice", "--gandiva", "--gandiva-gpu-types=k80", "--gres=gpu:1", "-w", "n1")
    site.wait("the reason why it waits", lambda: "no node can take its GPU" in site.explained(job))
    assert nodes_of(site, job) == set()
