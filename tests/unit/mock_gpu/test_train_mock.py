# SPDX-License-Identifier: GPL-2.0-or-later
"""The sample training job: its digest tells whether any mini-batch was lost, repeated or done wrong."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.halting import halt
from tests.unit.mock_gpu.bench import CONTEXT, EXAMPLES, MIB, Node, wait_until

STEPS = 300
"""Six seconds, for what must not end meanwhile; `Job.digest()` shortens what is left of them."""
OPTIONS = ("--steps", str(STEPS), "--minibatch-ms", "20", "--memory-mb", "64", "--state-kb", "16")

NUMBERS = itertools.count()


class Job:
    """A running train_mock.py."""

    def __init__(self, node: Node, folder: Path, *options: str, **environ: str) -> None:
        self._node = node
        self.log = folder / f"log-{next(NUMBERS)}"
        self.result = self.log.with_suffix(".json")
        files = ("--log", str(self.log), "--state-out", str(self.result))
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(EXAMPLES / "train_mock.py"), *OPTIONS, *files, *options],
            env=node.environ(**environ),
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )

    def steps(self) -> list[int]:
        return [json.loads(line)["step"] for line in self.log.read_text().splitlines()]

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: self.log.exists() and self.log.read_text().count("\n") >= step)

    def digest(self) -> str:
        fault = self._node.run("inject", "speed", "--value", "10000").stdout.strip()
        assert self.process.wait(timeout=60) == 0
        self._node.run("inject", "--clear", fault)
        result = json.loads(self.result.read_text())
        assert result["steps"] == STEPS
        return str(result["digest"])


@pytest.fixture(scope="session")
def undisturbed(mock_gpu: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a run that was left alone."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Node(mock_gpu, folder) as node:
        return Job(node.init(), folder).digest()


def test_the_seed_decides_the_digest(node: Node, tmp_path: Path, undisturbed: str) -> None:
    again, other = Job(node, tmp_path, "--no-step"), Job(node, tmp_path, "--seed", "2")
    assert again.digest() == undisturbed != other.digest()


def test_checkpointed_by_the_driver_and_moved(node: Node, tmp_path: Path, undisturbed: str) -> None:
    job, agent = Job(node, tmp_path, "--no-step", SLURM_JOB_ID="5"), node.bare_worker()
    zero, one = (gpu["uuid"] for gpu in node.show()["gpus"])
    job.wait_for_step(10)
    agent.ask("lock", job.process.pid, 5000)
    agent.ask("checkpoint", job.process.pid)
    assert node.used() == 0
    job.process.send_signal(signal.SIGSTOP)  # as Slurm would now
    job.process.send_signal(signal.SIGCONT)
    agent.ask("restore", job.process.pid, {zero: one, one: zero})
    agent.ask("unlock", job.process.pid)
    assert job.digest() == undisturbed
    assert {event["gpu"] for event in node.history("--job", "5")} == {0, 1}


def test_continues_from_its_checkpoint(node: Node, tmp_path: Path, undisturbed: str) -> None:
    folder = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-every", "7")
    first = Job(node, tmp_path, *folder)
    first.wait_for_step(10)
    first.process.terminate()  # what Slurm does at a requeue
    assert first.process.wait(timeout=60) == 128 + signal.SIGTERM
    second = Job(node, tmp_path, *folder, SLURM_RESTART_COUNT="1")
    second.wait_for_step(9)
    second.process.kill()  # and what it does to a suspended job
    second.process.wait()
    third = Job(node, tmp_path, *folder)
    assert third.digest() == undisturbed
    stopped_at, crashed_at = first.steps()[-1], second.steps()[-1]
    assert second.steps()[0] == stopped_at + 1
    assert crashed_at - 7 <= third.steps()[0] - 1 <= crashed_at
    assert third.steps()[0] > 7


def test_ranks_in_lock_step(node: Node, tmp_path: Path) -> None:
    def run(folder: Path, disturb: bool) -> list[str]:
        folder.mkdir()
        jobs = [
            Job(
                node,
                folder,
                "--rank",
                str(rank),
                "--ranks",
                "2",
                "--gpus",
                "1",
                CUDA_VISIBLE_DEVICES=str(rank),
            )
            for rank in range(2)
        ]
        if disturb:
            jobs[1].wait_for_step(10)
            halt(jobs[1].process.pid)
            time.sleep(0.1)  # twenty mini-batches, had it not to wait for the other
            assert len(jobs[0].steps()) <= len(jobs[1].steps()) + 1 < STEPS
            jobs[1].process.send_signal(signal.SIGCONT)
        return [job.digest() for job in jobs]

    calm = run(tmp_path / "calm", disturb=False)
    assert run(tmp_path / "disturbed", disturb=True) == calm
    assert calm[0] != calm[1]


def test_several_gpus_in_one_process(node: Node, tmp_path: Path) -> None:
    job = Job(node, tmp_path, "--gpus", "2")
    job.wait_for_step(5)
    assert [node.used(gpu) for gpu in (0, 1)] == [CONTEXT + 64 * MIB] * 2
    assert job.digest() == Job(node, tmp_path, "--gpus", "2").digest()


def test_leaves_the_gpu_when_gandiva_asks(node: Node, tmp_path: Path, undisturbed: str) -> None:
    layout = pytest.importorskip("gandiva.layout", reason="needs the job-side package")
    control = tmp_path / "control"
    (control / "ranks").mkdir(parents=True)
    (control / "visible").write_text("0\n")
    (control / "command").write_bytes(bytes(layout.RECORD_BYTES))

    def command(verb: int, sequence: int) -> None:
        with (control / "command").open("r+b") as file:
            file.write(layout.COMMAND.pack(layout.COMMAND_MAGIC, layout.VERSION, verb, sequence, 0, 0, 0))

    def rank() -> tuple[int, int]:
        record = layout.parse_rank((control / "ranks" / "0").read_bytes())
        return (record.state, record.left_bytes) if record is not None else (-1, -1)

    command(layout.Verb.RUN, 2)
    job = Job(node, tmp_path, GANDIVA_CONTROL_DIR=str(control), CUDA_VISIBLE_DEVICES="0", SLURM_JOB_ID="5")
    job.wait_for_step(10)
    command(layout.Verb.OFFLOAD, 4)
    wait_until(lambda: rank() == (layout.State.OFFLOADED, 0))
    assert node.used() == 0
    assert len(job.steps()) < STEPS
    os.kill(job.process.pid, signal.SIGSTOP)
    os.kill(job.process.pid, signal.SIGCONT)
    (control / "visible").write_text("1\n")  # it comes back on the other GPU
    command(layout.Verb.RUN, 6)
    wait_until(lambda: job.process.pid in node.on_gpu(1))
    assert job.digest() == undisturbed
