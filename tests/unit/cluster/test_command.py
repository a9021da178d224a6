# SPDX-License-Identifier: GPL-2.0-or-later
"""The command adapter, with scripts in the place of squeue and scontrol."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.cluster.adapter import open_cluster
from controller.cluster.command import CommandTransport
from controller.cluster.commands import run
from controller.cluster.request import Message
from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import JobId
from tests.unit.cluster import recordings
from tests.unit.cluster.factories import job_record

RELEASE = recordings.RELEASES[-1]
Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put scripts into the PATH; each call is written down in the file `calls`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)

    def make(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n{script}\n')
        path.chmod(0o755)

    return make


def calls() -> list[str]:
    return Path("calls").read_text().splitlines()


def words() -> list[str]:
    return Path("words").read_text().splitlines()


def still_sleeps() -> bool:
    """Whether the process that wrote down its number is there."""
    try:
        return "sleep" in Path("/proc", Path("pid").read_text().strip(), "cmdline").read_text()
    except OSError:  # it goes while we look
        return False


def known(*job_ids: int) -> CommandTransport:
    """A transport that has seen these jobs."""
    transport = CommandTransport()
    transport.remember([job_record(id=job_id) for job_id in job_ids])
    return transport


async def test_reading_everything(fake: Fake) -> None:
    folder = recordings.FOLDER / RELEASE
    fake("squeue", f"cat {folder}/squeue.json")
    fake("scontrol", f"cat {folder}/nodes.json")
    load = await CommandTransport().load()
    assert {node.name for node in load.nodes} == {"n1", "n2"}
    assert "gang" in {job.name for job in load.jobs}
    assert len(load.whole_gpu_jobs) == 2
    assert sorted(calls()) == ["scontrol show nodes --json", "squeue --json --states=all"]


async def test_a_missing_command() -> None:
    with pytest.raises(ClusterUnavailable, match="install Slurm's client commands"):
        await run("no-such-command-here", what="trying")


async def test_a_host_that_starts_no_more_processes_has_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_more(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "create_subprocess_exec", no_more)
        with pytest.raises(ClusterUnavailable, match="Resource temporarily unavailable; has this host too"):
            await run("squeue", what="trying")


async def test_what_a_command_says_is_in_the_error(fake: Fake) -> None:
    fake("scontrol", "echo 'Job is pending execution for job 7' >&2; exit 1")
    with pytest.raises(ClusterRefused, match=r"suspending job 7: .*pending execution"):
        await known(7).suspend(JobId(7))


async def test_a_command_that_hangs_is_killed_at_the_deadline(fake: Fake) -> None:
    fake("squeue", "echo $$ > pid; exec sleep 60")
    fake("scontrol", "exec sleep 60")
    port = open_cluster("command", deadline_seconds=0.5)
    with pytest.raises(ClusterUnavailable, match=r"not done within 0\.5 s"):
        await port.observe()
    give_up_at = time.monotonic() + 60
    while still_sleeps():
        assert time.monotonic() < give_up_at, "the command is still there"
    await port.close()


async def test_binding_and_unbinding(fake: Fake) -> None:
    fake("scontrol", "")
    transport = known(7)
    gres, nodes = ("shard:a100_2", "shard:a100_3"), ("n1", "n2")
    await transport.bind(JobId(7), gres, nodes, resize=False)
    await transport.bind(JobId(7), gres, nodes, resize=True)
    await transport.unbind(JobId(7), Message(v=1, gpus_per_node=2, nodes=1), begin_now=False)
    await transport.unbind(JobId(7), Message(v=1, gpus=4, nodelist="n[1-2]"), begin_now=True)
    bound = "scontrol update JobId=7 Gres=shard:a100_2:1,shard:a100_3:1 ReqNodeList=n1,n2 StartTime=now"
    assert calls() == [
        bound,
        bound + " NumNodes=2 TresPerJob=",
        "scontrol update JobId=7 ReqNodeList= Gres=gpu:2 NumNodes=1",
        "scontrol update JobId=7 ReqNodeList=n[1-2] StartTime=now TresPerNode= TresPerJob=gres/gpu:4",
    ]


@pytest.mark.parametrize(
    ("own", "comment"), [("(null)", "no ?way??out"), ("rule_7", "rule_7; no ?way??out"), ("no ?way??out", "")]
)
async def test_a_cancelled_job_is_told_why_behind_its_own_comment(fake: Fake, own: str, comment: str) -> None:
    fake("scontrol", "")
    fake("scancel", "")
    fake("squeue", f"echo '{own}'")
    await known(7).end(JobId(7), 'no "way"\nout')
    asked, *updates, cancelled = calls()
    assert asked.startswith("squeue --noheader") and cancelled == "scancel 7"
    assert updates == ([f"scontrol update JobId=7 Comment={comment}"] if comment else [])


async def test_a_task_that_has_its_arrays_id_is_named_by_its_number(fake: Fake) -> None:
    """To scontrol, job 7 would be all tasks of array 7."""
    fake("scontrol", "")
    transport = CommandTransport()
    transport.remember(
        [
            job_record(id=7, array_job_id=7, array_task_id=3),
            job_record(id=8, array_job_id=7, array_task_id=0),
            job_record(id=9, array_job_id=9, array_tasks="5%1"),
        ]
    )
    await transport.release(JobId(7))
    await transport.requeue_hold(JobId(8))
    await transport.hold(JobId(9))
    await transport.split(JobId(7), [1, 2])
    assert calls() == [
        "scontrol release 7_3",
        "scontrol requeuehold Incomplete 8",
        "scontrol uhold 9_5",
        "scontrol uhold 7_[1,2]",
    ]


async def test_an_unseen_job_is_looked_up_before_it_is_named(fake: Fake) -> None:
    fake("scontrol", f'[ "$1" = show ] && cat {recordings.FOLDER}/{RELEASE}/unknown_job.json; exit 0')
    with pytest.raises(UnknownJob):
        await CommandTransport().suspend(JobId(7))
    assert calls() == ["scontrol show job 7 --json"]


async def test_arguments_reach_the_command_as_they_are(fake: Fake) -> None:
    fake("scontrol", 'printf "%s\\n" "$@" > words')
    await known(7).bind(JobId(7), ["shard:a100_0"], ["n1; rm -rf *"], resize=False)
    assert "ReqNodeList=n1; rm -rf *" in words()
