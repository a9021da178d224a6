# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva.ranks`: the ranks of a training end and start anew when its job leaves its GPUs and comes back, on
another number of GPUs too. Through a real agent, real processes and mock GPUs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from controller.nodes.protocol import NodePhase
from controller.nodes.remote import RemoteNodes

from .conftest import NODE, PATIENCE_SECONDS, ROOT, Job, Rig, eventually, job_sample, sample
from .test_yield_and_resume import offload, prepare, resume

SAMPLES = 12000
"""Half a minute on four GPUs, for what must not end meanwhile."""


def launch(rig: Rig, job_id: int, *arguments: str, samples: int = SAMPLES, managed: bool = True) -> Job:
    """The launcher with train_ranks.py below it, bound to four GPUs and on the first."""
    folder = rig.folder / f"ranks{job_id}"
    folder.mkdir()
    environ = {
        **rig.environ,
        "SLURM_JOB_ID": str(job_id),
        "SLURMD_NODENAME": NODE,
        "CUDA_VISIBLE_DEVICES": "0",
        "SLURM_JOB_GPUS": "0,1,2,3",
        "PYTHONPATH": str(ROOT),
    }
    if managed:
        environ["GANDIVA_CONTROL_DIR"] = str(rig.run_dir / str(job_id))
    script = str(ROOT / "examples" / "train_ranks.py")
    # How long they take makes no difference to the result.
    sizes = ("--samples", str(samples), "--sample-ms", "10" if managed else "1", "--folder", str(folder))
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gandiva.ranks", script, *sizes, *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    rig.groups.append(process.pid)
    job = Job(rig, job_id, [process], folder)
    rig.jobs.append(job)
    return job


def folder_of(rig: Rig, job: Job) -> Path:
    return rig.folder / f"ranks{job.job_id}"


def story(rig: Rig, job: Job) -> list[str]:
    return (folder_of(rig, job) / "out").read_text().splitlines()


def state(rig: Rig, job: Job) -> Any:
    """After the end."""
    with rig.in_a_hurry(job):
        assert job.processes[0].wait(timeout=PATIENCE_SECONDS) == 0, story(rig, job)
    return json.loads((folder_of(rig, job) / "state.json").read_text())


def at_work(rig: Rig, job: Job, gpus: list[int]) -> None:
    """Until a rank is on each of these, and none elsewhere."""

    def there() -> bool:
        return [gpu for gpu, held in rig.held().items() if held] == gpus

    eventually(f"ranks on {gpus}: {story(rig, job)}", there)


@pytest.mark.parametrize("kept", [("--overall", "12"), ("--per-rank", "6")])
def test_the_ranks_are_as_many_as_the_gpus(rig: Rig, kept: tuple[str, str]) -> None:
    """1, 2, 4, 1: every sample counts once, whichever batch is kept."""
    undisturbed = state(rig, launch(rig, 1, *kept, managed=False))
    assert undisturbed["samples"] == SAMPLES

    async def scenario(nodes: RemoteNodes) -> None:
        binding = [0, 1, 2, 3]
        await prepare(nodes, 2, [0], binding)
        job = launch(rig, 2, *kept)
        at_work(rig, job, [0])
        for gpus in ([0, 1], [0, 1, 2, 3], [2]):
            # A rank without a session in between has its mini-batches counted by its launcher.
            seen = await job_sample(nodes, job)
            assert seen.resizable and len(seen.ranks) == 1
            await offload(nodes, 2)
            assert not any(rig.held().values())
            assert (await job_sample(nodes, job)).phase is NodePhase.YIELDED
            await resume(nodes, 2, gpus, binding)
            at_work(rig, job, gpus)
            assert not (await sample(nodes)).jobs[job.job_id].trespasses
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            (rank,) = (await job_sample(nodes, job)).ranks
            if rank.steps_done > 10 or time.monotonic() > until:
                break
            await asyncio.sleep(0.02)
        assert rank.steps_done > 10 and 10 < rank.samples_done <= SAMPLES
        assert state(rig, job) == undisturbed
        started = [line.split()[2] for line in story(rig, job) if line.startswith("gandiva.ranks: started")]
        assert started == ["1", "2", "4", "1"]

    rig.run(scenario)


def test_a_rank_that_fails_ends_the_others_and_the_job(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)\n")
    done = subprocess.run(
        [sys.executable, "-m", "gandiva.ranks", str(script)],
        env={**rig.environ, "CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.returncode == 7


def test_ranks_that_do_not_end_are_killed(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "if os.environ['RANK'] == '0':\n    time.sleep(1)\n    sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gandiva.ranks", "--grace", "0.5", str(script)],
        env={**rig.environ, "CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.returncode == 9
