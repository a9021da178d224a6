# SPDX-License-Identifier: GPL-2.0-or-later
"""The harness of the live faults hits what it says it hits, or says that it did not. (No cluster needed.)"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.errors import ClusterUnavailable, NodeError
from tests.faults import injected, striker
from tests.faults.enumerated import during
from tests.faults.parts import _SIGNAL, AGENT, LATE_AGENT, Refusal, _as_expected
from tests.faults.scenarios import DAMAGE, damage_script
from tests.faults.stage import FaultFailed, NotReached, Said

MET = {"agent": 7, "began": 10.0, "at": 10.006, "pending": True}


# -- the evidence -------------------------------------------------------------------------------------------


def test_a_call_that_was_cut_off_or_answered_late_was_hit() -> None:
    text = during(MET, {"ended": 10.05, "error": "the agent has ended"}, AGENT)
    assert "agent 7 hit 6 ms after its call began, the call ended 0.04 s later" in text
    during(MET, {"ended": 13.2, "error": ""}, LATE_AGENT)
    during(MET, {"ended": 18.0, "error": "no answer"}, LATE_AGENT)


@pytest.mark.parametrize(
    ("met", "call", "part"),
    [
        ({**MET, "pending": False}, {"ended": 10.05, "error": "the agent has ended"}, AGENT),
        (MET, {"ended": 10.004, "error": "the agent has ended"}, AGENT),
        (MET, {"ended": 10.05, "error": ""}, AGENT),  # answered, so it was killed after its answer
        (MET, {"ended": 10.02, "error": ""}, LATE_AGENT),
    ],
)
def test_a_call_that_was_over_was_not_hit(met: Any, call: Any, part: Any) -> None:
    with pytest.raises(NotReached, match="not during"):
        during(met, call, part)


def test_commands_of_people_must_end_as_expected() -> None:
    _as_expected(["scancel", "1"], Said("", 0), None)
    denied, perhaps = Refusal("permission denied"), Refusal("permission denied", always=False)
    _as_expected(["scontrol"], Said("scontrol: Access/permission denied", 1), denied)
    _as_expected(["scontrol"], Said("scontrol: Access/permission denied", 1), perhaps)
    _as_expected(["scontrol"], Said("", 0), perhaps)
    wrong = ((Said("no", 1), None), (Said("", 0), denied), (Said("no", 1), denied), (Said("no", 1), perhaps))
    for said, refusal in wrong:
        with pytest.raises(FaultFailed):
            _as_expected(["scontrol"], said, refusal)
    for answer in ("Job has already finished for job 3", "Job/step already completing or completed"):
        with pytest.raises(NotReached):
            _as_expected(["scontrol", "suspend"], Said(f"scontrol: {answer}", 1), None)


@pytest.mark.parametrize("how", DAMAGE)
def test_the_damage_to_a_journal_is_looked_at(tmp_path: Path, how: str) -> None:
    def damage(script: str) -> int:
        journal = tmp_path / "journal.sqlite"
        journal.write_bytes(bytes(60_000))
        return subprocess.run(["bash", "-c", script], timeout=60, cwd=tmp_path).returncode

    script = damage_script(how, str(tmp_path / "journal.sqlite"), str(tmp_path / "before"))
    script = script.replace("gandiva:", f"{os.getuid()}:{os.getgid()}")
    assert damage(script) == 0
    nothing_done = script.replace(DAMAGE[how][0].format(path=tmp_path / "journal.sqlite"), "true")
    assert nothing_done != script and damage(nothing_done) == 9
    (tmp_path / "journal.sqlite").unlink(missing_ok=True)
    assert subprocess.run(["bash", "-c", script], timeout=60).returncode != 0, "there was nothing to damage"


# -- the striker --------------------------------------------------------------------------------------------


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def strike(tmp_path: Path, number: str, delay_seconds: float) -> tuple[subprocess.Popen[bytes], Path]:
    """A striker that waits for the trigger; the lock of job 5."""
    lock = tmp_path / "5" / "agent.lock"
    lock.parent.mkdir()
    os.mkfifo(tmp_path / "trigger")
    words = [sys.executable, striker.__file__, number, str(delay_seconds), str(tmp_path), str(tmp_path)]
    process = subprocess.Popen(words)
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with (tmp_path / "trigger").open("w") as pipe:
        pipe.write("5\n")
    return process, lock


def outcome(process: subprocess.Popen[bytes], tmp_path: Path) -> dict[str, Any]:
    assert process.wait(60) == 0
    return dict(json.loads((tmp_path / "struck").read_text()))


def test_an_agent_at_work_is_killed(tmp_path: Path, agent: subprocess.Popen[bytes]) -> None:
    process, lock = strike(tmp_path, "KILL", 0.01)
    lock.write_text(f"{agent.pid} 0000.0\n")
    found = outcome(process, tmp_path)
    assert found["struck"] and found["agent"] == agent.pid and found["at"] < time.monotonic()
    assert agent.wait(60) == -9


def test_an_agent_that_has_done_its_work_is_missed(tmp_path: Path, agent: subprocess.Popen[bytes]) -> None:
    process, lock = strike(tmp_path, "STOP", 3.0)
    lock.write_text(f"{agent.pid} 0000.0\n")
    threading.Timer(0.1, lambda: os.truncate(lock, 0)).start()
    found = outcome(process, tmp_path)
    assert not found["struck"] and "had done its work" in found["why"]
    assert striker.wait_state(agent.pid, "S"), "it goes on"


def test_a_signal_that_nothing_got_is_not_passed_over() -> None:
    words = {"number": "KILL", "states": "X|Z", "names": "sleep"}
    nothing = ["bash", "-c", _SIGNAL % {**words, "pattern": "[n]o-such-process-here"}]
    assert subprocess.run(nothing, capture_output=True, timeout=60).returncode == 3
    with subprocess.Popen(["sleep", "61.7"]) as process:
        script = _SIGNAL % {**words, "pattern": "[s]leep 61.7"}
        assert subprocess.run(["bash", "-c", script], timeout=60).returncode == 0
        assert process.wait(60) == -9


# -- the daemon's ports -------------------------------------------------------------------------------------


class FakePort:
    """Slurm's port and the nodes' both have calls of these names."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds

    async def resume(self, *_: Any, **__: Any) -> str:
        await asyncio.sleep(self.seconds)
        return "resumed"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("ORDER", "MET", "GO", "CALL_ENDED", "TRIGGER", "STRUCK"):
        monkeypatch.setattr(injected, name, tmp_path / name.lower())
    yield tmp_path
    injected._under_way.clear()
    injected._orders.update(stamp=0, order=None)


def order(folder: Path, **fields: Any) -> dict[str, Any]:
    blank = {"kind": "", "step": "", "moment": "before", "deed": "meet", "jobs": [5], "times": 1}
    found = {**blank, "refuse": "", "node": "n1", **fields}
    (folder / "order").write_text(json.dumps(found))
    return found


def test_a_lost_answer_is_one_of_slurms_and_a_refusal_one_of_a_node(folder: Path) -> None:
    slurm = injected.Port(FakePort(), nodes=False)
    nodes = injected.Port(FakePort(), nodes=True)
    order(folder, step="resume", deed="lose")
    assert asyncio.run(nodes.resume("n1", 5)) == "resumed"
    with pytest.raises(ClusterUnavailable, match="lost"):
        asyncio.run(slurm.resume(5))
    order(folder, refuse="resume")
    assert asyncio.run(slurm.resume(5)) == "resumed"
    with pytest.raises(NodeError, match="refused"):
        asyncio.run(nodes.resume("n1", 5))


@pytest.mark.parametrize(("hit_after", "takes", "pending"), [(0.0, 2.0, True), (2.0, 0.05, False)])
def test_it_is_written_down_whether_the_call_was_pending(
    folder: Path, hit_after: float, takes: float, pending: bool
) -> None:
    os.mkfifo(folder / "trigger")

    def hit() -> None:
        with (folder / "trigger").open() as pipe:
            assert pipe.readline() == "5\n"
        time.sleep(hit_after)
        draft = folder / "draft"
        draft.write_text(json.dumps({"struck": True, "why": "", "agent": 7, "at": time.monotonic()}))
        draft.rename(folder / "struck")

    async def call() -> None:
        nodes = injected.Port(FakePort(takes), nodes=True)
        injected._under_way[5] = order(folder, moment="during")
        assert await nodes.resume("n2", 5) == "resumed"  # another node's is not meant
        assert not (folder / "call_ended").exists()
        assert await nodes.resume("n1", 5) == "resumed"
        await asyncio.gather(*injected._watching)

    hitting = threading.Thread(target=hit)
    hitting.start()
    asyncio.run(asyncio.wait_for(call(), 60))
    hitting.join()
    met = json.loads((folder / "met").read_text())
    ended = json.loads((folder / "call_ended").read_text())
    assert met["pending"] is pending and met["struck"] and met["job"] == ended["job"] == 5
    assert (ended["ended"] > met["at"]) is pending
