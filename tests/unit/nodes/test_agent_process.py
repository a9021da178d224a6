# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent as sshd starts it: junk on its input, lines without end, a channel that breaks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from controller.agent import main as agent
from controller.nodes import protocol
from controller.nodes.protocol import MAX_LINE_BYTES
from tests.unit.halting import halt

from .conftest import NODE, PATIENCE_SECONDS, ROOT, Rig


class Raw:
    """An agent with nothing between it and the test."""

    def __init__(self, rig: Rig, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "controller.agent.main"),
                *("--run-dir", str(rig.run_dir), "--gpustat-dir", "", *arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**rig.environ, **environ},
            cwd=ROOT,
        )

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else b""
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, number: int, verb: str, **args: object) -> dict[str, Any]:
        request = {"id": number, "verb": verb, "args": args, "deadline_seconds": PATIENCE_SECONDS}
        self.send(json.dumps(request).encode() + b"\n")
        return self.answer()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def raw(rig: Rig) -> Iterator[Raw]:
    made = Raw(rig, NODE)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"junk", "Invalid JSON"),
        (b"\xff\xfe\x00", "Invalid JSON"),
        (b"[1,2]", "request"),
        (b'{"id":1}', "verb: Field required"),
        (b'{"id":-1,"verb":"hello","deadline_seconds":1}', "id"),
        (b'{"id":1,"verb":"hello","deadline_seconds":0}', "deadline_seconds"),
        (b'{"id":1,"verb":"hello","deadline_seconds":1e999}', "deadline_seconds"),
        (b'{"id":1,"verb":"rm -rf","deadline_seconds":1}', "'rm -rf' is none of hello, observe"),
        (b'{"id":1,"verb":"hello","args":{"x":1},"deadline_seconds":1}', "x: Extra inputs"),
        (b'{"id":1,"verb":"forget","args":{"job_id":"../7"},"deadline_seconds":1}', "job_id"),
        (b'{"id":1,"verb":"forget","args":{"job_id":0},"deadline_seconds":1}', "job_id"),
        (
            b'{"id":1,"verb":"prepare","args":{"job_id":1,"uid":5,"gpus":[0,0]},"deadline_seconds":1}',
            "the same GPU or job twice",
        ),
        (
            b'{"id":1,"verb":"prepare","args":{"job_id":1,"uid":5,"gpus":[0],"beside":[2,2]},"deadline_seconds":1}',
            "the same GPU or job twice",
        ),
        (
            b'{"id":1,"verb":"prepare","args":{"job_id":1,"uid":5,"gpus":[0],"beside":[1]},"deadline_seconds":1}',
            "job 1 beside itself",
        ),
        (
            b'{"id":1,"verb":"resume","args":{"job_id":1,"gpus":[0],"deadline_seconds":1,"beside":[-2]},"deadline_seconds":1}',
            "beside",
        ),
        (
            b'{"id":1,"verb":"resume","args":{"job_id":1,"gpus":[0],"deadline_seconds":1,"beside":[%s]},"deadline_seconds":1}'
            % b",".join(b"%d" % job_id for job_id in range(2, 70)),
            "at most 64 items",
        ),
        (
            b'{"id":1,"verb":"prepare","args":{"job_id":1,"uid":5,"gpus":[0],"binding":[1]},"deadline_seconds":1}',
            "are not all in the binding",
        ),
        (
            b'{"id":1,"verb":"prepare","args":{"job_id":1,"uid":-5,"gpus":[0]},"deadline_seconds":1}',
            "uid",
        ),
        (b'{"id":1,"verb":"prepare","args":{"job_id":1,"uid":5,"gpus":[]},"deadline_seconds":1}', "gpus"),
        (b"[" * 100_000, "Invalid JSON"),
    ],
)
def test_a_bad_request_is_refused_and_the_agent_lives_on(raw: Raw, line: bytes, complaint: str) -> None:
    raw.send(line + b"\n")
    answer = raw.answer()
    assert not answer["ok"]
    assert answer["error"]["kind"] == "bad_request"
    assert complaint in answer["error"]["message"]
    assert raw.ask(5, "hello")["result"]["node"] == NODE


def test_a_line_without_end_is_thrown_away(raw: Raw) -> None:
    raw.send(b"x" * (3 * MAX_LINE_BYTES) + b"\n")
    answer = raw.answer()
    assert (answer["id"], answer["error"]["kind"]) == (None, "bad_request")
    assert f"more than {MAX_LINE_BYTES} bytes" in answer["error"]["message"]
    assert raw.ask(6, "hello")["ok"]


def test_seeded_junk_between_good_requests(raw: Raw) -> None:
    chance = random.Random(7)
    good = json.dumps({"id": 1, "verb": "observe", "args": {}, "deadline_seconds": 30}).encode()
    for number in range(60):
        damaged = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        raw.send(bytes(damaged).replace(b"\n", b" ") + b"\n")
        answer = raw.answer()
        assert answer["ok"] or answer["error"]["kind"] == "bad_request", answer
        if number % 20 == 0:
            assert raw.ask(100 + number, "hello")["id"] == 100 + number


def test_unknown_jobs_are_named(raw: Raw) -> None:
    verbs: dict[str, dict[str, object]] = {
        "pause": {},
        "offload": {"deadline_seconds": 1, "residual_limit_bytes": 0},
        "checkpoint": {"lock_deadline_seconds": 1, "residual_limit_bytes": 0},
        "stop": {"wait_seconds": 1},
        "resume": {"gpus": [0], "deadline_seconds": 1},
    }
    for number, (verb, args) in enumerate(verbs.items()):
        answer = raw.ask(number, verb, job_id=4711, **args)
        assert (answer["error"]["kind"], answer["error"]["job_id"]) == ("unknown_job", 4711), verb


def test_the_end_of_input_is_the_end(raw: Raw) -> None:
    assert raw.ask(1, "hello")["ok"]
    assert raw.end() == 0


def test_what_is_begun_is_finished_when_the_channel_breaks(rig: Rig, raw: Raw) -> None:
    assert raw.ask(1, "prepare", job_id=2, uid=os.getuid(), gpus=[0])["ok"]
    job = rig.start(2, "--minibatch-ms", "30", "--memory-mb", "8", "--steps", "1000", gpus="0")
    rig.wait_for_steps(job, 3)
    halt(job.pid)
    request = {"job_id": 2, "wait_seconds": 1.0, "sole": True}
    line = json.dumps({"id": 2, "verb": "pause", "args": request, "deadline_seconds": 30}).encode()
    raw.send(line + b"\n")
    # A request of another lane, answered while the pause waits.
    assert raw.ask(3, "observe")["id"] == 3
    assert raw.end() == 0
    # The pause ran out and was taken back: the job is not left waiting for an agent that has gone.
    state = json.loads((rig.run_dir / "2" / "agent.json").read_text())
    assert state["phase"] == "running"
    os.kill(job.pid, signal.SIGCONT)
    job.wait()


def test_sigterm_is_like_the_end_of_input(raw: Raw) -> None:
    assert raw.ask(1, "hello")["ok"]
    raw.process.send_signal(signal.SIGTERM)
    assert raw.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("original", "allowed"),
    [
        ("gandiva-agent n1", True),
        ("gandiva-agent", False),
        ("", False),
        ("bash", False),
        ("gandiva-agent n1; id", False),
        ("gandiva-agent --run-dir=/tmp n1", False),
        ("gandiva-agent --trials n1", False),
        ("gandiva-agent ../n1", False),
        ("gandiva-agent n1\n", False),
        ("gandiva-agent " + "n" * 65, False),
    ],
)
def test_the_forced_command_takes_a_node_name_and_nothing_else(original: str, allowed: bool) -> None:
    arguments = ["--run-dir", "/run/gandiva/%n", "ignored"]
    if allowed:
        found = agent.parse_command(arguments, {"SSH_ORIGINAL_COMMAND": original})
        assert (found.node, str(found.run_dir), found.trials) == ("n1", "/run/gandiva/n1", False)
    else:
        with pytest.raises(protocol.AgentError, match="this key allows only"):
            agent.parse_command(arguments, {"SSH_ORIGINAL_COMMAND": original})


def test_by_hand_it_wants_a_node_name() -> None:
    with pytest.raises(protocol.AgentError, match="name the Slurm node"):
        agent.parse_command([], {})
    assert agent.parse_command(["n3"], {}).node == "n3"
    assert agent.parse_command(["--gpustat-dir", "", "n3"], {}).gpustat_dir is None
    assert [agent.parse_command([*more, "n3"], {}).trials for more in ([], ["--trials"])] == [False, True]


def test_a_wrong_start_is_answered_in_the_protocol(rig: Rig) -> None:
    started = Raw(rig, NODE, SSH_ORIGINAL_COMMAND="id")
    answer = protocol.Answer.model_validate(started.answer())
    assert answer.error is not None
    assert answer.error.kind is protocol.ErrorKind.BAD_REQUEST
    assert started.process.wait(PATIENCE_SECONDS) == 2
    started.close()


def test_lines_are_split_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_LINE_BYTES", 4)
    for last in (b"unfinished", b"unf", b""):
        read_end, write_end = os.pipe()
        os.write(write_end, b"one\n\nfour\n5long\nmuch longer\ntwo\n" + last)
        os.close(write_end)
        assert list(agent.read_lines(read_end)) == [b"one", b"", b"four", None, None, b"two"]
        os.close(read_end)


def test_help_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        agent.parse_command(["--help"], {})
    shown = capsys.readouterr().out
    assert any(line.startswith("    ") and "ssh-ed25519" in line for line in shown.splitlines())
    for words in ("the node's name in Slurm", "root of the control blocks; %n is the node name"):
        assert words in shown
