# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults that are not one part breaking at one step."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from functools import partial

from controller.act.recorder import Step
from tests.faults.enumerated import ATTEMPTS, POINTS, Point, make
from tests.faults.fault import Evidence, Fault
from tests.faults.parts import (
    DISK,
    EMPTY_WAL,
    LATE_AGENT,
    LATE_SLURMCTLD,
    PEOPLE,
    SILENT_AGENT,
    SILENT_SLURMCTLD,
    Target,
)
from tests.faults.stage import JOURNAL, KILL_SCRIPT, FaultFailed, NotReached, Order, Stage
from tests.faults.workload import COOPERATIVE, EMPTY, GANG, REQUEUED, TRANSPARENT, WORKLOADS, Workload

LOST_SECONDS = 25.0
SEED = 20261121


def points(*wanted: tuple[str, Step, Workload]) -> list[Point]:
    """Those of the enumeration; ValueError for one that is not there."""
    plain = {(p.operation, p.step, p.workload.name): p for p in POINTS}
    try:
        return [plain[operation, step, workload.name] for operation, step, workload in wanted]
    except KeyError as error:
        raise ValueError(f"no such point: {error}") from None


AGENT_CALLS = points(
    ("place", Step.PREPARE, REQUEUED),
    ("suspend", Step.PAUSE, COOPERATIVE),
    ("suspend", Step.OFFLOAD, COOPERATIVE),
    ("resume", Step.NODE_RESUME, COOPERATIVE),
    ("suspend", Step.CHECKPOINT, TRANSPARENT),
    ("resume", Step.NODE_RESUME, TRANSPARENT),
    ("suspend", Step.STOP, EMPTY),
    ("suspend", Step.OFFLOAD, GANG),
)
SLURM_CALLS = points(
    ("place", Step.BIND, REQUEUED),
    ("place", Step.RELEASE, REQUEUED),
    ("requeue", Step.REQUEUE, REQUEUED),
    ("suspend", Step.SLURM_SUSPEND, COOPERATIVE),
    ("resume", Step.SLURM_RESUME, COOPERATIVE),
)
STAGES_OF_A_JOB = points(
    ("place", Step.RELEASE, REQUEUED),
    ("place", Step.AWAIT_START, REQUEUED),
    ("suspend", Step.PAUSE, COOPERATIVE),
    ("suspend", Step.SLURM_SUSPEND, COOPERATIVE),
    ("resume", Step.SLURM_RESUME, COOPERATIVE),
    ("resume", Step.NODE_RESUME, COOPERATIVE),
)


def slow() -> Iterator[Fault]:
    for point in AGENT_CALLS:
        yield make(LATE_AGENT, point, "during")
    for point in AGENT_CALLS[1:5]:
        yield make(SILENT_AGENT, point, "during")
    for point in SLURM_CALLS:
        yield make(LATE_SLURMCTLD, point, "before")
    for point in SLURM_CALLS[1::2] + SLURM_CALLS[-1:]:
        yield make(SILENT_SLURMCTLD, point, "before")


def people() -> Iterator[Fault]:
    for part in PEOPLE:
        for point in STAGES_OF_A_JOB:
            yield make(part, point, "before")


def lost_answers() -> Iterator[Fault]:
    """Calls to Slurm that take effect and look as if they had not."""
    calls = {
        "bind": REQUEUED,
        "release": REQUEUED,
        "requeue": REQUEUED,
        "hold": REQUEUED,
        "unbind": REQUEUED,
        "suspend": COOPERATIVE,
        "resume": COOPERATIVE,
    }
    # One operation asks four times for a requeue, and once each for what takes a release back.
    often = {"requeue": 4, "hold": 1, "unbind": 1}
    for call, workload in calls.items():
        for times in sorted({1, often.get(call, 5)}):
            yield Fault(
                group="answer lost",
                what="a call to Slurm takes effect, its answer is lost, once or several times in a row",
                where=f"{call}, {workload.name}",
                detail=f"{times} in a row",
                run=partial(_lose, call=call, workload=workload, times=times),
                times=times,
            )


def _lose(stage: Stage, call: str, workload: Workload, times: int) -> Evidence:
    undo = call in ("hold", "unbind")
    for _ in range(3):
        jobs = stage.populate(workload)
        ids = tuple(j.id for j in jobs)
        # A place that is refused on the node is taken back by these two.
        stage.order(Order(step=call, deed="lose", jobs=ids, times=times, refuse="prepare" if undo else ""))
        try:
            job_id = stage.await_met(LOST_SECONDS)["job"]
            break
        except NotReached:
            stage.withdraw_order()
    else:
        raise FaultFailed(f"no {call} of a job ({workload.name}) was seen {times} times")
    now = time.time()
    seconds = stage.await_converged(now)
    stage.count_trouble(now)
    return Evidence(f"job {job_id}, right again {seconds:.1f} s after the last lost answer", seconds)


def twice() -> Fault:
    return Fault(
        group="agent answers twice",
        what="every line of every agent counts as if it had come twice",
        where="all operations of all kinds of jobs",
        detail="for the life of eight jobs",
        run=_twice,
    )


def _twice(stage: Stage) -> Evidence:
    stage.order(Order(deed="twice"))
    for workload in (COOPERATIVE, TRANSPARENT, EMPTY, REQUEUED):
        stage.populate(workload)
    began = time.time()
    time.sleep(2.0)
    stage.await_converged(began + 2.0)
    stage.site.wait_ended([j.id for j in stage.round.jobs], 180)
    stage.withdraw_order()
    return Evidence(f"{len(stage.round.jobs)} jobs to their end")


def two_controllers() -> Iterator[Fault]:
    """The leader is killed between two steps; the other takes over."""
    for point in STAGES_OF_A_JOB:
        yield Fault(
            group="two controllers",
            what="the leading controller of two: SIGKILL; the standby leads",
            where=point.operation_in_words,
            detail=f"before {point.step.value}",
            run=partial(_take_over, point=point),
        )


def _take_over(stage: Stage, point: Point) -> Evidence:
    waiting = stage.log_since().count("standby:")
    stage.start_controller()
    stage.site.wait("a standby", lambda: stage.log_since().count("standby:") > waiting, 60)
    for _ in range(ATTEMPTS):
        jobs = stage.populate(point.workload)
        ids = tuple(j.id for j in jobs)
        leads = stage.log_since().count("leads: policy")
        stage.order(Order(kind=point.operation, step=point.step.value, deed="kill", jobs=ids))
        try:
            job_id = stage.await_met()["job"]
            break
        except NotReached:
            stage.withdraw_order()
    else:
        raise FaultFailed(f"{point.operation} never came to {point.step.value}")
    killed = time.time()
    stage.site.wait("the standby to lead", lambda: stage.log_since().count("leads: policy") > leads, 60)
    took_seconds = time.time() - killed
    seconds = stage.await_converged(killed)
    stage.count_trouble(killed)
    return Evidence(
        f"job {job_id}, the standby led after {took_seconds:.1f} s, all right after {seconds:.1f} s", seconds
    )


BACK_IN_THE_QUEUE = {
    "its owner requeues it": None,
    "its node fails": ("state=down reason=fault", "state=resume"),
}
"""What puts jobs back into the queue: their owners, or these updates of the node."""


def no_controller() -> Iterator[Fault]:
    for how in BACK_IN_THE_QUEUE:
        yield Fault(
            group="no controller",
            what="no controller for longer than Slurm's requeue_delay: Slurm starts jobs by itself",
            where=COOPERATIVE.name,
            detail=how,
            run=partial(_by_itself, how=how),
        )


def _by_itself(stage: Stage, how: str) -> Evidence:
    """(A job that is suspended then keeps its priority 0, and waits as held.)"""
    jobs = stage.populate(COOPERATIVE, fresh=2)[-2:]
    for _ in range(3):
        stage.await_converged(time.time())
        stage.kill_controllers()
        began = time.time()
        states = stage.look([]).states
        again = [job for job in jobs if states.get(job.id) == "RUNNING"]
        if again:
            break
        stage.start_controller()  # it was in the middle of a switch
    else:
        raise NotReached("no job was running when the controller was killed")
    for job in jobs if BACK_IN_THE_QUEUE[how] is None else ():
        stage.as_owner(job.id, "scontrol", "requeue", "{job}")
    for words in BACK_IN_THE_QUEUE[how] or ():
        stage.sh("ctl", f"scontrol update nodename={COOPERATIVE.nodes[0]} {words}")
    listed = ",".join(str(job.id) for job in again)
    shown = f"squeue -h -j {listed} -t all -O RestartCnt:.9,State:.9"
    _soon(stage, "Slurm's own start", "ctl", f"[ \"$({shown} | sort -u | xargs)\" = '1 RUNNING' ]")
    started = time.time()
    words = "nobody has prepared this start"
    waits = " && ".join(f"grep -q '{words}' ~{job.user}/{job.id}.out" for job in again)
    _soon(stage, "the start to wait", "login", waits)
    if any(hold.start > started and hold.job_id in {job.id for job in jobs} for hold in stage.holds()):
        raise FaultFailed("a start that nobody chose is on a GPU")
    stage.start_controller()
    seconds = stage.await_converged(time.time())
    stage.count_trouble(began)
    return Evidence(f"job {listed} started and waited, right {seconds:.1f} s after the controller's", seconds)


def _soon(stage: Stage, what: str, host: str, script: str) -> None:
    stage.site.wait(what, lambda: stage.sh(host, script, check=False).status == 0, 60)


DAMAGE = {
    "header overwritten": (
        "dd if=/dev/urandom of={path} bs=100 count=1 conv=notrunc status=none",
        "! cmp -s -n 100 {path} {before}",
    ),
    "pages overwritten": (
        "dd if=/dev/urandom of={path} bs=4096 seek=3 count=8 conv=notrunc status=none",
        "! cmp -s -i 12288 -n 32768 {path} {before}",
    ),
    "cut in half": (
        "truncate -s $(( $(stat -c %s {path}) / 2 )) {path}; rm -f {path}-wal",
        "[ $(stat -c %s {path}) = $(( $(stat -c %s {before}) / 2 )) ]",
    ),
    "empty": ("truncate -s 0 {path}; rm -f {path}-wal", "[ -e {path} ] && [ ! -s {path} ]"),
    "removed": ("rm {path}; rm -f {path}-wal {path}-shm", "[ ! -e {path} ]"),
}
"""What is done to the file, and how to see in it that it was done."""
_DAMAGE = """\
set -e
[ -s {path} ]
cp {path} {before}
{damage}
{{ {proof}; }} || exit 9
find {folder} -maxdepth 1 -name '{name}*' -exec chown gandiva: {{}} +"""
BEFORE = "/tmp/journal-before"


JOURNAL_LOST = "journal damaged"
"""The group of faults after which time on GPUs cannot be looked up."""


def damaged_journal() -> Iterator[Fault]:
    for how in DAMAGE:
        yield Fault(
            group=JOURNAL_LOST,
            what="the journal's file is damaged while no controller runs (time on GPUs until then is lost)",
            where="before a start",
            detail=how,
            run=partial(_damage, how=how),
        )


def damage_script(how: str, path: str = JOURNAL, before: str = BEFORE) -> str:
    """Damages the file and looks at it: ends with another status than 0 when it is not damaged so."""
    damage, proof = (words.format(path=path, before=before) for words in DAMAGE[how])
    folder, _, name = path.rpartition("/")
    return _DAMAGE.format(path=path, before=before, damage=damage, proof=proof, folder=folder, name=name)


def _damage(stage: Stage, how: str) -> Evidence:
    stage.round.books = False
    stage.populate(COOPERATIVE)
    stage.populate(EMPTY)
    stage.await_converged(time.time())
    stage.kill_controllers()
    began = time.time()
    told = stage.log_since().count("set aside")
    # All of it into the file itself: what lies beside it in the log would hide the damage.
    stage.sh("ctl", f"/opt/gandiva/venv/bin/python -c {shlex.quote(EMPTY_WAL)}", user="gandiva")
    stage.sh("ctl", damage_script(how))
    stage.start_controller()
    seconds = stage.await_converged(time.time())
    stage.count_trouble(began)
    if how not in ("empty", "removed") and stage.log_since().count("set aside") == told:
        raise FaultFailed("the controller did not say that the journal was damaged and set aside")
    return Evidence(f"right again {seconds:.1f} s after the start", seconds)


def full_disk_at_start() -> Fault:
    return Fault(
        group="journal disk full at start",
        what="the journal's file system is full when the controller starts, for 5 s",
        where="before a start",
        detail="no byte left",
        run=_full_at_start,
    )


def _full_at_start(stage: Stage) -> Evidence:
    stage.populate(COOPERATIVE)
    stage.await_converged(time.time())
    stage.kill_controllers()
    began = time.time()
    target = Target(COOPERATIVE, 0)
    DISK.strike(stage, target)
    stage.start_controller()
    time.sleep(5.0)
    alive = stage.controller_running()
    DISK.repair(stage, target)
    if not alive:
        stage.start_controller()
    seconds = stage.await_converged(time.time())
    stage.count_trouble(began)
    how = "it waited" if alive else "it ended with an error and was started again"
    return Evidence(f"{how}; right again {seconds:.1f} s after there was room", seconds)


_KILL = """\
RANDOM=$2
for i in $(seq "$1"); do
  {start}
  pid=$(cat /run/slurm/gandiva.pid)
  # Every other time from its first turn on, else from the birth of the process.
  if [ $((i % 2)) = 0 ]; then
    for j in $(seq 100); do
      status=none
      exec 3<> /dev/tcp/localhost/6822 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3
      read -r _ status _ <&3
      exec 3>&-
      [ "$status" = 200 ] && break
      sleep 0.05
    done
  fi 2> /dev/null
  sleep "$((RANDOM % 15 / 10)).$((RANDOM % 9 + 1))"
  kill -9 "$pid" || exit 1
  while [ -e /proc/"$pid" ]; do sleep 0.01; done
done"""


def random_kills(number: int) -> Fault:
    return Fault(
        group=f"{number} random kills",
        what="controller: SIGKILL 0.1 to 1.9 s after its start or its first turn, started again at once",
        where="all operations of all kinds of jobs",
        detail="at random moments",
        run=lambda stage: _random_kills(stage, number),
        times=number,
    )


BATCH = 10


def _random_kills(stage: Stage, number: int) -> Evidence:
    stage.kill_controllers()
    stage.learn_digests(WORKLOADS)
    stage.cluster.write_file("ctl", KILL_SCRIPT, _KILL.replace("{start}", stage.START))
    done = 0
    while done < number:
        for workload in (COOPERATIVE, TRANSPARENT, EMPTY, REQUEUED, GANG):
            stage.populate(workload)
        batch = min(BATCH, number - done)
        stage.sh("ctl", f"bash {KILL_SCRIPT} {batch} {SEED + done}", timeout_seconds=50 * batch)
        done += batch
        stage.say(f"{done} of {number} random kills, {len(stage.round.jobs)} jobs so far")
    stage.start_controller()
    began = time.time()
    seconds = stage.await_converged(began)
    stage.round.trouble_seconds += number * 2.0
    in_flight = stage.interrupted_operations()
    if in_flight < number / 10:
        raise FaultFailed(f"only {in_flight} of {number} kills came while an operation was under way")
    text = f"{number} kills, {in_flight} operations cut off by them, {len(stage.round.jobs)} jobs"
    return Evidence(f"{text}; right again {seconds:.1f} s after the last", seconds)
