# SPDX-License-Identifier: GPL-2.0-or-later
"""Every simulated fault: what happens, at which step, and what must hold after it.

`rows(quick)` runs them and yields what the table of docs/reliability.md is made of. A scenario that fails is
a row with its reason as outcome; nothing is raised.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.model import JobId
from controller.simulation.virtual_time import run_virtual
from tests.unit.faults.faulty import Trouble
from tests.unit.faults.stage import START_SECONDS, Stage, packing_policies, policies
from tests.unit.loop.world import SLICE_SECONDS

EPOCH = 1_800_000_000.0
CHECKS = "no job lost or left; no GPU shared; journal = truth; settled"
BOUND_SECONDS = 900.0
"""The usual jobs need about 150 s undisturbed."""

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    fault: str
    where: str
    times: int
    """How often it was injected."""
    checks: str
    outcome: str
    passed: bool


def run(scenario: Callable[[Path], Awaitable[int]]) -> int:
    """Run it on virtual time in a folder of its own."""

    async def main() -> int:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            return await scenario(Path(folder))

    return run_virtual(main(), start=EPOCH)


# -- something happens before a step ---------------------------------------------------------------------

Event = Callable[[Stage, JobId], None]


def _node_of(stage: Stage, job_id: JobId) -> str:
    job = stage.cluster.jobs.get(job_id)
    places = sorted(job.nodes or {gpu.node for gpu in job.wanted}) if job is not None else []
    return places[0] if places else "n1"


EVENTS: dict[str, Event] = {
    "agent channel lost for 9 s": lambda s, j: s.agent_lost(_node_of(s, j), 9.0),
    "node reboots, back after 12 s": lambda s, j: s.node_reboots(_node_of(s, j), 12.0),
    "slurmctld away for 20 s": lambda s, _: s.slurmctld_away(20.0),
    "user resumes the job": lambda s, j: s.user_resumes(j),
    "user cancels the job": lambda s, j: s.user_cancels(j),
    "user holds the job": lambda s, j: s.user_holds(j),
    "user updates the job": lambda s, j: s.user_updates(j),
    "user requeues the job": lambda s, j: s.user_requeues(j),
    "operator suspends the job": lambda s, j: s.operator_suspends(j),
    "administrator drains the node for 30 s": lambda s, j: s.administrator_drains(_node_of(s, j), 30.0),
    "administrator drains the node until it is empty": lambda s, j: s.administrator_drains(
        _node_of(s, j), 1e4
    ),
    "an old view of Slurm (2 s) once more": lambda s, _: setattr(s.faults, "stale_view_seconds", 2.0),
    "an old view of the nodes (2 s) once more": lambda s, _: setattr(s.faults, "stale_sample_seconds", 2.0),
    "old views of both (5 s) once more": lambda s, _: s.old_views(5.0),
}
"""What others do, while an operation is about to take a step. The argument is the operation's job."""


async def _at_step(event: Event, step: Step, occurrence: int, policy: str, folder: Path) -> int:
    stage = Stage(folder)
    stage.decide_by(policy, policies())
    stage.usual_jobs()
    stage.start()
    count = 0

    def act(taken: Step, job_id: JobId) -> None:
        nonlocal count
        if taken is step:
            count += 1
            if count == occurrence:
                event(stage, job_id)

    stage.before_step(act)
    await stage.all_end(BOUND_SECONDS)
    await stage.finish()
    # What an operation that Slurm does not confirm has done is known only when Slurm answers again.
    stage.check_all(slack_seconds=22.0 if stage.port_was_away else 12.0)
    return int(count >= occurrence)


def at_steps(name: str, steps: list[Step], occurrences: list[int], policy: str) -> Row:
    """One event at all these steps."""
    return _gather(
        name,
        f"before {_names(steps)} ({policy})",
        [partial(_at_step, EVENTS[name], s, n, policy) for s in steps for n in occurrences],
        [f"{s.value} #{n}" for s in steps for n in occurrences],
    )


async def _forgotten(step: Step, occurrence: int, killed: bool, folder: Path) -> int:
    """Jobs keep coming; slurmctld loses its last 5 s, and other people's jobs get the lost jobs' numbers."""
    stage = Stage(folder)
    stage.usual_jobs()
    stage.start()
    reused: set[JobId] = set()
    count = 0

    def forget() -> None:
        lost = stage.slurmctld_forgets(5.0)
        again = {stage.submit(2, work_seconds=15, user="bob", uid=2002) for _ in lost}
        reused.update(again & set(lost))

    def act(taken: Step, _job_id: JobId) -> None:
        nonlocal count
        count += taken is step
        if taken is step and count == occurrence:
            asyncio.get_running_loop().call_soon(forget)

    stage.before_step(act)
    for _ in range(12):
        await asyncio.sleep(2.0)
        stage.submit(work_seconds=20)
    if killed:
        await stage.kill()
        forget()
        stage.start()
    await stage.all_end(BOUND_SECONDS)
    await stage.finish()
    stage.check_all(slack_seconds=8.0, exact=reused)
    return len(reused)


def forgotten(steps: list[Step], occurrences: list[int], dead: bool = True) -> Row:
    """At each step, and while the controller is dead."""
    cases = [(s, n, False) for s in steps for n in occurrences] + [(Step.UNDO, 99, True)] * dead
    return _gather(
        "slurmctld loses its last 5 s and gives the numbers to other jobs",
        f"before {_names(steps)}; and while no controller is there",
        [partial(_forgotten, *case) for case in cases],
        [f"{step.value} #{n}" for step, n, _ in cases],
    )


# -- the controller is killed ------------------------------------------------------------------------------


async def _killed_at(step: Step, occurrence: int, policy: str, away_seconds: float, folder: Path) -> int:
    stage = Stage(folder)
    stage.decide_by(policy, policies())
    stage.usual_jobs()
    stage.start()
    died = asyncio.Event()
    count = 0

    def act(taken: Step, _job_id: JobId) -> None:
        nonlocal count
        if taken is step and not died.is_set():
            count += 1
            if count == occurrence:
                died.set()
                raise asyncio.CancelledError

    stage.before_step(act)
    ended = asyncio.ensure_future(stage.all_end(BOUND_SECONDS))
    killed = asyncio.ensure_future(died.wait())
    await asyncio.wait({ended, killed}, return_when=asyncio.FIRST_COMPLETED)
    if died.is_set():
        await stage.kill_and_wait(away_seconds)
        stage.start()
    await ended
    killed.cancel()
    await stage.finish()
    stage.check_all(slack_seconds=away_seconds + 2.0)
    return int(died.is_set())


def killed_at_steps(steps: list[Step], occurrences: list[int], policy: str) -> Row:
    """kill -9 before each step."""
    return _gather(
        "controller killed, a new one after 3 s",
        f"before {_names(steps)} ({policy})",
        [partial(_killed_at, s, n, policy, 3.0) for s in steps for n in occurrences],
        [f"{s.value} #{n}" for s in steps for n in occurrences],
    )


async def _random_kills(kills: int, seed: int, deltas: bool, folder: Path) -> int:
    """Policies change from one controller to the next; jobs keep coming."""
    dice = random.Random(seed)
    stage = Stage(folder, deltas=deltas)
    names = list(policies())
    for number in range(kills):
        if number % 12 == 0 and sum(job.state is not JobState.ENDED for job in stage.submitted) < 40:
            stage.usual_jobs()
        stage.decide_by(dice.choice(names), policies())
        stage.start()
        died = asyncio.Event()
        left = dice.randint(1, 12)

        def act(_taken: Step, _job_id: JobId, died: asyncio.Event = died) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                died.set()
                raise asyncio.CancelledError

        if dice.random() < 0.6:
            stage.before_step(act)
        with suppress(asyncio.TimeoutError):  # in the middle of whatever it is doing
            await asyncio.wait_for(died.wait(), dice.uniform(0.0, 14.0))
        await stage.kill_and_wait(dice.choice((0.0, 0.05, 0.5, 2.0)))
    stage.decide_by("gandiva", policies())
    stage.start()
    stage.nodes.stubborn.clear()
    await stage.all_end(100.0 * kills + BOUND_SECONDS)
    await stage.finish()
    # A switch under way at a kill is time that nobody saw: at most a heartbeat's worth, and the call's.
    stage.check_all(slack_seconds=0.02 * stage.kills + 6.0)
    return stage.kills


def random_kills(kills: int, seed: int = 4, *, deltas: bool = False) -> Row:
    """Many kills in one run. `deltas`: the ports say only what changed."""
    answers = ", ports that say what changed" if deltas else ""
    return _gather(
        "controller killed at random, again and again",
        f"seed {seed}: before a random step or at a random time; policy changes at each start{answers}",
        [partial(_random_kills, kills, seed, deltas)],
        [f"{kills} kills"],
    )


async def _packed(seed: int, kills: int, probability: float, folder: Path) -> int:
    """Jobs share GPUs; controllers are killed, or calls go wrong for a while."""
    dice = random.Random(seed)
    stage = Stage(folder, preempt_exempt_ratio=1.0, packs=True)
    for number in range(kills):
        if number % 6 == 0:
            stage.usual_jobs(pack=True, model="resnet50", steps_per_second=20.0)
        stage.decide_by(dice.choice(("gandiva", "tiresias-las")), packing_policies())
        stage.start()
        await asyncio.sleep(dice.uniform(0.0, 25.0))
        await stage.kill_and_wait(dice.choice((0.0, 0.05, 0.5, 2.0)))
    stage.usual_jobs(pack=True, model="resnet50", steps_per_second=20.0)
    stage.faults.random, stage.faults.probability = random.Random(seed), probability
    stage.start()
    await asyncio.sleep(200.0)
    stage.faults.probability = 0.0
    stage.nodes.stubborn.clear()
    await stage.all_end(100.0 * kills + BOUND_SECONDS)
    await stage.finish()
    stage.check_all(slack_seconds=20.0)
    return stage.together


def packed(seeds: list[int]) -> Row:
    """Jobs that share GPUs; counts the looks at which two did."""
    cases = [(seed, *case) for seed in seeds for case in ((12, 0.0), (0, 0.1))]
    return _gather(
        "jobs share GPUs: twelve kills; any call goes wrong in any way, 10 % of all calls",
        f"seeds {seeds[0]} to {seeds[-1]}",
        [partial(_packed, *case) for case in cases],
        [f"seed {seed}, {kills} kills" for seed, kills, _ in cases],
    )


# -- clocks and disks ---------------------------------------------------------------------------------------


class _SetClock:
    """The controller's clock on a machine whose time of day is set: what `SystemClock` makes of it."""

    def __init__(self, wall: Callable[[float], float]) -> None:
        self._began = asyncio.get_running_loop().time()
        self._start = wall(self._began)

    def now(self) -> float:
        return self._start + asyncio.get_running_loop().time() - self._began

    def uptime(self) -> tuple[str, float]:
        return "this boot", asyncio.get_running_loop().time()


async def _clock_jump(seconds: float, away: bool, policy: str, folder: Path) -> int:
    """The time of day of all machines is set, with a controller there or without; then it restarts."""
    set_at = EPOCH + 25.0

    def wall(time: float) -> float:
        return time + (seconds if time >= set_at else 0.0)

    stage = Stage(folder, clock=lambda: _SetClock(wall))
    stage.decide_by(policy, policies())
    stage.port.wall = wall
    jobs = stage.usual_jobs()
    stage.start()
    if away:
        await asyncio.sleep(24.0)
        await stage.kill_and_wait(3.0)
        stage.start()
    await asyncio.sleep(25.0 if away else 45.0)
    switches = stage.nodes.switches
    await stage.kill_and_wait(3.0)
    stage.start()
    await asyncio.sleep(3 * SLICE_SECONDS)
    if policy == "gandiva":
        assert stage.nodes.switches > switches, "turns are not taken any more"
    await stage.all_end(BOUND_SECONDS)
    await stage.finish()
    stage.check_all(slack_seconds=8.0)
    return len(jobs) and 1


def clock_jumps(jumps: list[float], names: tuple[str, ...] = ("gandiva", "tiresias-las")) -> Row:
    """Forward and back, seen and unseen (under one policy alone: unseen, once)."""
    cases = [(jump, away, name) for jump in jumps for name in names for away in (True, False)]
    if len(names) == 1:
        cases = cases[:1]
    return _gather(
        "the time of day is set",
        f"by {', '.join(f'{jump:+g} s' for jump in jumps)}, while a controller runs and while none does",
        [partial(_clock_jump, *case) for case in cases],
        [f"{jump:+g} s {'away' if away else 'running'} {policy}" for jump, away, policy in cases],
    )


async def _full_disk(at_write: int, seconds: float, folder: Path) -> int:
    """From a certain write on the journal's disk takes nothing, for a while."""
    stage = Stage(folder)
    stage.usual_jobs()
    stage.start()
    journal = stage._journal
    assert journal is not None
    transaction, count, full_until = journal.file.transaction, 0, 0.0

    @contextmanager
    def full_or_not() -> Iterator[sqlite3.Connection]:
        nonlocal count, full_until
        count += 1
        now = asyncio.get_running_loop().time()
        if count == at_write:
            full_until = now + seconds
        if now < full_until:
            raise sqlite3.OperationalError("database or disk is full")
        with transaction() as connection:
            yield connection

    journal.file.transaction = full_or_not  # type: ignore[method-assign]
    await stage.all_end(BOUND_SECONDS)
    await stage.finish()
    stage.check_all(slack_seconds=2.0)
    return int(count >= at_write)


def full_disk(writes: list[int]) -> Row:
    """At each of these writes."""
    return _gather(
        "the journal's disk is full for 30 s",
        f"from write {writes[0]} to {writes[-1]} on" if len(writes) > 1 else f"from write {writes[0]} on",
        [partial(_full_disk, write, 30.0) for write in writes],
        [f"write {write}" for write in writes],
    )


# -- calls go wrong -----------------------------------------------------------------------------------------

CALLS = {
    "slurm": ("bind", "unbind", "release", "hold", "suspend", "resume", "requeue", "job", "observe-slurm"),
    "node": (
        "prepare",
        "pause",
        "offload",
        "checkpoint",
        "stop",
        "resume",
        "forget",
        "observe-nodes",
    ),
}
UNDOING = ("unbind", "hold", "forget")
"""Needed only where something is undone, and so not often."""


async def _troubled_call(method: str, trouble: Trouble, skip: int, repeat: int, folder: Path) -> int:
    stage = Stage(folder)
    stage.usual_jobs()
    stage.start()
    armed = False
    taken_calls = 0
    original = stage.faults.take

    def take(called: str) -> Trouble | None:
        nonlocal armed, taken_calls
        if called == method and not armed:
            taken_calls += 1
            if taken_calls > skip:
                armed = True
                stage.faults.arm(method, *[trouble] * repeat)
        return original(called)

    stage.faults.take = take  # type: ignore[method-assign, assignment]
    if method in UNDOING:
        # Only undoing needs them: Slurm starts nothing that is released, for longer than we wait for it.
        usual = stage.cluster.costs
        stage.cluster.costs = replace(usual, start_seconds=2 * START_SECONDS)
        stage.later(START_SECONDS - 1.0, lambda: setattr(stage.cluster, "costs", usual))
    if method == "forget":
        # What was prepared there is needed no more when its jobs start elsewhere.
        stage.later(START_SECONDS + 1.0, lambda: stage.cluster.set_node("n1", up=False, state="DRAINED"))
        stage.later(120.0, lambda: stage.cluster.set_node("n1", up=True, state="IDLE"))
    await stage.all_end(BOUND_SECONDS)
    await stage.finish()
    stage.check_all(slack_seconds=14.0)
    return stage.faults.injected


def troubled_calls(method: str, skips: list[int], repeat: int = 1) -> Iterator[Row]:
    """Each way a call can go wrong, for one method of a port."""
    for trouble in Trouble:
        if trouble is Trouble.TWICE and method.startswith("observe"):
            continue
        if trouble is Trouble.OLDER and method == "prepare":
            continue  # (`FaultyNodes` says why)
        yield _gather(
            f"{method}: {trouble.value}",
            f"call number {', '.join(str(s + 1) for s in skips)}"
            + (f", {repeat} in a row" if repeat > 1 else ""),
            [partial(_troubled_call, method, trouble, skip, repeat) for skip in skips],
            [f"call {skip + 1}" for skip in skips],
        )


async def _random_trouble(seed: int, probability: float, kills: int, folder: Path) -> int:
    dice = random.Random(seed)
    stage = Stage(folder)
    stage.decide_by(dice.choice(("gandiva", "tiresias-las", "fifo")), policies())
    stage.usual_jobs()
    stage.faults.random, stage.faults.probability = random.Random(seed), probability
    for _ in range(kills):
        stage.start()
        await asyncio.sleep(dice.uniform(5.0, 60.0))
        await stage.kill_and_wait(dice.uniform(0.0, 3.0))
    stage.start()
    await asyncio.sleep(200.0)
    stage.faults.probability = 0.0
    stage.nodes.stubborn.clear()
    await stage.all_end(BOUND_SECONDS)
    await stage.finish()
    stage.check_all(slack_seconds=14.0)
    return stage.faults.injected


def random_trouble(seeds: list[int]) -> Row:
    """Everything above at random, and kills among it."""
    return _gather(
        "any call goes wrong in any way, 10 % of all calls, and two kills",
        f"seeds {seeds[0]} to {seeds[-1]}",
        [partial(_random_trouble, seed, 0.1, 2) for seed in seeds],
        [f"seed {seed}" for seed in seeds],
    )


# -- helpers ---------------------------------------------------------------------------------------------


def _gather(
    fault: str, where: str, scenarios: list[Callable[[Path], Awaitable[int]]], labels: list[str]
) -> Row:
    """Run them all; the row says how many went wrong, and how the first one did."""
    times, failures = 0, []
    for scenario, label in zip(scenarios, labels, strict=True):
        try:
            times += run(scenario)
        except Exception as error:  # whatever it is, it is this row's outcome
            failures.append(f"{label}: {type(error).__name__}: {error}")
    if failures:
        return Row(fault, where, times, CHECKS, f"{len(failures)} failed; {failures[0]}", False)
    if not times:
        return Row(fault, where, 0, CHECKS, "never injected", False)
    return Row(fault, where, times, CHECKS, "as it must", True)


def troubled_call(method: str, trouble: Trouble, skips: list[int]) -> Row:
    """One way for one method."""
    return _gather(
        f"{method}: {trouble.value}",
        f"call number {', '.join(str(s + 1) for s in skips)}",
        [partial(_troubled_call, method, trouble, skip, 1) for skip in skips],
        [f"call {skip + 1}" for skip in skips],
    )


STEPS: list[Step] = [step for step in Step if step not in (Step.CANCEL, Step.RESERVE)]
"""(Its faults are in tests/unit/loop/test_unsuspendable.py.)"""


def _names(steps: list[Step]) -> str:
    return "every step" if len(steps) == len(STEPS) else ", ".join(step.value for step in steps)


def rows(quick: bool = False) -> Iterator[Row]:
    """All simulated faults; `quick`: one of each kind, in a few seconds."""
    steps = STEPS
    occurrences = [1, 2, 4]
    for policy in policies():
        if not quick or policy == "gandiva":
            yield killed_at_steps(steps, [1] if quick else occurrences, policy)
    yield random_kills(40 if quick else 1000)
    yield random_kills(20 if quick else 300, deltas=True)
    yield packed([0] if quick else list(range(20)))
    for number, name in enumerate(EVENTS):
        some = [steps[(3 * number + k) % len(steps)] for k in range(2)]
        yield at_steps(name, some if quick else steps, [1] if quick else occurrences, "gandiva")
        if not quick:
            yield at_steps(name, steps, [1], "tiresias-las")
    yield forgotten([Step.SLURM_SUSPEND] if quick else steps, [1] if quick else [1, 3])
    yield clock_jumps([-3600.0] if quick else [-3600.0, 3600.0])
    yield full_disk([5] if quick else [1, 2, 3, *range(5, 100, 5)])
    for methods in CALLS.values():
        for method in methods:
            if not quick or method in ("suspend", "offload"):
                calls = [0, 1] if method in UNDOING else [0, 3, 7]
                yield from troubled_calls(method, [0] if quick else calls)
    if not quick:
        yield from troubled_calls("suspend", [1], repeat=5)
        yield from troubled_calls("offload", [1], repeat=5)
    yield random_trouble(list(range(2 if quick else 60)))


def main(quick: bool = False) -> int:
    """Print the rows and, last, how many passed."""
    counts: Counter[bool] = Counter()
    for row in rows(quick):
        counts[row.passed] += 1
        mark = "ok  " if row.passed else "FAIL"
        print(f"{mark} {row.fault} | {row.where} | {row.times} | {row.outcome}", flush=True)
    print(f"{counts[True]} passed, {counts[False]} failed")
    return 1 if counts[False] else 0
