# SPDX-License-Identifier: GPL-2.0-or-later
"""Agents that are child processes of ours, and trials in their hands."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.nodes.child import ChildTransport
from controller.nodes.connection import Patience, TransportError
from controller.nodes.protocol import NodePhase
from controller.nodes.remote import RemoteNodes

from .conftest import NODE, PATIENCE_SECONDS, ROOT, Job, Rig, eventually, job_sample, sample
from .test_trial_identity import WRAPPER
from .test_yield_and_resume import QUICK, offload, prepare, resume


def start_trial(rig: Rig, number: int, folder: Path, *arguments: str, gpus: str = "0") -> Job:
    """Start a training as a trial, below its wrapper and without a word of it in its own environment."""
    out = rig.folder / f"job{number}-%r.json"
    train = [*(sys.executable, str(ROOT / "examples" / "train_mock.py"), *arguments)]
    places = [*("--meeting", str(rig.folder), "--state-out", str(out), "--log", f"{out}.log")]
    mine = {"GANDIVA_CONTROL_DIR": str(folder / str(number)), "GANDIVA_TRIAL": str(number)}
    environ = {**rig.environ, **mine, "GANDIVA_ALLOCATION": "", "SLURMD_NODENAME": NODE}
    environ["CUDA_VISIBLE_DEVICES"] = gpus
    process = subprocess.Popen([sys.executable, "-c", WRAPPER, *train, *places], env=environ)
    job = Job(rig, number, [process], out)
    rig.jobs.append(job)
    return job


def transport(rig: Rig, log: Path) -> ChildTransport:
    arguments = ["--trials", "--run-dir", str(rig.run_dir), "--gpustat-dir", ""]
    return ChildTransport(arguments, rig.environ, log)


def test_its_log_is_appended_to_a_file_with_times(rig: Rig, tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    log.write_text("before\n")
    channel = transport(rig, log).connect(NODE, "")
    channel.write(b'{"id":1,"verb":"forget","args":{"job_id":3},"deadline_seconds":9}\n')
    assert b'"ok":true' in channel.read()
    channel.write(b'{"id":2,"verb":"stop","args":{"job_id":3,"wait_seconds":1},"deadline_seconds":9}\n')
    assert b"unknown_job" in channel.read()
    channel.close()
    while channel.read():
        pass
    assert channel.farewell() == "exit status 0"
    first, *others = log.read_text().splitlines()
    assert first == "before"
    assert [line for line in others if line[:2] == "20" and f" {NODE}: INFO stop: unknown_job" in line]


def test_a_log_that_cannot_be_written_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=r"agent\.log"):
        ChildTransport(log=tmp_path / "none" / "agent.log").connect(NODE, "")


def test_ctrl_c_is_not_meant_for_it(rig: Rig, tmp_path: Path) -> None:
    channel = transport(rig, tmp_path / "agent.log").connect(NODE, "")
    pid = channel.pid  # type: ignore[attr-defined]
    assert (os.getpgid(pid), os.getsid(pid)) == (pid, pid) != (os.getpgid(0), os.getsid(0))
    channel.close()
    assert channel.farewell()


def test_a_trial_leaves_its_gpu_and_comes_back(rig: Rig, tmp_path: Path) -> None:
    """As a job does, without Slurm: the one of another study on the GPU beside it is nobody's."""

    async def scenario(nodes: RemoteNodes) -> None:
        await nodes.set_nodes({NODE: "here"})
        await prepare(nodes, 3, [0], [0])
        trial = start_trial(rig, 3, rig.run_dir, *QUICK)
        stranger = start_trial(rig, 4, tmp_path / "other", *QUICK, gpus="1")
        rig.wait_for_steps(trial, 3)
        rig.wait_for_steps(stranger, 3)
        living = await nodes.living(NODE, trial.job_id, deadline_seconds=60.0)
        assert living.processes == 2 and not living.halted
        seen = await job_sample(nodes, trial)
        assert (seen.phase, seen.gpus, len(seen.ranks), seen.error) == (NodePhase.RUNNING, (0,), 1, "")
        owners = {gpu.index: [each.job_id for each in gpu.processes] for gpu in (await sample(nodes)).gpus}
        assert (owners[0], owners[1]) == ([3], [None])
        await offload(nodes, 3, release_context=True)
        assert (await job_sample(nodes, trial)).phase is NodePhase.YIELDED
        assert rig.held()[0] == 0 and len(stranger.steps()) > 0
        assert (await nodes.living(NODE, trial.job_id, deadline_seconds=60.0)).halted
        await resume(nodes, 3, [0], [0])
        before = len(trial.steps())
        eventually("it goes on", lambda: len(trial.steps()) > before)
        await nodes.forget(NODE, trial.job_id)
        await nodes.close()

    asyncio.run(scenario(RemoteNodes(transport(rig, tmp_path / "agent.log"), Patience(PATIENCE_SECONDS))))
    said = (tmp_path / "agent.log").read_text()
    assert "ERROR" not in said and "WARNING" not in said
