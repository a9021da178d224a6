# SPDX-License-Identifier: GPL-2.0-or-later
"""Running other people's simulators: what is ours of it. A small one stands in for Blox."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.peers import blox, tiresias
from benchmarks.peers.blox_rounds import Feed, read_jobs
from benchmarks.peers.blox_shipped import Trace, completion_times
from benchmarks.peers.measure import FIDELITY, Ours, described, environment, spent

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


PROGRAMS = {
    "workload/__init__.py": """
import os, sys
sys.path.append(os.path.dirname(__file__))

class Workload:
    def __init__(self, log):
        raise SystemExit("reads the Philly log")
""",
    "workload/job.py": """
class Job:
    def __init__(self, number, arrival, iteration, iterations, gpus, a, b, c, d, tenant):
        self.words = [number, arrival, iteration * iterations, gpus]
""",
    "simulator_simple.py": """
import json, socketserver, threading
from workload import Workload

class SimulatorRunner:
    def __init__(self, log, loads, track, schedulers, number_of_machines=32, gpus_per_machine=4):
        self.workload, self.ipaddr_rm = Workload(log), "localhost:50051"
        self.words = [*schedulers, number_of_machines, gpus_per_machine, *track]

def parse_args(parser):
    for name in ("cluster-job-log", "sim-type", "jobs-per-hour", "exp-prefix"):
        parser.add_argument("--" + name)
    for name in ("start-job-track", "end-job-track", "simulator-rpc-port"):
        parser.add_argument("--" + name, type=int)
    return parser.parse_args()

def launch_server(args):
    runner = SimulatorRunner(args.cluster_job_log, [1], (args.start_job_track, args.end_job_track), ["Las"])
    print("must not be seen")

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            jobs = [runner.workload.generate_next_job(0).words for _ in range(runner.words[-1] + 2)]
            said = [runner.words, runner.ipaddr_rm, jobs]
            self.wfile.write(json.dumps(said).encode() + b"\\n")

    server = socketserver.TCPServer(("127.0.0.1", args.simulator_rpc_port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.stop = lambda grace: server.shutdown()
    return server
""",
    "las_scheduler.py": """
import json, math, socket
import schedulers

def parse_args(parser):
    parser.add_argument("--simulate", action="store_true")
    for name in ("load", "exp-prefix"):
        parser.add_argument("--" + name)
    for name in ("round-duration", "start-id-track", "stop-id-track"):
        parser.add_argument("--" + name, type=int)
    for name in ("simulator-rpc-port", "central-scheduler-port"):
        parser.add_argument("--" + name, type=int)
    return parser.parse_args()

def main(args):
    print("must not be seen")
    with socket.create_connection(("127.0.0.1", args.simulator_rpc_port)) as connection:
        words, address, jobs = json.loads(connection.makefile().readline())
    name = schedulers.Las(args).__class__.__name__
    assert words == [name, 2, 3, 0, args.stop_id_track], words
    assert address == f"localhost:{args.central_scheduler_port}"
    assert jobs.pop()[1] == math.inf
    ends = {number: [begin, begin + lasts + args.round_duration] for number, begin, lasts, gpus in jobs}
    path = f"run_{args.start_id_track}_{args.stop_id_track}_{name}_accept_all_load_1.0_job_stats.json"
    open(path, "w").write(json.dumps(ends))
""",
}
WORDS = ["--policy", "Fifo", "--nodes", "2", "--gpus-per-node", "3", "--round", "100"]


@pytest.fixture
def programs(checkout: Path) -> Path:
    for name, text in PROGRAMS.items():
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return checkout


def test_both_programs_of_the_checkout_run_on_our_jobs(programs: Path, tmp_path: Path) -> None:
    """With the nodes, the policy and the ports that were asked for; theirs are other ones."""
    found, jcts = blox.as_shipped(sys.executable, [str(programs), str(tmp_path / "jobs.csv"), *WORDS])
    assert jcts == {"a": 350, "b": 200, "c": 200}
    assert 0 < found.running_cpu < found.cpu
    assert found.wall > 0


@pytest.mark.parametrize("name", ["simulator_simple.py", "las_scheduler.py"])
def test_a_program_of_the_checkout_that_fails_is_told(programs: Path, tmp_path: Path, name: str) -> None:
    (programs / name).write_text("raise ValueError('no such luck')\n")
    with pytest.raises(RuntimeError, match="no such luck"):
        blox.as_shipped(sys.executable, [str(programs), str(tmp_path / "jobs.csv"), *WORDS])


def test_after_the_last_job_one_that_never_arrives(tmp_path: Path) -> None:
    """Theirs would begin with the first again, and a call that raises is made anew for ever."""
    (tmp_path / "jobs.csv").write_text(JOBS)
    trace = Trace(tmp_path / "jobs.csv", lambda *words: SimpleNamespace(words=words))
    handed = [trace.generate_next_job(0).words for _ in range(5)]
    assert handed[1] == (1, 10.0, 1, 100.0, 1, None, None, None, None, 0)
    assert [words[1] for words in handed] == [0, 10, 350, math.inf, math.inf]


def test_completion_times_are_read_by_the_names_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "run_0_1_Las_accept_all_load_1.0_job_stats.json").write_text('{"1": [5, 9], "0": [1, 4.5]}')
    (tmp_path / "run_0_1_Las_load_1.0_job_stats.json").write_text("of a later round")
    assert completion_times(tmp_path, ["x", "y"]) == {"x": 3.5, "y": 4}


def test_blox_as_shipped_needs_stubs_and_grpc(programs: Path) -> None:
    args = argparse.Namespace(blox=programs, python=sys.executable)
    assert "no gRPC stubs" in blox.not_shipped(args)
    stubs = programs / blox.STUBS
    stubs.parent.mkdir(parents=True)
    stubs.write_text("")
    (programs / "python").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python").chmod(0o755)
    args.python = str(programs / "python")
    assert "lacks grpcio" in blox.not_shipped(args)
    (programs / "python").write_text("#!/bin/sh\nexit 0\n")
    assert blox.not_shipped(args) == ""


def test_a_line_tells_the_ratios_and_what_was_not_run() -> None:
    row = blox.Row("xs_48", "Las", blox.Shipped(20, 60, 15), 5, 0.5, 1.5, 0.1, 7, 8)
    assert str(row) == (
        "| xs_48 | Las | 20.00 (60.0) | 15.00 | 5.00 | 0.50 (1.5) | 0.100 "
        "| 40 (40) times | 150 times | 50 times | 7.000 / 8.000 |"
    )
    assert "| - | - | 5.00 |" in str(replace(row, shipped=None))
    assert (
        str(row).count("|")
        == blox.HEADER.split("\n")[0].count("|")
        == str(replace(row, shipped=None)).count("|")
    )


def test_a_run_that_was_stopped_counts_the_jobs_that_had_ended(tmp_path: Path) -> None:
    header = (
        "time,job_id,num_gpu,submit_time,start_time,end_time,executed_time,JCT,duration,pending_time,"
        "preempt,resume,promote"
    )
    assert tiresias.completion_times(tmp_path) == []  # (stopped before its first line)
    (tmp_path / "log").mkdir()
    lines = [header, "9,1,1,0,0,9,9,9,9,0,0,0,0", "15,2,4,5,9,15,6,10,6,4,0,0,0", "21,3,4,5,9,2"]
    (tmp_path / "log/job.csv").write_text("\n".join(lines))
    assert tiresias.completion_times(tmp_path) == [9, 10]


def test_each_case_has_the_schedules_of_the_references(tmp_path: Path) -> None:
    """With promotion the one trace that they have it for."""
    found = {case.name: case.schedules for case in tiresias.cases(tmp_path)}
    assert [name for name, schedules in found.items() if "dlas-gpu-8" in schedules] == ["ee9e8c (1,511 jobs)"]
    case = next(tiresias.cases(tmp_path))
    assert tiresias.ours(case, "dlas-gpu-8", tmp_path).changes[0] == "promote_knob_ratio=8"
    assert "yarn" in tiresias.ours(case, "dlas-gpu-gittins", tmp_path).changes[0]


def test_programs_are_measured_with_their_code_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    program = "import os, sys; print(sys.dont_write_bytecode, os.environ['MORE'])"
    assert spent([sys.executable, "-c", program], env=environment(MORE="x")).printed == "False x\n"


def blox_row(running_cpu: float, cpu: float) -> blox.Row:
    """Ours takes 1 s with its start, and 0.5 s without."""
    return blox.Row("xs", "Las", blox.Shipped(cpu, 60, running_cpu), 5, 1, 1.5, 0.5, 7, 8)


def test_the_outcome_beside_blox_is_counted_from_the_rows() -> None:
    """Rounded down: what is said to be missed must look so."""
    rows = [blox_row(24.99, 50), blox_row(25, 20.27), blox_row(90, 49), replace(blox_row(1, 1), shipped=None)]
    assert blox.outcome(rows) == (
        "At least 50 times as quick as Blox as shipped: simulation alone in 2 of 3 (least 49.9 times), "
        "with the start of programs in 1 of 3 (least 20.2 times)."
    )
    assert "was not run" in blox.outcome(rows[3:])
    assert blox.outcome([]) == tiresias.outcome([]) == "No case has that name."


def test_the_outcome_beside_tiresias_is_counted_from_the_rows() -> None:
    rows = [
        tiresias.Row("xs", "fifo", their_cpu, our_cpu, 0.25, 9, 9)
        for their_cpu, our_cpu in ((0.2499, 0.5), (0.25, 0.5), (2.5, 2.5))
    ]
    assert tiresias.outcome(rows) == (
        "Not slower than theirs: simulation alone in 2 of 3 (least 0.99 times), "
        "whole programs in 1 of 3 (least 0.49 times)."
    )
    assert str(rows[2]) == "| xs | fifo | 2.50 | 2.50 | 0.250 | 1.00 times | 10.00 times | 9.000 / 9.000 |"
    assert str(rows[2]).count("|") == tiresias.HEADER.split("\n")[0].count("|")


@pytest.mark.parametrize(
    ("options", "flag", "built"),
    [
        ("'--prefix=/x' '--enable-optimizations'", "-fprofile-use", "built with --enable-optimizations"),
        ("'--prefix=/x'", "-fprofile-use", "built without --enable-optimizations"),
        ("'--prefix=/usr'", "", "as its distribution builds it"),
    ],
)
def test_a_python_is_told_by_how_it_was_built(tmp_path: Path, options: str, flag: str, built: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat <<'E'\n{json.dumps(['9.8.7', options, flag])}\nE\n")
    python.chmod(0o755)
    assert described(str(python)) == f"Python 9.8.7 ({built})"


def test_a_python_that_does_not_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert described(sys.executable).startswith(f"Python {sys.version.split()[0]} (")
    (tmp_path / "simulator").mkdir()
    (tmp_path / "simulator/run_sim.py").write_text("")
    (tmp_path / "inputs/tiresias").mkdir(parents=True)
    python = tmp_path / "python"
    for text, said in (
        ("echo not JSON", "no answer"),
        ("echo lib.so: missing >&2; exit 127", "lib.so: missing"),
    ):
        python.write_text(f"#!/bin/sh\n{text}\n")
        python.chmod(0o755)
        words = ["--tiresias", str(tmp_path), "--refs", str(tmp_path), "--python2", str(python)]
        assert tiresias.main(words) == 0
        found = capsys.readouterr().out
        assert found.startswith("not compared with Tiresias") and said in found
