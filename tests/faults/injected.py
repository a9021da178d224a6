# SPDX-License-Identifier: GPL-2.0-or-later
"""The product's own daemon, with a place for faults between any two steps of the executor.

Runs in the container of the controller instead of `gandiva daemon -D`; nothing of the product is changed. It
wraps the recorder, which the executor tells of each step before it is taken, and the two ports. An order
(`ORDER`, one JSON object, see `Order` in tests/faults/stage.py) says where to stop and what to do there:

* `kill`: this process ends by SIGKILL.
* `meet`: write `MET` and wait for `GO`; meanwhile the test kills something else.
* `lose`: the call to Slurm named as the step is made, and then fails as if its answer had been lost; `times`
  calls in a row.
* `twice`: from now on every line of an agent counts as if it had come twice.

Moments: `before` a step (it is in the journal and not taken), `during` it (the agent on the order's node is
at work on its call), `after` it (the next one is not in the journal yet). An order is carried out once. With
`refuse` in it, the node call of that name is first refused once, so that an undo is needed.

A fault `during` a call is the work of `tests/faults/striker.py`, which waits on the node: this process tells
it that the call begins (`TRIGGER`) and reads what it did (`STRUCK`). `MET` then says whether the call was
still pending, and `CALL_ENDED` when and how it ended: the test fails a fault whose call was not pending.

In place of the move `defragment` there is `OnRequest`: a job migrates when the test says so (`MIGRATE`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from controller.act.recorder import Recorder
from controller.daemon import daemon
from controller.errors import ClusterUnavailable, NodeError
from controller.model import JobId, Placement, Snapshot
from controller.nodes.connection import Connection
from controller.policies import assemble
from controller.policies.placement.draft import Draft

FOLDER = Path("/run/gandiva-faults")
ORDER, MET, GO, CALL_ENDED = FOLDER / "order", FOLDER / "met", FOLDER / "go", FOLDER / "call-ended"
MIGRATE = FOLDER / "migrate"
SHARED = Path("/shared/gandiva-faults")
TRIGGER, STRUCK = SHARED / "trigger", SHARED / "struck"
"""On the file system that all hosts share; the trigger is a named pipe."""
MEETING_SECONDS = 120.0
STRUCK_SECONDS = 90.0

_orders: dict[str, Any] = {"stamp": 0, "order": None}
_operations: dict[int, tuple[str, int, str]] = {}
"""Operation -> its kind, its job, the step that it is in."""
_under_way: dict[int, dict[str, Any]] = {}
"""Job -> the order to carry out during its next call."""
_watching: set[asyncio.Future[None]] = set()


def current() -> dict[str, Any] | None:
    """The order that waits, if any; the file is read when it has changed."""
    try:
        stamp = ORDER.stat().st_mtime_ns
    except FileNotFoundError:
        _orders.update(stamp=0, order=None)
        return None
    if stamp != _orders["stamp"]:
        _orders.update(stamp=stamp, order=json.loads(ORDER.read_text()))
    return _orders["order"]  # type: ignore[no-any-return]


def taken() -> None:
    """It is being carried out: no other process takes it."""
    ORDER.unlink(missing_ok=True)
    _orders.update(stamp=0, order=None)


def matches(order: dict[str, Any], kind: str, job_id: int, step: str, moment: str) -> bool:
    return (
        order["moment"] == moment
        and order["kind"] == kind
        and order["step"] == step
        and (not order["jobs"] or job_id in order["jobs"])
    )


def announce(order: dict[str, Any], job_id: int, **more: Any) -> None:
    """The other side may go ahead."""
    put(MET, {**order, "job": job_id, "time": time.time(), **more})


def put(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(content))
    draft.rename(path)


def act(order: dict[str, Any], job_id: int) -> None:
    """Between two steps: the whole controller stands still meanwhile."""
    taken()
    announce(order, job_id)
    if order["deed"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    deadline = time.monotonic() + MEETING_SECONDS
    while not GO.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    GO.unlink(missing_ok=True)


def pull_trigger(job_id: int) -> str:
    """Tell the striker that the call begins. Returns why it cannot hear it."""
    STRUCK.unlink(missing_ok=True)
    try:
        pipe = os.open(TRIGGER, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        return f"no striker waits: {error}"
    os.write(pipe, f"{job_id}\n".encode())
    os.close(pipe)
    return ""


async def struck() -> dict[str, Any]:
    """What the striker has done, once it has done it or given up."""
    deadline = time.monotonic() + STRUCK_SECONDS
    while time.monotonic() < deadline:
        if STRUCK.exists():
            return dict(json.loads(STRUCK.read_text()))
        await asyncio.sleep(0.001)
    return {"struck": False, "why": f"no word of the striker in {STRUCK_SECONDS:g} s"}


async def act_under_way(order: dict[str, Any], job_id: int, call: Awaitable[Any]) -> Any:
    """During a call: everything else goes on. Says whether the call was pending, and how it ended."""
    CALL_ENDED.unlink(missing_ok=True)
    began, ended = time.monotonic(), math.inf
    deaf = pull_trigger(job_id)

    async def watch() -> None:
        strike: dict[str, Any] = {"struck": False, "why": deaf} if deaf else await struck()
        # By now the call may have failed, because its agent was killed.
        announce(order, job_id, began=began, pending=strike["struck"] and ended > strike["at"], **strike)

    watching = asyncio.ensure_future(watch())
    _watching.add(watching)
    watching.add_done_callback(_watching.discard)
    error = ""
    try:
        return await call
    except BaseException as failure:
        error = str(failure) or type(failure).__name__
        raise
    finally:
        ended = time.monotonic()
        put(CALL_ENDED, {"job": job_id, "ended": ended, "error": error})


def look(operation: int, moment: str) -> None:
    order = current()
    if order is None or operation not in _operations:
        return
    kind, job_id, step = _operations[operation]
    if not matches(order, kind, job_id, step, moment):
        if moment == "before" and matches(order, kind, job_id, step, "during"):
            taken()
            _under_way[job_id] = order
        return
    act(order, job_id)


def wrap_recorder() -> None:
    begins = Recorder.operation_begins
    step_taken = Recorder.operation_step
    ends = Recorder.operation_ends

    def operation_begins(self: Any, action: Any, gpus: Any, now: float) -> int:
        number = begins(self, action, gpus, now)
        _operations[number] = (type(action).__name__.lower(), int(action.job_id), "")
        return number

    def operation_step(self: Any, operation: int, step: Any, now: float) -> None:
        look(operation, "after")
        step_taken(self, operation, step, now)
        kind, job_id, _ = _operations[operation]
        _operations[operation] = (kind, job_id, step.value)
        look(operation, "before")

    def operation_ends(self: Any, operation: int, outcome: Any, error: str, now: float) -> None:
        look(operation, "after")
        _under_way.pop(_operations.pop(operation)[1], None)
        ends(self, operation, outcome, error, now)

    Recorder.operation_begins = operation_begins  # type: ignore[method-assign]
    Recorder.operation_step = operation_step  # type: ignore[method-assign]
    Recorder.operation_ends = operation_ends  # type: ignore[method-assign]


class Port:
    """A port whose calls can be interrupted (those to nodes), and whose answers can get lost (Slurm's)."""

    def __init__(self, port: Any, *, nodes: bool) -> None:
        self._port = port
        self._nodes = nodes

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._port, name)
        if not inspect.iscoroutinefunction(inner):
            return inner

        async def call(*arguments: Any, **options: Any) -> Any:
            job_id = next((int(a) for a in arguments if isinstance(a, int)), 0)
            if not self._nodes:
                result = await inner(*arguments, **options)
                self._lose(name, job_id)
                return result
            self._refuse(name, job_id)
            order = _under_way.get(job_id)
            if order is None or arguments[0] != order["node"]:
                return await inner(*arguments, **options)
            del _under_way[job_id]
            return await act_under_way(order, job_id, inner(*arguments, **options))

        return call

    def _refuse(self, call: str, job_id: int) -> None:
        order = current()
        if order is None or order["refuse"] != call or (order["jobs"] and job_id not in order["jobs"]):
            return
        order["refuse"] = ""
        raise NodeError("node", "gpu_busy", f"{call} of job {job_id}: refused, to see it undone")

    def _lose(self, call: str, job_id: int) -> None:
        order = current()
        if order is None or order["deed"] != "lose" or order["step"] != call:
            return
        if order["jobs"] and job_id not in order["jobs"]:
            return
        order["times"] -= 1
        if order["times"] <= 0:
            taken()
            announce(order, job_id)
        raise ClusterUnavailable(f"{call} of job {job_id}: its answer was lost")


class OnRequest:
    """The move that the test decides about. All that follows from it is the product's."""

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        try:
            way = json.loads(MIGRATE.read_text())
        except FileNotFoundError:
            return
        job_id = JobId(way["job"])
        job, placement = snapshot.jobs.get(job_id), draft.of(job_id)
        if job is None or not job.may_migrate or job.switching or placement != job.placement:
            return
        free = draft.free(snapshot).on(way["target"])
        if bool(placement.gpus) is way.get("suspended", False):
            return
        at = placement.gpus or placement.allocation
        if {gpu.node for gpu in at} == {way["source"]} and len(free) >= job.gpus:
            gpus = frozenset(free[: job.gpus])
            draft.put(job_id, Placement(gpus, gpus))
            draft.say(job_id, f"continues on {way['target']}: the test says so")


def wrap_moves() -> None:
    assemble.MOVES = {**assemble.MOVES, "defragment": lambda _settings: OnRequest()}


def wrapped(opened: Callable[..., Any], *arguments: Any, nodes: bool, **options: Any) -> Port:
    """The port that `opened` makes, with a place for faults."""
    return Port(opened(*arguments, **options), nodes=nodes)


def wrap_ports() -> None:
    for name, nodes in (("open_cluster", False), ("ssh_nodes", True)):
        setattr(daemon, name, partial(wrapped, getattr(daemon, name), nodes=nodes))
    on_line = Connection.on_line

    def twice(self: Any, link: Any, line: bytes) -> None:
        on_line(self, link, line)
        order = current()
        if order is not None and order["deed"] == "twice":
            on_line(self, link, line)

    Connection.on_line = twice  # type: ignore[method-assign]


if __name__ == "__main__":
    wrap_recorder()
    wrap_ports()
    wrap_moves()
    sys.exit(daemon.run(Path(sys.argv[1]), foreground=True))
