# SPDX-License-Identifier: GPL-2.0-or-later
"""Blox as it is shipped, two programs that speak gRPC, on the cases of the references. That it does here what
it does by itself is checked: each job must end when its recorded result says."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fidelity import policies
from benchmarks.peers.measure import (
    FIDELITY,
    LIMIT_SECONDS,
    REFERENCES,
    Case,
    Ours,
    Run,
    StopWatch,
    environment,
    runs,
)

CLONE = Path(os.environ.get("GANDIVA_BLOX", "no clone"))
PYTHON = os.environ.get("GANDIVA_BLOX_PYTHON", "python3")
TRACES = {"inputs/plain/xs.csv": "converted/xs_job.csv", "inputs/plain/t60.csv": "shipped/60_job.csv"}
"""The same jobs as plain CSV (for Blox) and in Tiresias' format (for ours)."""
STUBS = "blox/deployment/grpc_stubs/simulator_pb2_grpc.py"
# pyplot lists all fonts at its first import on a machine: no run is to be charged with it.
IMPORTS = """
import grpc, matplotlib.pyplot, pandas, google.protobuf as p
assert hasattr(pandas.DataFrame, 'append') and p.__version__ < '5'
"""
SCRIPT = str(Path(__file__).with_name("blox_shipped.py"))


def missing() -> str:
    """What is not there; empty: nothing."""
    if not (CLONE / "blox" / "blox_manager.py").is_file():
        return "GANDIVA_BLOX names no clone of msr-fiddle/blox"
    if not (CLONE / STUBS).is_file():
        return f"no gRPC stubs in {CLONE} (`mkdir grpc_stubs; make grpc` in its blox/deployment)"
    if not (REFERENCES / "results_public.json").is_file():
        return "GANDIVA_REFS names no folder of references"
    if not runs(PYTHON, IMPORTS):
        return "GANDIVA_BLOX_PYTHON names no Python with pandas < 2, matplotlib, grpcio and protobuf < 5"
    return ""


def cases() -> Iterator[Case]:
    """Those of the references."""
    with gzip.open(REFERENCES / "per_job/per_job_jct_public.json.gz") as file:
        per_job = json.load(file)
    for case in json.loads((REFERENCES / "results_public.json").read_text())["blox"]:
        seconds = case["round_s"]
        ours = Ours(
            REFERENCES / "inputs/tiresias" / TRACES[case["jobs"]],
            f"v100:{case['nodes'] * case['gpus_per_node']}",
            case["gpus_per_node"],
            policies.BLOX[case["policy"]],
            FIDELITY / "blox.toml",
            (f"simulation.round_seconds={seconds}", f"policy.tiresias.interval_seconds={seconds}"),
        )
        words = [str(CLONE), str(REFERENCES / case["jobs"]), "--policy", case["policy"]]
        words += ["--nodes", str(case["nodes"]), "--gpus-per-node", str(case["gpus_per_node"])]
        words += ["--round", str(seconds)]
        recorded = per_job[case["per_job_key"]]
        yield Case(case["case"], case["policy"], partial(theirs, words, recorded), ours)


def theirs(words: list[str], recorded: Mapping[str, float]) -> Run:
    """Both programs. Raises RuntimeError with what they said when one fails, or when jobs end at other times
    than recorded."""
    words = [*words, "--ports", *free_ports(2)]
    its_environment = environment(
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",  # as its README says
        no_grpc_proxy="localhost,127.0.0.1",
    )
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        options: dict[str, Any] = {"cwd": folder, "env": its_environment, "stderr": errors, "text": True}
        options |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with StopWatch() as spent, ExitStack() as running:
            simulator = subprocess.Popen([PYTHON, SCRIPT, "simulator", *words], **options)
            running.callback(simulator.kill)
            assert simulator.stdout is not None
            simulator.stdout.readline()  # it is ready, or has failed
            scheduler = subprocess.Popen([PYTHON, SCRIPT, "scheduler", *words], **options)
            running.callback(scheduler.kill)
            said = scheduler.communicate(timeout=LIMIT_SECONDS)[0]
            handed = simulator.communicate(timeout=60)[0]
        if scheduler.returncode or simulator.returncode:
            errors.seek(0)
            raise RuntimeError(f"Blox failed: {errors.read()[-2000:]}")
    found = json.loads(said)
    jcts = found["jcts"]
    wrong = sorted(i for i in recorded.keys() | jcts.keys() if recorded.get(i) != jcts.get(i))
    if wrong:
        raise RuntimeError(f"Blox ends {len(wrong)} jobs at other times than recorded: {wrong[:9]}")
    cpu = found["cpu_seconds"] + json.loads(handed)["cpu_seconds"]
    return Run(spent.cpu, spent.wall, cpu, sum(jcts.values()) / len(jcts))


def free_ports(count: int) -> list[str]:
    """Different ones that no program listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
