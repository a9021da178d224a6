# SPDX-License-Identifier: GPL-2.0-or-later
"""What the agents say, and what SSH says when they do not."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller import __version__
from controller.agent.gpus import model_slug
from controller.checks.agents import AgentAnswer, judge_agent
from controller.checks.finding import Finding, Level
from controller.checks.gpus import gpu_nodes
from controller.checks.products import judge_products
from controller.nodes import protocol
from controller.nodes.protocol import HelloResult
from controller.settings.schema import Settings
from tests.unit.checks.test_slurm import nodes_reply

SLURM_CONF = Path("/etc/slurm/slurm.conf")
PUBLIC = Path(__file__).parents[2] / "public"
GOOD = {
    "protocol": "gandiva-agent",
    "version": protocol.VERSION,
    "node": "n1",
    "boot_id": "",
    "driver_version": "580.95.05",
    "checkpoint_supported": True,
    "device_map_supported": True,
    "gpus": [
        {"index": i, "uuid": f"GPU-{i}", "model": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 << 30}
        for i in range(4)
    ],
    "software_version": __version__,
    "run_dir": "/run/gandiva",
    "run_dir_filesystem": "tmpfs",
    "rank_files": "apart",
    "plugin_built_for": "26.05.5",
}
ANSWER = AgentAnswer("10.0.0.1", HelloResult.model_validate(GOOD), "", 0.003, 0.002)


def judged(answer: AgentAnswer, **over: Any) -> list[Finding]:
    (node,) = gpu_nodes(nodes_reply(**over))
    found = list(judge_agent(node, answer, Settings().nodes, SLURM_CONF))
    assert {finding.where for finding in found} == {"n1"}
    return found


def bad(answer: AgentAnswer) -> list[Finding]:
    return [finding for finding in judged(answer) if finding.level is not Level.OK]


def hello(**over: Any) -> AgentAnswer:
    return replace(ANSWER, hello=HelloResult.model_validate({**GOOD, **over}))


def test_an_agent_in_order() -> None:
    assert bad(ANSWER) == []
    assert len(judged(ANSWER)) == 8
    not_registered = judged(ANSWER, state=["UNKNOWN"], version="")
    assert {finding.level for finding in not_registered} == {Level.OK}


@pytest.mark.parametrize(
    ("over", "level", "change"),
    [
        ({"software_version": "0.0.9"}, "warning", f"install gandiva {__version__} on n1"),
        ({"gpus": GOOD["gpus"][:3]}, "error", "Gres=gpu:a100_0:1,gpu:a100_1:1,gpu:a100_2:1,shard:"),  # type: ignore[index]
        ({"gpus": []}, "error", "nvidia-smi"),
        ({"gpus": GOOD["gpus"][:1] + GOOD["gpus"][2:]}, "error", "nvidia-smi and dmesg"),  # type: ignore[index]
        (
            {"gpus": [{**gpu, "reason": "it has uncorrected memory errors"} for gpu in GOOD["gpus"]]},  # type: ignore[attr-defined]
            "error",
            "reset the GPU or reboot",
        ),
        ({"driver_version": "535.1", "checkpoint_supported": False}, "warning", "driver 570 or newer"),
        ({"driver_version": ""}, "error", "nvidia-smi"),
        ({"run_dir_filesystem": "ext4"}, "warning", "systemctl enable --now run-gandiva.mount"),
        ({"rank_files": "mount: permission denied"}, "warning", "let root mount a tmpfs"),
        ({"keys_from_anywhere": 1}, "warning", 'before restrict: from="ADDRESS of the controller'),
        ({"plugin_built_for": "24.11.5"}, "error", "make -C slurm_plugin"),
        ({"plugin_built_for": "none"}, "error", "make -C slurm_plugin"),
    ],
)
def test_an_agent_out_of_order(over: dict[str, Any], level: str, change: str) -> None:
    (finding,) = bad(hello(**over))
    assert finding.level.value == level and change in finding.change, finding


def test_an_older_agent_says_less_and_is_no_crash() -> None:
    old = {key: value for key, value in GOOD.items() if key not in ("software_version", "run_dir_filesystem")}
    del old["plugin_built_for"], old["rank_files"]
    found = bad(replace(ANSWER, hello=HelloResult.model_validate(old)))
    assert {finding.check for finding in found} == {"agent", "run folder"}
    assert {finding.level for finding in found} == {Level.WARNING}


@pytest.mark.parametrize(
    ("ahead", "doubt", "level"),
    [(0.9, 0.0, "ok"), (-0.9, 0.0, "ok"), (1.1, 0.01, "error"), (-30.0, 0.2, "error"), (2.5, 2.0, "ok")],
)
def test_clocks_may_differ_by_a_second_and_by_what_cannot_be_known(
    ahead: float, doubt: float, level: str
) -> None:
    (finding,) = [
        f for f in judged(replace(ANSWER, ahead_seconds=ahead, doubt_seconds=doubt)) if f.check == "clock"
    ]
    assert finding.level.value == level
    if level == "error":
        assert ("ahead" if ahead > 0 else "behind") in finding.found and "NTP" in finding.change


@pytest.mark.parametrize(
    ("said", "change"),
    [
        (
            "10.0.0.1: Server '10.0.0.1' not found in known_hosts",
            "ssh-keyscan -t ed25519 10.0.0.1 >> /etc/gandiva/known_hosts",
        ),
        ("10.0.0.1: host key differs from /etc/gandiva/known_hosts: …", "ssh-keygen -R 10.0.0.1"),
        (
            "10.0.0.1: root is not let in with /etc/gandiva/agent_key: Authentication failed.",
            'restrict,command="/usr/bin/gandiva-agent" and the line of /etc/gandiva/agent_key.pub',
        ),
        ("cannot use the key /etc/gandiva/agent_key: …", "see the findings about /etc/gandiva/agent_key"),
        ("[Errno None] Unable to connect to port 22 on 10.0.0.1", "systemctl start sshd on n1"),
        ("[Errno 111] Connection refused", "systemctl start sshd on n1"),
        ("[Errno -2] Name or service not known", '[nodes.addresses] n1 = "ADDRESS"'),
        ("the agent has ended (exit status 127: gandiva-agent: not found)", "install gandiva"),
        ("no agent at 10.0.0.1 after 12 s", "is n1 up"),
    ],
)
def test_an_agent_that_does_not_answer(said: str, change: str) -> None:
    (finding,) = judged(AgentAnswer("10.0.0.1", error=said))
    assert finding.level is Level.ERROR and said in finding.found
    assert change in finding.change, finding


def test_paths_of_a_site_of_its_own() -> None:
    settings = Settings.model_validate({"nodes": {"known_hosts": Path("/srv/hosts")}})
    (node,) = gpu_nodes(nodes_reply())
    answer = AgentAnswer("n1", error="Server 'n1' not found in known_hosts")
    (finding,) = judge_agent(node, answer, settings.nodes, SLURM_CONF)
    assert ">> /srv/hosts" in finding.change


def test_a_gpu_that_is_missing_or_broken_is_named() -> None:
    gpus: Any = GOOD["gpus"]
    (missing,) = bad(hello(gpus=[gpus[0], gpus[2], gpus[3]]))
    assert "/dev/nvidia1 of Slurm's 4 GPUs is missing: the driver lists only 0, 2, 3" in missing.found
    (broken,) = bad(hello(gpus=[{**gpus[0], "reason": "it has fallen off the bus"}, *gpus[1:]]))
    assert "GPU 0 (GPU-0): it has fallen off the bus" in broken.found


def named(name: str, *products: str, **settings: Any) -> list[Finding]:
    """What is found of GPUs that the site calls so, on nodes n1, n2, … with these."""
    gres = nodes_reply().replace("a100", name)
    (node,) = gpu_nodes(gres)
    nodes = [node._replace(record=node.record._replace(name=f"n{i}")) for i in range(1, len(products) + 1)]
    gpus: Any = GOOD["gpus"]
    answers = {
        each.name: hello(gpus=[{**gpu, "model": model_slug(product)} for gpu in gpus])
        for each, product in zip(nodes, products, strict=True)
    }
    known = Settings.model_validate({"nodes": settings}).nodes
    return [finding for finding in judge_products(nodes, answers, known) if finding.level is not Level.OK]


with (PUBLIC / "gpu-names.csv").open() as rows:
    PRODUCTS = [(row["site_model"], row["nvml_name"]) for row in csv.DictReader(rows)]


@pytest.mark.public
@pytest.mark.parametrize(("name", "product"), PRODUCTS)
def test_a_name_that_says_the_product_is_no_finding_and_that_of_another_is(name: str, product: str) -> None:
    assert named(name, product) == []
    for other, _ in PRODUCTS:
        assert (named(other, product) == []) == (other == name), other


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("A100.80gb", "NVIDIA A100 80GB PCIe"),
        ("a100_40", "NVIDIA A100-PCIE-40GB"),
        ("nvidia_a100-sxm4-80gb", "NVIDIA A100-SXM4-80GB"),
        ("h100_80gb", "NVIDIA H100 80GB HBM3"),
        ("h100_nvl", "NVIDIA H100 NVL"),
        ("2080ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("nvidia_l40s", "NVIDIA L40S"),
        ("Tesla-K80", "Tesla K80"),
        ("teslaV100", "Tesla V100-SXM2-16GB"),
        ("rtx6000ada", "NVIDIA RTX 6000 Ada Generation"),
        ("a6000", "NVIDIA RTX A6000"),
        ("gh200", "NVIDIA GH200 480GB"),
        ("quadro8000", "Quadro 8000"),
        ("a100_sxm", "NVIDIA A100-SXM4-40GB"),
        ("h100_sxm", "NVIDIA H100 80GB HBM3"),
        ("H100-SXM5-80GB", "NVIDIA H100 80GB HBM3"),
        ("a100-80gb-sxm", "NVIDIA A100-SXM4-80GB"),
        ("a100_pcie_80", "NVIDIA A100 80GB PCIe"),
        ("gh200", "NVIDIA GH200 144G HBM3e"),
        ("h100_80gb", "NVIDIA H100 PCIe"),
        ("h200_141g", "NVIDIA H200"),
    ],
)
def test_what_a_name_may_leave_out(name: str, product: str) -> None:
    assert named(name, product) == []


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("gtx1080", "NVIDIA GeForce GTX 1080 Ti"),
        ("rtx2080ti", "NVIDIA GeForce RTX 2080"),
        ("rtx6000", "NVIDIA RTX 6000 Ada Generation"),
        ("rtx6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("l40", "NVIDIA L40S"),
        ("a10", "NVIDIA A10G"),
        ("a100_80gb", "NVIDIA A100-SXM4-40GB"),
        ("a100_sxm", "NVIDIA A100 80GB PCIe"),
        ("a100_pcie", "NVIDIA A100-SXM4-40GB"),
        ("a100_sxm2", "NVIDIA A100-SXM4-40GB"),
        ("h100_sxm", "NVIDIA H100 NVL"),
        ("80gb_sxm", "NVIDIA A100-SXM4-80GB"),
        ("h100", "NVIDIA H200"),
        ("tesla-smx2", "Tesla V100-SXM2-16GB"),
    ],
)
def test_a_name_of_another_product_is_a_warning_until_the_site_says_what_it_has(
    name: str, product: str
) -> None:
    (finding,) = named(name, product)
    assert finding.level is Level.WARNING and model_slug(product) in finding.found
    assert f'[nodes.gpu_products] "{name}" = ["{model_slug(product)}"]' in finding.change
    for said in (product, model_slug(product)):
        assert named(name, product, gpu_products={name: [said]}) == []
    assert named(name, product, gpu_products={name: [f"{product} Other"]}) != []


def test_products_of_one_name_are_compared_whole() -> None:
    both = ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"]
    (finding,) = named("a100", *both, both[0])
    assert "nvidia_a100-sxm4-40gb (n1, n3), nvidia_a100-sxm4-80gb (n2)" in finding.found
    assert named("a100", *both, gpu_products={"a100": both}) == []
    (finding,) = named("a100", *both, gpu_products={"a100": both[:1]})
    assert "nvidia_a100-sxm4-80gb (n2)" in finding.found and "40gb" not in finding.found
