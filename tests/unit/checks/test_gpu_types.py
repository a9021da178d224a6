# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits and weights for a GPU type that no GPU has any more, and nodes that a name of a type misses."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from controller.checks import gather
from controller.checks.finding import Finding, Level
from controller.checks.gpu_types import judge_types
from tests.unit.checks.test_slurm import changed, nodes_reply

PUBLIC = Path(__file__).parents[2] / "public"
TYPES = ("a100_0", "a100_1", "K80", "V100")
QOS = "Name|Priority|GrpTRES|MaxTRES|MaxTRESPU|MinTRES\n"
ASSOC = "Cluster|Account|User|Partition|Share|GrpTRES|MaxTRES|QOS\n"
PARTITION = "PartitionName=gpu Nodes=n[1-2] State=UP"


def found(*, qos: str = "", assoc: str = "", partition: str = "", **options: str) -> list[Finding]:
    text = f"{PARTITION} TRESBillingWeights={partition or 'CPU=1.0'}\n"
    judged = judge_types(changed(**options), text, [QOS + qos, ASSOC + assoc], TYPES, {"a100", "v100"})
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
    assert on_qos.found.startswith("MaxTRESPU=gres/gpu:a100=1 of QOS normal: no shared GPU is of type a100")
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
    assert billing.change.startswith("TRESBillingWeights=CPU=1.0,gres/gpu=2.5 ")
    assert "line" in billing.change and "QOS" not in billing.change
    (priority,) = found(PriorityWeightTRES="CPU=1000,GRES/gpu:a100=3000,GRES/gpu:h100=9")
    assert "PriorityWeightTRES" in priority.found and "of type a100, h100" in priority.found
    assert "partition" not in priority.change, "it has no such weights"
    inherited = "".join(f"mini|ml|u{i}||1||gres/gpu:a100=2|\n" for i in range(9))
    (many,) = found(assoc=f"mini|ml|||1||gres/gpu:a100=2|\n{inherited}")
    assert "of account ml, user u0 of ml, user u1 of ml and 7 more" in many.found


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ("gres/gpu,gres/gpu:a100,gres/gpu:h100", "gres/gpu"),
        ("gres/gpu:a100,gres/gpu:h100,cpu", "gres/gpu,cpu"),
        ("gres/gpu:a100=2,gres/gpu:K80=1", "gres/gpu=2,gres/gpu:K80=1"),
        ("cpu=9,GRES/gpu:h100=2,gres/gpu=4", "cpu=9,gres/gpu=4"),
        ("gres/gpu:V100=2", "gres/gpu:V100=2,gres/gpu=2"),
        ("gres/gpu:a100_80=2", "gres/gpu=2"),
    ],
)
def test_the_way_to_keep_it_has_each_key_once(value: str, change: str) -> None:
    (limit,) = found(qos=f"n|0||{value}||\n")
    assert limit.change.startswith(f"MaxTRES={change} ")


def test_a_limit_of_a_type_that_is_gone_from_some_nodes_only() -> None:
    (limit,) = found(qos="normal|0||gres/gpu:V100=1||\n")
    assert "no shared GPU is of type V100" in limit.found


def test_types_that_slurm_takes_for_one_are_named() -> None:
    text = f"{PARTITION}\n"
    judged = judge_types(changed(), text, [], ["h100_0", "h100_1", "h200_0"], {"h100", "h200"})
    (same,) = [each for each in judged if each.level is Level.WARNING]
    assert "Slurm takes h100_1 for h200_0" in same.found and "docs/plugin.md" in same.change


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
        assert "of QOS normal: no shared GPU is of type A100, h100" in limit.found


Others = Callable[..., Awaitable[list[Finding]]]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Others:
    """What is found on nodes beside one that shares its GPUs."""

    async def findings(*gres: str, features: Sequence[str] = (), aliases: str = "") -> list[Finding]:
        others = [
            {"name": f"o{i}", "gres": each, "features": [], "state": ["IDLE"], "active_features": features}
            for i, each in enumerate(gres, 1)
        ]
        settings = tmp_path / "gandiva" / "gandiva_settings.lua"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(f"return {{\n   models = {{}},\n   aliases = {aliases or '{}'},\n}}\n")

        async def slurm(*_argv: str, what: str) -> str:
            if what != "reading the nodes":
                return f"SLURM_VERSION = 26.05.5\nSLURM_CONF = {tmp_path}/slurm.conf\n"
            return json.dumps({"nodes": json.loads(nodes_reply())["nodes"] + others})

        monkeypatch.setattr(gather, "run", slurm)
        every = await gather.examine(gather.Request(tmp_path / "none", deadline_seconds=60))
        return [each for each in every if each.where.startswith("o") and each.check != "state"]

    return findings


async def test_a_node_outside_that_a_name_of_a_type_would_miss(outside: Others) -> None:
    """--gres=gpu:a100:1 of an ordinary job becomes a feature, everywhere."""
    k80, a100 = await outside("gpu:k80:2", "gpu:a100:4")
    assert k80.level is Level.OK
    assert a100.level is Level.WARNING and "Feature=gandiva_a100" in a100.change
    assert all(each.level is Level.OK for each in await outside("gpu:a100:4", features=["gandiva_a100"]))


@pytest.mark.parametrize(
    "aliases", ['{ A100 = "a100" }', '{\n      ["A100"] = "a100",\n      b = "x",\n   }']
)
async def test_a_node_outside_whose_type_is_an_alias(outside: Others, aliases: str) -> None:
    (found,) = await outside("gpu:A100:4", aliases=aliases)
    assert found.level is Level.WARNING and "Feature=gandiva_a100" in found.change
    (found,) = await outside("gpu:A100:4", features=["gandiva_a100"], aliases=aliases)
    assert found.level is Level.OK


@pytest.mark.parametrize(
    "gres",
    [
        "gpu:l4:4,shard:l4:40",
        "gpu:rtx_8000:1,shard:rtx_8000:8",
        "gpu:v100_32:1,shard:v100_32:8",
        "gpu:2,shard:8",
    ],
)
async def test_shards_of_a_sites_own_are_well(outside: Others, gres: str) -> None:
    (found,) = await outside(gres)
    assert found.level is Level.OK and "shards of the site's own" in found.found


async def test_shards_of_a_model_of_ours_are_not_the_sites_own(outside: Others) -> None:
    (error,) = await outside("gpu:a100_1:1,shard:a100_1:16")
    assert error.level is Level.ERROR and "gpu:a100_0:1,gpu:a100_1:1,shard:a100_0:16," in error.change
