# SPDX-License-Identifier: GPL-2.0-or-later
"""The node's side: one controller at a time, whatever is in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from checkpointing.driver_process import DriverProcesses
from controller.agent import lease as module
from controller.agent.gpus import GpuReader, NvmlSource
from controller.agent.lease import Leases
from controller.agent.node import AgentSettings
from controller.agent.verbs import NodeAgent
from controller.nodes.protocol import VERBS, AgentError, ErrorKind, HelloArgs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time since boot, in a box."""
    now = [1000.0]
    monkeypatch.setattr(module, "_now", lambda: now[0])
    return now


def refused(leases: Leases, controller: str | None) -> str:
    with pytest.raises(AgentError) as caught:
        if controller is None:
            leases.allow_nameless()
        else:
            leases.renew(controller, 10)
    assert caught.value.kind is ErrorKind.NOT_LEADER
    return caught.value.message


def test_one_at_a_time_until_the_lease_is_over(tmp_path: Path, clock: list[float]) -> None:
    first, second = Leases(tmp_path), Leases(tmp_path)
    assert first.holder() is None
    first.allow_nameless()
    first.renew("a:/j", 10)
    assert refused(second, "b:/j") == "controller a:/j leads here (its lease ends in 10 s)"
    assert "a:/j" in refused(second, None)
    clock[0] += 6
    second.renew("a:/j", 10)  # another session of the same controller
    clock[0] += 9.9
    refused(first, "b:/j")
    clock[0] += 0.2
    assert first.holder() is None
    first.allow_nameless()
    second.renew("b:/j", 10)
    assert "b:/j" in refused(first, "a:/j")
    holder = first.holder()
    assert holder is not None and (holder.controller, round(holder.seconds)) == ("b:/j", 10)


def test_the_file_is_private(tmp_path: Path) -> None:
    Leases(tmp_path).renew("a", 10)
    assert (tmp_path / "leader.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"junk",
        b"\xff" * 5000,
        b"[]",
        b'{"controller":"b"}',
        b'{"controller":"","until":1005}',
        b'{"controller":"b","until":"soon"}',
        b'{"controller":"b","until":NaN}',
        b'{"controller":"b","until":1e999}',
        b'{"controller":"b","until":-1}',
        b'{"controller":"b","until":999.9}',
        b'{"controller":"b","until":1300.1}',
        b'{"controller":"' + b"b" * 300 + b'","until":1005}',
    ],
)
def test_what_makes_no_sense_is_no_lease(tmp_path: Path, clock: list[float], content: bytes) -> None:
    (tmp_path / "leader.json").write_bytes(content)
    leases = Leases(tmp_path)
    assert clock and leases.holder() is None
    leases.renew("a", 10)
    assert json.loads((tmp_path / "leader.json").read_bytes()) == {"controller": "a", "until": 1010.0}


def test_an_agent_that_is_killed_while_it_writes_leaves_a_lease(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the end of a longer one behind it the file would make no sense, and anybody could lead."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    Leases(tmp_path).renew("long" * 40, 10)
    clock[0] += 20
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("controller.agent.lease.os.ftruncate", killed)
        Leases(tmp_path).renew("short", 10)
    holder = Leases(tmp_path).holder()
    assert holder is not None and holder.controller == "short"
    assert "short" in refused(Leases(tmp_path), "other")


def test_a_link_or_a_pipe_in_its_place_is_not_followed_and_does_not_hang(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "leader.json").symlink_to(victim)
    Leases(tmp_path).renew("a", 10)
    assert victim.read_text() == "precious"
    (tmp_path / "leader.json").unlink()
    os.mkfifo(tmp_path / "leader.json")
    Leases(tmp_path).renew("a", 10)
    assert Leases(tmp_path).holder() is None


def test_a_lease_that_somebody_keeps_locked_is_an_error_and_no_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    leases = Leases(tmp_path)
    with leases._opened(), pytest.raises(AgentError, match="keeps the lease locked"):
        leases.renew("a", 10)
    leases.renew("a", 10)


def test_what_a_session_may_do(tmp_path: Path, clock: list[float]) -> None:
    agent = NodeAgent(AgentSettings("n1", tmp_path, None), GpuReader(NvmlSource()), DriverProcesses())
    nameless, one, other = HelloArgs(), HelloArgs(controller="a:/j"), HelloArgs(controller="b:/j")
    for verb in VERBS:
        agent.admit(nameless, verb)  # as tools and old controllers do, while nobody leads
    agent.admit(one, "hello")
    agent.admit(nameless, "forget")  # saying hello takes nothing
    agent.admit(one, "observe")
    for verb in VERBS:
        agent.admit(one, verb)
    agent.admit(nameless, "hello")
    agent.admit(nameless, "observe")
    agent.admit(other, "hello")
    for whose, verbs in ((nameless, set(VERBS) - {"hello", "observe"}), (other, set(VERBS) - {"hello"})):
        for verb in verbs:
            with pytest.raises(AgentError) as caught:
                agent.admit(whose, verb)
            assert caught.value.kind is ErrorKind.NOT_LEADER, verb
    clock[0] += 11
    agent.admit(other, "observe")
    with pytest.raises(AgentError):
        agent.admit(one, "observe")
