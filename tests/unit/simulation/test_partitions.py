# SPDX-License-Identifier: GPL-2.0-or-later
"""Simulated clusters with partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.traces import read_trace
from controller.simulation.traces.base import TraceError, TraceJob
from tests.unit.simulation.test_simulation import IDEAL, run

CLUSTER = """
[[nodes]]
gpu_model = "a100"
gpus = 1
partitions = ["old", "all"]
[[nodes]]
gpu_model = "a100"
gpus = 1
partitions = ["new", "all"]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER)
    return str(path)


def job(name: str, partition: str) -> TraceJob:
    return TraceJob(name, 0.0, 1, 100.0, 2, partition=partition)


@pytest.mark.parametrize("policy", ["fifo", "gandiva", "tiresias-las"])
@pytest.mark.parametrize(
    ("partitions", "seconds"),
    [(("old", "old"), 200), (("old", "new"), 100), (("old", "all"), 100), (("old", ""), 100)],
)
def test_jobs_run_in_their_partition_alone(
    cluster: str, policy: str, partitions: tuple[str, ...], seconds: float
) -> None:
    jobs = [job(str(number), partition) for number, partition in enumerate(partitions)]
    ended = [each.jct_seconds for each in run(jobs, IDEAL, policy, cluster).jobs]
    assert max(ended) == pytest.approx(seconds, rel=0.01)


def test_a_job_that_no_node_of_its_partition_can_take_is_named(cluster: str) -> None:
    with pytest.raises(TraceError, match="job a wants 1 GPUs, partition gone has 0"):
        run([job("a", "gone")], IDEAL, "fifo", cluster)


def test_a_trace_and_a_cluster_say_partitions(tmp_path: Path, cluster: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job_id,submit_seconds,duration_seconds,gpus,partition\na,0,10,1,old\nb,0,10,1,\n")
    assert [each.partition for each in read_trace(path, "native")] == ["old", ""]
    nodes = parse_cluster(cluster, 8).nodes
    assert [set(node.partitions or ()) for node in nodes] == [{"old", "all"}, {"new", "all"}]
