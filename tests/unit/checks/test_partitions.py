# SPDX-License-Identifier: GPL-2.0-or-later
"""Partitions that share no GPUs, and nodes that Slurm switches off."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.checks import gather
from controller.checks.finding import Level
from controller.checks.partitions import judge_partitions
from controller.checks.slurm_options import SlurmOptions
from controller.cluster.partitions import Partition, parse_partitions
from tests.unit.checks.test_host import slurm_with_a_node  # noqa: F401  (a fixture)
from tests.unit.cluster.test_partitions import line

NODES = ("n1", "n2")


def known(*lines: str) -> tuple[Partition, ...]:
    return parse_partitions("\n".join(lines), "reading")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"over": "EXCLUSIVE"}, "OverSubscribe=EXCLUSIVE"),
        ({"over": "FORCE:4"}, "OverSubscribe=FORCE:4"),
        ({"user": "YES"}, "ExclusiveUser=YES"),
        ({"topo": "YES"}, "ExclusiveTopo=YES"),
    ],
)
def test_a_partition_that_shares_no_gpus_is_named_with_its_option(fields: dict[str, str], found: str) -> None:
    partitions = known(line("shared"), line("old", **fields), line("cpu", nodes="c[1-9]", **fields))
    first, second, power = judge_partitions(partitions, NODES, SlurmOptions({}))
    assert (first.level, first.check, power.level) == (Level.OK, "partition shared", Level.OK)
    assert (second.level, second.check) == (Level.WARNING, "partition old")
    assert second.found.startswith(f"{found}: ") and "PartitionName=old without it" in second.change


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, ""),
        ({"suspendprogram": "/s", "suspendtime": "INFINITE"}, ""),
        ({"suspendprogram": "/s", "suspendtime": "300 sec"}, "n1,n2"),
        ({"suspendprogram": "/s", "suspendtime": "300 sec", "suspendexcnodes": "n[2-9]"}, "n1"),
        ({"suspendprogram": "/s", "suspendtime": "300 sec", "suspendexcnodes": "n[1-2]:1"}, "n1,n2"),
        ({"suspendprogram": "/s", "suspendtime": "300 sec", "suspendexcnodes": "n1,n2"}, ""),
        ({"suspendprogram": "/s", "suspendtime": "300 sec", "suspendexcparts": "gpu"}, ""),
    ],
)
def test_nodes_that_slurm_switches_off_are_named(options: dict[str, str], missing: str) -> None:
    *_, power = judge_partitions(known(line("gpu")), NODES, SlurmOptions(options))
    if not missing:
        assert power.level is Level.OK
    else:
        assert power.level is Level.ERROR and f"switches {missing} off" in power.found
        assert f"SuspendExcNodes={missing} " in power.change


@pytest.mark.usefixtures("slurm_with_a_node")
async def test_check_reads_the_partitions(tmp_path: Path) -> None:
    asked = gather.Request(tmp_path / "none.toml", user="nobody-of-this-name", deadline_seconds=60)
    found = {each.check: each.level for each in await gather.examine(asked)}
    assert found["partition gpu"] is Level.WARNING
    assert found["power saving"] is Level.OK
