# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits and weights for a GPU type that no GPU has any more, and nodes that a name of a type misses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from controller.checks import gather
from controller.checks.finding import Finding, Level
from controller.checks.gpu_types import judge_types
from tests.unit.checks.test_slurm import changed, nodes_reply

PUBLIC = Path(__file__).parents[2] / "public"
TYPES = ("a100_0", "a100_1", "K80")
QOS = "Name|Priority|GrpTRES|MaxTRES|MaxTRESPU|MinTRES\n"
ASSOC = "Cluster|Account|User|Partition|Share|GrpTRES|MaxTRES|QOS\n"
PARTITION = "PartitionName=gpu Nodes=n[1-2] State=UP"


def found(*, qos: str = "", assoc: str = "", partition: str = "", **options: str) -> list[Finding]:
    text = f"{PARTITION} TRESBillingWeights={partition or 'CPU=1.0'}\n"
    judged = judge_types(changed(**options), text, [QOS + qos, ASSOC + assoc], TYPES)
    return [each for each in judged if each.level is not Level.OK]


@pytest.mark.public
def test_a_limit_of_a_type_that_is_gone_is_named_with_the_way_to_keep_it() -> None:
    script = (PUBLIC / "typed-limit.sh").read_text()
    limit = re.search(r"modify qos (\w+) set MaxTRESPerUser=(\S+)", script)
    accounted = re.search(r"AccountingStorageTRES=(\S+)", script)
    assert limit is not None and accounted is not None
    on_qos, on_accounting = found(qos=f"{limit[1]}|0|||{limit[2]}|\n", AccountingStorageTRES=accounted[1])[
        ::-1
    ]
    assert on_qos.level is on_accounting.level is Level.WARNING
    assert on_qos.found.startswith("MaxTRESPU=gres/gpu:a100=1 of QOS normal: no GPU is of type a100")
    assert "MaxTRESPU=gres/gpu=1" in on_qos.change and "docs/ordinary-jobs.md" in on_qos.change
    assert on_accounting.found.startswith("AccountingStorageTRES=")


def test_each_place_is_looked_at_once() -> None:
    one = found(
        qos="normal|0||gres/gpu=4|cpu=8|\nk80|0|gres/gpu:K80=4|||gres/gpu:a100_0=1\n",
        assoc="mini|root|||1|||normal\nmini|ml|||1|||\n",
    )
    assert one == [], "untyped, of other nodes, of a single GPU"
    (billing,) = found(partition="CPU=1.0,GRES/gpu:a100=2.5")
    assert "TRESBillingWeights=CPU=1.0,GRES/gpu:a100=2.5 of partition gpu" in billing.found
    assert "TRESBillingWeights=CPU=1.0,gres/gpu=2.5" in billing.change
    (priority,) = found(PriorityWeightTRES="CPU=1000,GRES/gpu:a100=3000,GRES/gpu:v100=9")
    assert "PriorityWeightTRES" in priority.found and "of type a100, v100" in priority.found
    inherited = "".join(f"mini|ml|u{i}||1||gres/gpu:a100=2|\n" for i in range(9))
    (many,) = found(assoc=f"mini|ml|||1||gres/gpu:a100=2|\n{inherited}")
    assert "of account ml, user u0 of ml, user u1 of ml and 7 more" in many.found


async def test_they_are_read_from_slurms_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slurm(*argv: str, what: str) -> str:
        if argv[:4] == ("sacctmgr", "-P", "show", "qos"):
            return QOS + "normal|0|||gres/gpu:A100=1,gres/gpu:h100=1|\n"
        if argv[0] == "sacctmgr":
            return "Cluster|Account\n"
        if what == "reading the nodes":
            return nodes_reply()
        return "SLURM_VERSION = 26.05.5\n" if "config" in argv else f"{PARTITION}\n"

    monkeypatch.setattr(gather, "run", slurm)
    for nodes in ((), ("n1",)):
        all_found = await gather.examine(gather.Request(tmp_path / "none", deadline_seconds=60, nodes=nodes))
        (limit,) = [each for each in all_found if each.check == "GPU types" and each.level is Level.WARNING]
        assert "of QOS normal: no GPU is of type A100, h100" in limit.found


async def test_a_node_outside_that_a_name_of_a_type_would_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--gres=gpu:a100:1 of an ordinary job becomes a feature, everywhere."""
    features: list[str] = []

    async def slurm(*_argv: str, what: str) -> str:
        if what != "reading the nodes":
            return "SLURM_VERSION = 26.05.5\n"
        reply = json.loads(nodes_reply())
        others = [
            {"name": name, "gres": gres, "features": []}
            for name, gres in (("n8", "gpu:k80:2"), ("n9", "gpu:a100:4"))
        ]
        for each in others:
            each |= {"state": ["IDLE"], "active_features": features}
        return json.dumps({"nodes": reply["nodes"] + others})

    monkeypatch.setattr(gather, "run", slurm)

    async def warned() -> list[tuple[str, str]]:
        every = await gather.examine(gather.Request(tmp_path / "none", deadline_seconds=60))
        return [(each.where, each.change) for each in every if each.where in ("n8", "n9") and each.change]

    ((node, change),) = await warned()
    assert node == "n9" and "Feature=gandiva_a100" in change
    features.append("gandiva_a100")
    assert await warned() == []
