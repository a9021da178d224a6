# SPDX-License-Identifier: GPL-2.0-or-later
"""Running other people's simulators: what is ours of it. A small one stands in for Blox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import blox, tiresias
from benchmarks.peers.blox_rounds import Feed, read_jobs
from benchmarks.peers.measure import FIDELITY, Ours

ROUNDS = Path(blox.__file__).with_name("blox_rounds.py")
JOBS = "job_id,arrival,duration,gpus\na,0,250,1\nb,10,100,1\nc,350,100,1\n"

MANAGER = """
import grpc
import deployment.grpc_client_rm

class BloxManager:
    def __init__(self, args):
        self.time, self.terminate, self.round, self.rmserver = 0, False, args.round_duration, None

    def update_cluster(self, cluster):
        cluster.gpus += sum(node["numGPUs"] for node in self.rmserver.get_new_nodes())

    def pop_wait_queue(self, simulated):
        return self.rmserver.get_jobs_sim(self.time)

    def update_metrics(self, cluster, state):
        print("must not be seen")
        for number, job in list(state.active.items()):
            job["job_executed_iteration"] += self.round * job.get("runs", 0)
            if job["job_executed_iteration"] >= job["job_total_iteration"]:
                state.job_completion_stats[number] = [job["submit_time"], self.time]
                del state.active[number]
        self.terminate = len(state.job_completion_stats) == state.jobs

    def exec_jobs(self, launch, suspend, cluster, state):
        for number in launch:
            state.active[number]["runs"] = 1
"""
FILES = {
    "blox/__init__.py": "from .blox_manager import *\nfrom .states import *\nfrom .utils import *\n",
    "blox/blox_manager.py": MANAGER,
    "blox/utils.py": "",
    "blox/deployment/__init__.py": "",
    "blox/deployment/grpc_client_rm.py": "import rm_pb2, nm_pb2_grpc\n",
    "blox/states.py": """
class ClusterState:
    def __init__(self, args):
        self.gpus = self.time = 0

class JobState:
    def __init__(self, args):
        self.active, self.job_completion_stats, self.time, self.seen = {}, {}, 0, 0
        self.jobs = args.stop_id_track - args.start_id_track + 1

    def add_new_jobs(self, jobs):
        for job in jobs:
            self.active[self.seen] = job
            self.seen += 1
""",
    "schedulers/__init__.py": """
class Fifo:
    def __init__(self, args):
        pass

    def schedule(self, state, cluster):
        return sorted(state.active)
""",
    "placement/__init__.py": "",
    "placement/placement.py": """
class JobPlacement:
    def __init__(self, args):
        pass

    def place(self, state, cluster, order):
        return [], {number: [] for number in order[: cluster.gpus] if "runs" not in state.active[number]}
""",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "jobs.csv").write_text(JOBS)
    return folder


def test_rounds_drive_the_classes_of_the_checkout(checkout: Path, tmp_path: Path) -> None:
    """Two nodes of one GPU, rounds of 100 s: a 0-300, b waits for the round at 100 and is in it till 200."""
    words = ["--policy", "Fifo", "--nodes", "2", "--gpus-per-node", "1", "--round", "100"]
    done = subprocess.run(
        [sys.executable, str(ROUNDS), str(checkout), str(tmp_path / "jobs.csv"), *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    found = json.loads(done.stdout)  # (nothing but one line of JSON: what Blox prints is not in it)
    assert found["jcts"] == {"a": 300.0, "b": 190.0, "c": 150.0}
    assert found["avg_jct_seconds"] == pytest.approx(640 / 3)
    assert (found["jobs"], found["rounds"], found["preemptions"]) == (3, 5, 0)
    assert found["cpu_seconds"] > 0


def test_jobs_are_handed_out_when_they_have_arrived(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    feed = Feed(read_jobs(tmp_path / "jobs.csv"), nodes=2, gpus_per_node=3)
    assert [node["gpuUUIDs"] for node in feed.get_new_nodes()] == ["0\n1\n2"] * 2
    assert feed.get_new_nodes() == []
    assert [job["name"] for job in feed.get_jobs_sim(10)] == ["a", "b"]
    assert feed.get_jobs_sim(349) == []
    assert [job["name"] for job in feed.get_jobs_sim(350)] == ["c"]


def test_a_job_that_ends_elsewhere_is_told() -> None:
    recorded = {"1": 10.0, "2": 20.0, "3": 30.0}
    assert blox.different(recorded, dict(recorded)) == []
    assert blox.different(recorded, {"1": 10.0, "2": 21.0, "4": 30.0}) == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("main", "option", "name"),
    [(blox.main, "--blox", "GANDIVA_BLOX"), (tiresias.main, "--tiresias", "GANDIVA_TIRESIAS")],
)
def test_a_peer_that_is_not_there_is_told(
    main: object,
    option: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert callable(main)
    monkeypatch.delenv(name, raising=False)
    for arguments in ([], [option, str(tmp_path)]):
        assert main(arguments) == 0
        said = capsys.readouterr().out
        assert said.startswith("not compared with") and option in said and name in said


def test_blox_needs_a_python_with_old_pandas(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results_public.json").write_text("{}")
    words = ["--blox", str(checkout), "--refs", str(tmp_path), "--python"]
    assert blox.main([*words, str(tmp_path / "no-python")]) == 0
    assert "does not run" in capsys.readouterr().out
    assert blox.main([*words, sys.executable]) == 0
    assert "no pandas < 2" in capsys.readouterr().out


def test_ours_is_measured_as_a_whole_and_alone(tmp_path: Path) -> None:
    trace = tmp_path / "two_job.csv"
    trace.write_text(
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        "1,1,0,1,resnet50,100,0\n2,1,10,1,resnet50,100,10\n"
    )
    ours = Ours(trace, "v100:1", 1, "fifo", FIDELITY / "tiresias.toml", ("simulation.round_seconds=50",))
    whole = ours.command()
    # 0 to 100, and from 100 to 200 for the second, submitted at 10.
    assert json.loads(whole.printed)["avg_jct_seconds"] == (100 + 190) / 2
    cpu_seconds, wall_seconds = ours.alone()
    assert 0 < cpu_seconds < whole.cpu_seconds
    assert wall_seconds > 0
