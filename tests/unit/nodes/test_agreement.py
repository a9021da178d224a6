# SPDX-License-Identifier: GPL-2.0-or-later
"""All ranks stop at one step, whatever their speed and however they depend on each other.

Real sessions in processes of their own; the agent's verbs run in this process, on a node without GPUs.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpointing.driver_process import DriverProcesses
from controller.agent import leaving, saving
from controller.agent.control_block import ControlBlock
from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, GpuReading, Reading
from controller.agent.node import AgentSettings, Node
from controller.agent.rank_files import Ranks
from controller.agent.verbs import NodeAgent
from controller.nodes import protocol
from controller.nodes.protocol import RankState

from .conftest import PATIENCE_SECONDS, ROOT

RANK_SCRIPT = """
import os, random, sys, time
import gandiva
rank, world, seed, barrier = (int(text) for text in sys.argv[1:5])
class State:
    def offload(self): time.sleep(chance.random() * 0.01)
    def restore(self): pass
chance = random.Random(seed * 1000 + rank)
session = gandiva.attach(rank=rank, world_size=world)
session.register(State())
while True:
    time.sleep(chance.random() * (0.02 if chance.random() < 0.1 else 0.003))
    if barrier >= 0:  # an all-reduce: nobody goes on before everybody is here
        os.write(barrier, b"x")
        if not os.read(barrier, 1):
            break
    session.step()
"""


class IdleGpu:
    """A node whose NVML works and lists one GPU with nobody on it."""

    def read(self) -> Reading:
        return Reading("580.0", (GpuReading(0, "GPU-0", "a100", 1 << 30, 0, 0.0, healthy=True),))


class Barrier(threading.Thread):
    """Lets all ranks go on when all of them have come, again and again."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        super().__init__(daemon=True)
        self._sockets = sockets
        self.start()

    def run(self) -> None:
        while True:
            try:
                if b"" in [part.recv(1) for part in self._sockets]:
                    return
                for part in self._sockets:
                    part.sendall(b"x")
            except OSError:
                return


class Gang:
    """A job's ranks, spread over nodes."""

    def __init__(self, folder: Path, ranks_on: Sequence[Sequence[int]], seed: int, in_step: bool) -> None:
        self.agents: list[NodeAgent] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        world = sum(len(ranks) for ranks in ranks_on)
        mine: list[socket.socket] = []
        for number, ranks in enumerate(ranks_on):
            run_dir = folder / f"run{number}"
            settings = AgentSettings(f"n{number}", run_dir, None)
            agent = NodeAgent(settings, GpuReader(IdleGpu()), DriverProcesses())
            self.agents.append(agent)
            # No GPU to ask about: the block is made as the prolog does it.
            agent.blocks.block(7).create(os.getuid())
            agent.blocks.block(7).write_turn(True, (), ())
            for rank in ranks:
                ours, theirs = socket.socketpair()
                barrier = theirs.fileno() if in_step else -1
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", RANK_SCRIPT, *map(str, (rank, world, seed, barrier))],
                        env={
                            **os.environ,
                            "PYTHONPATH": str(ROOT),
                            "GANDIVA_CONTROL_DIR": str(run_dir / "7"),
                            "SLURM_JOB_ID": "7",
                            "SLURMD_NODENAME": f"n{number}",
                        },
                        pass_fds=[theirs.fileno()],
                    )
                )
                theirs.close()
                mine.append(ours)
        self._sockets = mine
        if in_step:
            Barrier(mine)

    def do(self, node: int, verb: str, **args: object) -> object:
        parsed = protocol.VERBS[verb].model_validate({"job_id": 7, **args})
        return self.agents[node].carry_out(verb, parsed, Deadline(PATIENCE_SECONDS))

    def pause(self, node: int, **args: object) -> protocol.Pause:
        found = self.do(node, "pause", **args)
        assert isinstance(found, protocol.Pause)
        return found

    def wait_until_all_have_attached(self) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            seen = [
                agent.carry_out("observe", protocol.VERBS["observe"](), Deadline(10.0))
                for agent in self.agents
            ]
            ranks = [
                rank
                for found in seen
                if isinstance(found, protocol.ObserveResult)
                for job in found.jobs
                for rank in job.ranks
            ]
            if len(ranks) == len(self.processes) and all(rank.steps_done > 0 for rank in ranks):
                return
            time.sleep(0.01)
        raise AssertionError("not all ranks have attached")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for part in self._sockets:
            part.close()


@pytest.fixture
def gangs() -> Iterator[list[Gang]]:
    made: list[Gang] = []
    yield made
    for gang in made:
        gang.close()


@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_all_ranks_of_a_node_stop_at_one_step(
    tmp_path: Path, gangs: list[Gang], in_step: bool, seed: int
) -> None:
    gang = Gang(tmp_path, [range(4)], seed, in_step)
    gangs.append(gang)
    gang.wait_until_all_have_attached()
    chance = random.Random(seed)
    last = 0
    for _ in range(6):
        time.sleep(chance.random() * 0.03)
        paused = gang.pause(0, wait_seconds=PATIENCE_SECONDS, sole=True)
        assert paused.all_blocked
        assert [rank.steps_done for rank in paused.ranks] == [paused.target_step] * 4
        assert paused.target_step > last
        if chance.random() < 0.5:
            done = gang.do(0, "offload", deadline_seconds=PATIENCE_SECONDS, residual_limit_bytes=0)
            assert isinstance(done, protocol.Offload)
            assert done.stopped_step == paused.target_step
        last = paused.target_step
        gang.do(0, "resume", gpus=[0], deadline_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("in_step", [True, False])
def test_ranks_on_two_nodes_agree_through_their_controller(
    tmp_path: Path, gangs: list[Gang], in_step: bool
) -> None:
    gang = Gang(tmp_path, [range(2), range(2, 5)], 3, in_step)
    gangs.append(gang)
    gang.wait_until_all_have_attached()
    for _ in range(4):
        floor = 0
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            answers = [gang.pause(node, floor_step=floor, wait_seconds=0.2, sole=False) for node in (0, 1)]
            floor = max(answer.target_step for answer in answers)
            if all(answer.all_blocked and answer.target_step == floor for answer in answers):
                break
            assert time.monotonic() < until, "no agreement"
        for node in (0, 1):
            gang.do(node, "offload", deadline_seconds=PATIENCE_SECONDS, residual_limit_bytes=0)
        for node in (0, 1):
            gang.do(node, "resume", gpus=[0], deadline_seconds=PATIENCE_SECONDS)


def test_a_rank_that_has_not_attached_is_missed(tmp_path: Path, gangs: list[Gang]) -> None:
    gang = Gang(tmp_path, [[0, 1]], 4, in_step=False)
    gangs.append(gang)
    gang.wait_until_all_have_attached()
    gang.processes[1].kill()
    gang.processes[1].wait()
    with pytest.raises(protocol.AgentError) as refused:
        gang.pause(0, wait_seconds=5.0, sole=True)
    assert refused.value.kind is protocol.ErrorKind.NOT_COOPERATIVE
    assert "only 1 of 2 ranks" in refused.value.message
    # And the one that lives is not left waiting.
    command = gang.agents[0].blocks.block(7).read_command()
    assert command is not None
    assert command.verb == 0


def test_ranks_that_stopped_at_different_steps_do_not_leave_their_gpus(
    tmp_path: Path, gangs: list[Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would go on out of step. A script that steps from two threads can do that."""
    gang = Gang(tmp_path, [range(2)], 5, in_step=False)
    gangs.append(gang)
    gang.wait_until_all_have_attached()
    gang.pause(0, wait_seconds=PATIENCE_SECONDS, sole=True)
    wait_for = leaving.wait_for

    def one_is_a_step_further(node: Node, block: ControlBlock, *arguments: Any) -> Ranks:
        ranks = wait_for(node, block, *arguments)
        if arguments[2] != "offload":
            return ranks
        first, second = ranks.live
        return replace(ranks, live=(first, replace(second, steps_done=second.steps_done + 1)))

    monkeypatch.setattr(leaving, "wait_for", one_is_a_step_further)
    with pytest.raises(protocol.AgentError, match="ranks stopped at steps") as refused:
        gang.do(0, "offload", deadline_seconds=PATIENCE_SECONDS, residual_limit_bytes=0)
    assert refused.value.kind is protocol.ErrorKind.NOT_COOPERATIVE
    seen = gang.agents[0].carry_out("observe", protocol.VERBS["observe"](), Deadline(10.0))
    assert isinstance(seen, protocol.ObserveResult)
    assert [job.phase for job in seen.jobs] == [protocol.NodePhase.RUNNING], "it is put back to work"


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (((5, 2), (5, 2)), ""),
        (((5, 2), (5, 3)), "saved different things"),
        (((5, 2), (6, 2)), "saved different things"),
        (((5, 0), (5, 0)), "saved different things"),
    ],
)
def test_a_checkpoint_is_of_one_generation_and_one_step_of_all_ranks(
    tmp_path: Path,
    gangs: list[Gang],
    monkeypatch: pytest.MonkeyPatch,
    saved: Sequence[tuple[int, int]],
    words: str,
) -> None:
    gang = Gang(tmp_path, [range(2)], 6, in_step=False)
    gangs.append(gang)
    gang.wait_until_all_have_attached()
    node = gang.agents[0]
    block = node.blocks.block(7)
    state = node.state(block)

    def all_have_saved(*_arguments: Any) -> Ranks:
        ranks = node.ranks(block, state, PATIENCE_SECONDS)
        live = [
            replace(rank, saved_step=step, saved_generation=generation)
            for rank, (step, generation) in zip(ranks.live, saved, strict=True)
        ]
        return replace(ranks, live=tuple(live))

    monkeypatch.setattr(saving, "wait_for", all_have_saved)
    arguments = (node, block, state, 5, RankState.BLOCKED, Deadline(PATIENCE_SECONDS))
    if not words:
        assert saving._saved(*arguments) == saved[0]
        return
    with pytest.raises(protocol.AgentError, match=words):
        saving._saved(*arguments)
