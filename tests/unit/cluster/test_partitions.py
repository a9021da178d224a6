# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's partitions, as scontrol prints them, and in the view."""

from __future__ import annotations

import pytest

from controller.cluster.adapter import PARTITIONS_SECONDS, SlurmCluster
from controller.cluster.partitions import by_node, parse_partitions
from controller.cluster.records import slurm_node
from controller.errors import ClusterUnavailable
from tests.unit.cluster.factories import job_record, node_record
from tests.unit.cluster.test_slurm_cluster import FakeTransport

LINE = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser={user} ExclusiveTopo={topo} GraceTime=0 Hidden=NO "
    "MaxNodes=UNLIMITED MaxTime=7-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED NodeSets=ALL "
    "Nodes={nodes} PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe={over} "
    "OverTimeLimit=NONE PreemptMode=OFF State={state} TotalCPUs=32 TotalNodes=2 JobDefaults=(null) "
    "DefMemPerNode=UNLIMITED TRES=cpu=32,mem=124000M,node=4,billing=32"
)


def line(name: str = "a", **fields: str) -> str:
    """What scontrol prints in one line."""
    usual = {"nodes": "n[1-2]", "user": "NO", "topo": "NO", "over": "NO", "state": "UP"}
    return LINE.format(name=name, **{**usual, **fields})


def test_each_node_has_its_partitions() -> None:
    text = "\n".join([line(), line("CPU nodes (b)", nodes="n2,n3"), line("none", nodes="(null)"), ""])
    known = parse_partitions(text, "reading")
    assert by_node(known) == {
        "n1": {"a": ""},
        "n2": {"a": "", "CPU nodes (b)": ""},
        "n3": {"CPU nodes (b)": ""},
    }


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({"over": "EXCLUSIVE"}, "partition a has OverSubscribe=EXCLUSIVE"),
        ({"over": "FORCE:4"}, "partition a has OverSubscribe=FORCE:4"),
        ({"user": "YES"}, "partition a has ExclusiveUser=YES"),
        ({"topo": "YES"}, "partition a has ExclusiveTopo=YES"),
        ({"over": "YES:4"}, ""),
        ({"over": "FORCE:1"}, ""),
        ({"state": "DRAIN"}, ""),
        ({"state": "DOWN"}, "partition a is DOWN"),
        ({"state": "INACTIVE"}, "partition a is INACTIVE"),
    ],
)
def test_what_keeps_gandiva_jobs_from_a_partition(fields: dict[str, str], obstacle: str) -> None:
    (known,) = parse_partitions(line(**fields), "reading")
    assert (known.obstacle, known.by_option) == (obstacle, "=" in obstacle)


def test_an_answer_without_partitions_is_an_error() -> None:
    with pytest.raises(ClusterUnavailable, match="reading the partitions: the answer has no partition"):
        parse_partitions("No partitions in the system\n", "reading the partitions")


async def test_nodes_in_the_view_have_their_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = FakeTransport(job_record())
    cluster = SlurmCluster(transport, deadline_seconds=5)
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for _ in range(2):
        view = await cluster.observe()
    assert [node.partitions for node in view.nodes] == [{"gpu": ""}, {"gpu": ""}]
    assert transport.calls_for_partitions == 1
    now += PARTITIONS_SECONDS
    await cluster.observe()
    assert transport.calls_for_partitions == 2


@pytest.mark.parametrize("state", [("IDLE", "POWERED_DOWN"), ("IDLE", "POWERING_UP")])
def test_a_node_that_slurm_switched_off_says_what_to_set(state: tuple[str, ...]) -> None:
    node = slurm_node(node_record("n1", state=state), {})
    assert not node.up
    assert "SuspendExcNodes" in node.reason
