# SPDX-License-Identifier: GPL-2.0-or-later
"""What comes over a wire: requests to agents, answers of agents, Slurm's replies, requests in
`admin_comment`, HTTP."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel

from controller.act.diff import diff
from controller.agent.main import Server, read_lines
from controller.api.answers import Answers
from controller.cluster.port import ClusterView
from controller.cluster.records import slurm_job, slurm_node
from controller.cluster.replies import any_jobs, gandiva_jobs
from controller.cluster.replies import nodes as node_records
from controller.cluster.request import InvalidRequest
from controller.cluster.simulated import make_nodes
from controller.errors import ClusterUnavailable, NodeError
from controller.journal import JournalReader
from controller.journal.memory import MemoryJournal
from controller.model import JobId, Memory, SuspendMethod
from controller.nodes import protocol
from controller.nodes.connection import Patience, TransportError
from controller.nodes.port import NodeSample
from controller.nodes.remote import RemoteNodes
from controller.observe.identities import Identities
from controller.observe.memory import JobMemories
from controller.observe.observer import Observer
from controller.observe.requests import RequestReader, parse_request
from controller.policies.assemble import make_policy
from controller.settings.loading import parse_settings
from controller.settings.schema import RequestsSettings
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.unit.api import scene
from tests.unit.cluster import recordings

NOW = 1_800_000_000.0

# -- requests to an agent --------------------------------------------------------------------------------

REQUESTS: tuple[dict[str, Any], ...] = (
    {"id": 1, "verb": "hello", "args": {}, "deadline_seconds": 5.0},
    {"id": 2, "verb": "observe", "args": {}, "deadline_seconds": 5.0},
    {
        "id": 3,
        "verb": "prepare",
        "args": {"job_id": 7, "uid": 1000, "gpus": [0, 1], "binding": [0, 1, 2, 3], "beside": [8, 9]},
        "deadline_seconds": 5.0,
    },
    {"id": 4, "verb": "pause", "args": {"job_id": 7, "floor_step": 3, "sole": True}, "deadline_seconds": 5.0},
    {
        "id": 5,
        "verb": "offload",
        "args": {"job_id": 7, "deadline_seconds": 30.0, "residual_limit_bytes": 0, "release_context": True},
        "deadline_seconds": 30.0,
    },
    {
        "id": 6,
        "verb": "resume",
        "args": {"job_id": 7, "gpus": [0], "binding": [0, 1], "beside": [], "deadline_seconds": 9.0},
        "deadline_seconds": 9.0,
    },
    {"id": 7, "verb": "forget", "args": {"job_id": 7}, "deadline_seconds": 30.0},
    {"id": 7, "verb": "living", "args": {"job_id": 7}, "deadline_seconds": 5.0},
    {"id": 7, "verb": "mapped", "args": {"job_id": 7}, "deadline_seconds": 5.0},
    {"id": 7, "verb": "warm", "args": {"uid": 1000, "files": ["/lib/libc.so.6"]}, "deadline_seconds": 5.0},
    {
        "id": 8,
        "verb": "save",
        "args": {"job_id": 7, "deadline_seconds": 600.0},
        "deadline_seconds": 600.0,
    },
)


class _Verbs:
    """Stands in for the node: remembers what it was asked to do."""

    def __init__(self) -> None:
        self.done: list[tuple[str, BaseModel]] = []

    def admit(self, whose: object, verb: str) -> None:
        """Everybody may do everything."""

    def carry_out(self, verb: str, args: BaseModel, deadline: object) -> None:
        self.done.append((verb, args))


def _agent(dice: random.Random, _folder: Path) -> bool:
    """Each line gets one answer; only what validates is carried out; the last, good one is served."""
    lines = []
    for _ in range(dice.randint(1, 4)):
        line = mutations.dumped(dice, dice.choice(REQUESTS)).encode("utf-8", "surrogatepass")
        line = mutations.raw(dice, line) if dice.random() < 0.2 else line
        lines.append(line.replace(b"\n", b" "))
    if dice.random() < 0.05:
        lines.append(b"x" * (protocol.MAX_LINE_BYTES + dice.randint(1, 200_000)))
    lines.append(json.dumps({**REQUESTS[6], "id": 2**40}).encode())
    verbs = _Verbs()
    incoming, ours = os.pipe()
    theirs, outgoing = os.pipe()
    answers = bytearray()
    all_said = threading.Event()
    count = sum(bool(line.strip()) for line in lines)

    def read() -> None:
        while part := os.read(theirs, 1 << 16):
            answers.extend(part)
            if answers.count(b"\n") >= count:
                all_said.set()

    def write() -> None:
        data = b"\n".join(lines) + b"\n" + dice.choice((b"", b'{"id":'))
        while data:
            data = data[os.write(ours, data[: dice.choice((3, 1000, 1 << 16)) + len(data) // 8]) :]
        all_said.wait(60)  # (what is not begun when the channel goes is not done, on purpose)
        os.close(ours)

    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    Server(verbs, outgoing).serve(read_lines(incoming))  # type: ignore[arg-type]
    os.close(outgoing)
    for thread in threads:
        thread.join(60)
    os.close(incoming)
    os.close(theirs)
    said = [protocol.Answer.model_validate_json(line) for line in bytes(answers).splitlines()]
    assert len(said) == count, f"{count} requests, {len(said)} answers: {lines} {said}"[:3000]
    assert any(answer.id == 2**40 and answer.ok for answer in said), "the good request was not served"
    assert all(type(args) is protocol.VERBS[verb] for verb, args in verbs.done)
    assert len(verbs.done) == sum(answer.ok for answer in said)
    return len(verbs.done) > 1


# -- answers of an agent ---------------------------------------------------------------------------------

HELLO = {
    "protocol": "gandiva-agent",
    "version": protocol.VERSION,
    "node": "n1",
    "boot_id": "b",
    "driver_version": "580.1",
    "checkpoint_supported": True,
    "device_map_supported": True,
    "gpus": [{"index": 0, "uuid": "GPU-0", "model": "A100", "memory_bytes": 2**36}],
}
_GPU = {
    "index": 0,
    "uuid": "GPU-0",
    "model": "A100",
    "memory_bytes": 2**36,
    "healthy": True,
    "memory_used_bytes": 2**30,
    "utilization_fraction": 0.5,
    "processes": [{"pid": 4, "job_id": 7, "uid": 1000, "memory_bytes": 2**30}],
}
_RANK = {
    "rank": 0,
    "state": "running",
    "steps_done": 5,
    "samples_done": 5.0,
    "step_seconds": 0.1,
    "world_size": 1,
    "state_bytes": 10,
    "largest_tensor_bytes": 5,
    "error": "",
}
OBSERVED = {
    "time": NOW,
    "gpus": [{**_GPU, "index": index, "uuid": f"GPU-{index}"} for index in range(4)],
    "jobs": [
        {"job_id": job_id, "phase": phase, "gpus": [0, 1], "ranks": [_RANK], "movable": True}
        for job_id, phase in ((7, "running"), (8, "yielded"))
    ],
}
RESULTS: Mapping[str, Mapping[str, Any]] = {
    "observe": OBSERVED,
    "pause": {"target_step": 6, "all_blocked": True, "ranks": [_RANK]},
    "offload": {"left_bytes": 0, "seconds": 0.1, "stopped_step": 6, "empty": False},
}


class _Channel:
    """An agent that says hello properly, and then whatever it likes."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._out: list[bytes] = []
        self._ready = threading.Condition()
        self._closed = False

    def write(self, data: bytes) -> None:
        request = json.loads(data)
        with self._ready:
            self._out.append(self._answer(request) + b"\n")
            self._ready.notify()

    def _answer(self, request: Mapping[str, Any]) -> bytes:
        dice, verb = self._dice, request["verb"]
        if verb == "hello":
            return json.dumps({"id": request["id"], "ok": True, "result": HELLO}).encode()
        answer = {"id": request["id"], "ok": True, "result": RESULTS.get(verb, {})}
        match dice.randrange(8):
            case 0:
                return b"x" * (3 * protocol.MAX_LINE_BYTES)
            case 1:
                return (b"[" * 100_000) + b'{"id":1' + b"}" * 3
            case 2:
                good = json.dumps(answer).encode()
                return b"\n".join([good] * 3)
            case 3:
                stranger = json.dumps({**answer, "id": request["id"] + dice.choice((-1, 1, 10**9))})
                return stranger.encode() + b"\n" + json.dumps(answer).encode()
            case 4:
                kind = mutations.pick(dice, ("gpu_busy", "deadline"))
                error = {"kind": kind, "message": mutations.word(dice) * dice.choice((1, 3000))}
                failed = {"id": request["id"], "ok": False, "error": error}
                return json.dumps(failed).encode().replace(b"\n", b" ")
            case _:
                changed = {**answer, "result": mutations.document(dice, answer["result"])}
                try:
                    return json.dumps(changed).encode("utf-8", "surrogatepass")
                except (ValueError, RecursionError):
                    return b"{}"

    def read(self) -> bytes:
        with self._ready:
            self._ready.wait_for(lambda: self._out or self._closed)
            return self._out.pop(0) if self._out else b""

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def farewell(self) -> str:
        return ""


class _Transport:
    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def connect(self, node: str, address: str) -> _Channel:
        if self._dice.random() < 0.02:
            raise TransportError("connection refused")
        return _Channel(self._dice)


def _controller(dice: random.Random, _folder: Path) -> bool:
    """Whatever an agent answers is a sample or an error, within the deadline; and planning goes on."""

    async def ask() -> bool:
        nodes = RemoteNodes(_Transport(dice), Patience(1.0, 0.2, 0.01, 0.01))
        await nodes.set_nodes({"n1": "here"})
        good = True
        try:
            for _ in range(2):
                (found,) = (await nodes.observe(0.3)).values()
                assert isinstance(found, NodeSample | NodeError), found
                good = good and isinstance(found, NodeSample)
                _plan({"n1": found}, _slurm_jobs("26.05"))
            calls: tuple[Callable[[], Any], ...] = (
                lambda: nodes.pause("n1", JobId(7), floor_step=0, wait_seconds=0.1, sole=True),
                lambda: nodes.offload(
                    "n1", JobId(7), residual_limit_bytes=0, release_context=False, deadline_seconds=0.3
                ),
            )
            try:
                await dice.choice(calls)()
            except NodeError as error:
                assert len(str(error)) < 20_000, "a message without end"
                good = False
        finally:
            await nodes.close()
        return good

    return asyncio.run(asyncio.wait_for(ask(), 20))


# -- Slurm's replies -------------------------------------------------------------------------------------


@functools.cache
def _recorded(release: str, name: str) -> Any:
    return json.loads(recordings.text(release, name))


@functools.cache
def _slurm_jobs(release: str) -> ClusterView:
    records, _ = gandiva_jobs(recordings.text(release, "squeue"), "recorded")
    nodes = tuple(make_nodes(("n1", "n2"), 4))
    return ClusterView(NOW, tuple(slurm_job(record, now=NOW) for record in records), nodes)


def _plan(samples: Mapping[str, NodeSample | NodeError], view: ClusterView) -> None:
    """What the loop does with it: no exception, whatever was observed."""
    identities = Identities(MemoryJournal(), lambda _job, _why: None)
    requests = RequestReader(lambda _job, _why: None, RequestsSettings())
    observer = Observer(JobMemories(), requests, identities, lambda _qos: 0)
    observer.take(view, samples, {}, NOW)
    snapshot = observer.snapshot()
    for name in ("gandiva", "tiresias-las"):
        settings = parse_settings(f'[policy]\nname = "{name}"\nmoves = ["pack"]\n')
        plan = make_policy(settings.policy).plan(snapshot, Memory())
        diff(
            snapshot,
            plan.targets,
            plan.reasons,
            snapshot.jobs,
            suspend_in_slurm=True,
            default_method=SuspendMethod.COOPERATIVE,
        )


def _replies(dice: random.Random, _folder: Path) -> bool:
    release = dice.choice(recordings.RELEASES)
    name = dice.choice(("squeue", "nodes", "job", "squeue"))
    sample = _recorded(release, name)
    key = "nodes" if name == "nodes" else "jobs"
    items = dice.sample(sample[key], min(3, len(sample[key])))
    reply = mutations.dumped(dice, {**sample, key: items}, dice.choice((1, 2, 8)))
    reply = reply.encode("utf-8", "replace").decode()
    if dice.random() < 0.02:
        reply = '{"' + key + '": ' + dice.choice(("[", '{"a":')) * 100_000
    view = _slurm_jobs(release)
    try:
        if name == "nodes":
            records = node_records(reply, "nodes")
            view = ClusterView(NOW, view.jobs, tuple(slurm_node(record, {}) for record in records))
        else:
            any_jobs(reply, "job")
            jobs, whole = gandiva_jobs(reply, "jobs")
            view = ClusterView(NOW, tuple(slurm_job(record, now=NOW) for record in jobs), view.nodes)
            for record in node_records(recordings.text(release, "nodes"), "nodes"):
                slurm_node(record, whole)
    except ClusterUnavailable as error:
        assert len(str(error)) < 20_000, "a message without end"
        return False
    _plan({}, view)
    return True


# -- admin_comment ---------------------------------------------------------------------------------------

COMMENT = (
    'gandiva:{"v":1,"gpus_per_node":2,"nodes":1,"weight":1,"min_gpus":null,"max_gpus":8,"pack":true,'
    '"migrate":null,"suspend":"requeue","gpu_types":["a100"],"model":"resnet","search":"lr","nodelist":"n[1-2]","site":{}}'
)


def _comment(dice: random.Random, _folder: Path) -> bool:
    if dice.random() < 0.5:
        text = "gandiva:" + mutations.dumped(dice, json.loads(COMMENT.removeprefix("gandiva:")))
    else:
        text = mutations.text(dice, COMMENT)
    try:
        request = parse_request(text)
    except InvalidRequest as error:
        assert str(error) and len(str(error)) < 4000
        return False
    assert 1 <= request.size.wanted <= 65536 * 4096 and 0.1 <= request.weight <= 100
    assert len(request.nodelist) <= 65536
    return True


# -- HTTP ------------------------------------------------------------------------------------------------

PATHS = (
    *("/v1/status", "/v1/gpus", "/healthz", "/metrics", "/v1/explain/1", "/"),
    *("/v1/jobs?jobs=1,2&user=alice&state=RUNNING&start=0&end=2000000000&limit=10", "/v1/jobs"),
    "/v1/timeline?start=1700000000&end=1700001000&limit=5",
)


def _http(dice: random.Random, folder: Path) -> bool:
    journal = folder / "journal.sqlite"
    if not journal.exists():
        scene.write_journal(journal)
    answers = Answers(scene.live_state(), JournalReader(journal))
    target = mutations.text(dice, dice.choice(PATHS), 3)
    before = journal.read_bytes()
    try:
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return False  # the server says 400
    answer = answers.get(parts.path, query)
    assert answer.status in (200, 400, 404, 503), answer
    if answer.content_type.startswith("application/json"):
        json.loads(answer.body)
    assert journal.read_bytes() == before, "a reader wrote"
    return answer.status == 200


TARGETS = (
    Target("agent", "lines to an agent", _agent),
    Target("controller", "answers of an agent, 3 MiB lines and strangers' among them", _controller, 5),
    Target("replies", "replies of squeue and scontrol, 24.11 and 26.05, planned with", _replies),
    Target("comment", "admin_comment", _comment),
    Target("http", "paths and queries of the API", _http),
)
