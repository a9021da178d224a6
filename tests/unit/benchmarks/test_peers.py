# SPDX-License-Identifier: GPL-2.0-or-later
"""Running other people's simulators: what is ours of it. Small programs stand in for Blox."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import blox, measure, tiresias
from benchmarks.peers.blox_shipped import Trace
from benchmarks.peers.measure import FIDELITY, Ours, Row, Run, outcome

JOBS = "job_id,arrival,duration,gpus\na,0,250,1\nb,10,100,1\nc,350,100,1\n"
JCTS = {"a": 350.0, "b": 200.0, "c": 200.0}
"""With rounds of 100 s."""
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


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of a case on a clone that is there."""
    for name, text in PROGRAMS.items():
        path = tmp_path / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "clone/schedulers.py").write_text(
        "class Fifo:\n    def __init__(self, args):\n        pass\n"
    )
    (tmp_path / "jobs.csv").write_text(JOBS)
    monkeypatch.setattr(blox, "PYTHON", sys.executable)
    shape = ["--policy", "Fifo", "--nodes", "2", "--gpus-per-node", "3", "--round", "100"]
    return [str(tmp_path / "clone"), str(tmp_path / "jobs.csv"), *shape]


def test_both_programs_of_blox_run_on_our_jobs(words: list[str]) -> None:
    """With the nodes, the policy and the ports that were asked for; theirs are other ones."""
    found = blox.theirs(words, JCTS)
    assert found.average_jct == 250
    assert 0 < found.simulation_cpu < found.cpu
    assert found.wall > 0


def test_blox_must_do_what_was_recorded(words: list[str]) -> None:
    with pytest.raises(RuntimeError, match=r"ends 1 jobs at other times than recorded: \['b'\]"):
        blox.theirs(words, {**JCTS, "b": 300.0})


@pytest.mark.parametrize("name", ["simulator_simple.py", "las_scheduler.py"])
def test_a_program_that_fails_is_told(words: list[str], name: str) -> None:
    (Path(words[0]) / name).write_text("raise ValueError('no such luck')\n")
    with pytest.raises(RuntimeError, match="no such luck"):
        blox.theirs(words, JCTS)


def test_after_the_last_job_one_that_never_arrives(tmp_path: Path) -> None:
    """Theirs would begin with the first again, and a call that raises is made anew for ever."""
    (tmp_path / "jobs.csv").write_text(JOBS)
    trace = Trace(tmp_path / "jobs.csv", lambda *words: SimpleNamespace(words=words))
    handed = [trace.generate_next_job(0).words for _ in range(5)]
    assert handed[1] == (1, 10.0, 1, 100.0, 1, None, None, None, None, 0)
    assert [words[1] for words in handed] == [0, 10, 350, math.inf, math.inf]


def test_ours_is_measured_as_a_whole_and_alone(tmp_path: Path) -> None:
    trace = tmp_path / "two_job.csv"
    trace.write_text(
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        "1,1,0,1,resnet50,100,0\n2,1,10,1,resnet50,100,10\n"
    )
    ours = Ours(trace, "v100:1", 1, "fifo", FIDELITY / "tiresias.toml", ("simulation.round_seconds=50",))
    found = ours.run()
    # 0 to 100, and from 100 to 200 for the second, submitted at 10.
    assert found.average_jct == (100 + 190) / 2
    assert 0 < found.simulation_cpu < found.cpu
    assert found.wall > 0


def test_every_case_of_the_references_has_a_policy_of_ours() -> None:
    cases = list(tiresias.cases())
    assert len(cases) == 25
    assert [case.name for case in cases if case.policy == "dlas-gpu-8"] == [tiresias.WITH_PROMOTION]
    assert all("yarn" in case.ours.changes[-1] for case in cases if case.policy == "dlas-gpu-gittins")


def test_a_peer_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiresias, "CLONE", tmp_path)
    monkeypatch.setattr(blox, "CLONE", tmp_path)
    assert peers.main([]) == 0
    shown = capsys.readouterr().out
    assert "not compared with tiresias: GANDIVA_TIRESIAS" in shown
    assert "not compared with blox: GANDIVA_BLOX" in shown


def test_one_table_for_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The quickest run of each counts, and ratios are rounded down."""
    cpus = iter([30.0, 20.0])
    ours = iter([Run(0.5, 1.5, 0.1, 8), Run(0.6, 1.6, 0.2, 8)])
    case = SimpleNamespace(
        name="xs_48",
        policy="Las",
        theirs=lambda: Run(next(cpus), 60, 15, 7),
        ours=SimpleNamespace(run=lambda: next(ours)),
    )
    peer = SimpleNamespace(missing=lambda: "", cases=lambda: [case, SimpleNamespace(name="x", policy="y")])
    monkeypatch.setattr(peers, "PEERS", {"blox": peer})
    assert peers.main(["--only", "xs.*Las"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "\n".join(lines[:2]) == measure.HEADER
    row = (
        "| blox | xs_48 | Las | 20.00 (60.0) | 15.000 | 0.50 (1.5) | 0.100 | 40.00 | 150.00 | 7.000 / 8.000 |"
    )
    assert lines[2] == row
    assert {line.count("|") for line in lines[:3]} == {row.count("|")}
    slow = Row("blox", "t60", "Las", Run(0.1999, 1, 0.1999, 7), Run(0.1, 1, 0.1, 7))
    fast = Row("blox", "t60", "Las", Run(9, 1, 1, 7), Run(0.1, 1, 0.1, 7))
    assert outcome([slow, fast]) == (
        "blox: 1.99 to 10.00 times our CPU time without starts, 1.99 to 90.00 times with them."
    )
