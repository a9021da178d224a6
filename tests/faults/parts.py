# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of a site that can break: how each is broken, and started again as its host would."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from container.containers import container_name
from tests.faults.stage import (
    BOOT_SECONDS,
    CONVERGED_SECONDS,
    JOURNAL,
    RESTART_SECONDS,
    FaultFailed,
    NotReached,
    Said,
    Stage,
)
from tests.faults.workload import Workload

_SIGNAL = """\
number=%(number)s found=
for p in $(pgrep -f '%(pattern)s'); do
  case $(cat /proc/$p/comm 2> /dev/null) in %(names)s) kill -$number $p && found="$found $p";; esac
done
[ "$found" ] || { echo 'none is there'; exit 3; }
for p in $found; do
  for i in $(seq 500); do
    state=$(sed 's/.*) //; s/ .*//' /proc/$p/stat 2> /dev/null)
    case ${state:-X} in %(states)s) continue 2;; esac
    sleep 0.02
  done
  echo "process $p is in state $state after signal $number"; exit 1
done"""
"""Every process that fits gets the signal, and does what it must. Status 3: none fits."""
_STATES = {"KILL": "X|Z", "STOP": "T", "CONT": "[!T]"}
EMPTY_WAL = f"""\
import sqlite3
sqlite3.connect("{JOURNAL}", timeout=5).execute("PRAGMA wal_checkpoint(TRUNCATE)")"""
# As at a power cut no process runs any more, not even those that Slurm has frozen: with the signal
# already pending they do not run one instruction when they are thawed (which they must be, or their container
# could not end).
_POWER_CUT = """\
self=$$ above=$(cut -d' ' -f4 /proc/$PPID/stat) killed=0
for p in $(cd /proc && echo [0-9]*); do
  # Not the container's own first processes: it is ended from outside.
  case $p in 1|$self|$PPID|$above) continue;; esac
  case $(tr '\\0' ' ' < "/proc/$p/cmdline") in 'sleep infinity '*) continue;; esac
  kill -9 "$p" && killed=$((killed + 1))
done 2> /dev/null
find /sys/fs/cgroup/freezer -mindepth 1 -name freezer.state -exec sh -c 'echo THAWED > {}' \\; 2> /dev/null
find /sys/fs/cgroup -mindepth 1 -name cgroup.freeze -exec sh -c 'echo 0 > {}' \\; 2> /dev/null
[ "$killed" -gt 0 ]"""


def _send(stage: Stage, node: str, number: str, pattern: str, names: str) -> None:
    """Raises NotReached when no such process is there, CommandError when one does not heed the signal."""
    words = {"number": number, "states": _STATES[number], "pattern": pattern, "names": names}
    said = stage.sh(node, _SIGNAL % words, check=False)
    if said.status == 3:
        raise NotReached(f"{node}: no process {pattern} was there to get {number}")
    if said.status != 0:
        raise FaultFailed(f"{node}: {said.text.strip()}")


def _signal_agents(stage: Stage, node: str, number: str) -> None:
    _send(stage, node, number, "[g]andiva-agent", "python3*|gandiva-agent")


@dataclass(frozen=True, slots=True)
class Target:
    """Whom it hits."""

    workload: Workload
    job_id: int
    step: str = ""
    """Where the fault comes."""
    at: str = ""
    """The node, where the job may be on any."""

    @property
    def node(self) -> str:
        """The (first) node of the job, or the one that it migrates to."""
        return self.at or self.workload.nodes[0]


Act = Callable[[Stage, Target], None]


@dataclass(frozen=True, slots=True)
class Part:
    """Something that breaks."""

    name: str
    how: str
    """In words, for the table."""
    strike: Act
    repair: Act
    converged_seconds: float = CONVERGED_SECONDS
    needs_saved_jobs: bool = False
    remind: Act | None = None
    """What an administrator does when the repair alone has not put it right within half the time."""
    tidy: Act | None = None
    """For the test's own sake, when all has been seen to be right."""
    kills_job: bool = False
    """On purpose: it need not complete."""
    agent_signal: str = ""
    """What hits the agent `during` a call: KILL or STOP."""


def _service(host: str | None, name: str, number: int = 9) -> tuple[Act, Act]:
    def strike(stage: Stage, target: Target) -> None:
        stage.service(host or target.node, "running", name)
        stage.service(host or target.node, "kill", name, number)

    def repair(stage: Stage, target: Target) -> None:
        time.sleep(RESTART_SECONDS)
        stage.service(host or target.node, "start", name)

    return strike, repair


def _register_nodes(stage: Stage, _: Target) -> None:
    """slurmctld, killed before it had saved that a batch job ended or was requeued, takes it for running
    until its node registers: every 20 pings, or when its slurmd reads its configuration again."""
    for node in stage.site.nodes:
        stage.service(node, "kill", "slurmd", "HUP")


def _end_agent(stage: Stage, target: Target) -> None:
    _signal_agents(stage, target.node, "KILL")


def _cut_channel(stage: Stage, target: Target) -> None:
    _send(stage, target.node, "KILL", "[s]shd-session: root", "sshd*")


_BOOTED_SLURMD = """\
pid=/run/slurm/slurmd.%(node)s.pid
rm -f $pid
slurmd -b -N %(node)s || exit
for i in $(seq 600); do [ -s $pid ] && kill -0 $(cat $pid) && exit; sleep 0.1; done
exit 1
"""
"""The nodes share their host's uptime: -b makes slurmd say that the node was booted just now, as a real one's
shows. (Its process is there a moment before its number; who starts it in between ends it.)"""


def _nothing(_stage: Stage, _: Target) -> None:
    """The product itself is to put it right."""


def _power_cut(stage: Stage, target: Target) -> None:
    node = target.node
    # What the mock GPUs have seen is lost with the node: keep it.
    stage.sh(node, _POWER_CUT, timeout_seconds=20)
    stage.round.events.setdefault(node, []).extend(stage.history(node))
    name = container_name(stage.cluster.spec, node)
    container = stage.cluster._client.containers.get(name)
    container.kill()
    container.wait(timeout=30)
    stage.round.node_deaths += 1


def _power_on(stage: Stage, target: Target) -> None:
    # slurmctld allows for 15 s of delays: what began later is believed to run still (docs/slurm-facts.md).
    time.sleep(BOOT_SECONDS)
    node = target.node
    container = stage.cluster._client.containers.get(container_name(stage.cluster.spec, node))
    container.start()
    stage.sh(
        node,
        "for i in $(seq 300); do [ /run/minicluster-ready -nt /proc/1 ] && exit; sleep 0.1; done; exit 1",
    )
    stage.sh(node, "mockgpu clear-history")
    stage.service(node, "start", "sshd")
    stage.sh(node, _BOOTED_SLURMD % {"node": node})
    stage.service(node, "start", "slurmd")


def _fill_disk(stage: Stage, _: Target) -> None:
    folder = JOURNAL.rpartition("/")[0]
    stage.sh("ctl", f"/opt/gandiva/venv/bin/python -c {shlex.quote(EMPTY_WAL)}", user="gandiva")
    stage.sh("ctl", f"cat /dev/zero > {folder}/filler 2> /dev/null; [ -s {folder}/filler ]")


def _empty_disk(stage: Stage, _: Target) -> None:
    # Longer than a slice: at least one decision falls into it.
    time.sleep(RESTART_SECONDS * 3)
    stage.sh("ctl", f"rm {JOURNAL.rpartition('/')[0]}/filler")


def _start_controller(stage: Stage, _: Target) -> None:
    if stage.controller_running():
        raise FaultFailed("the controller lives after its SIGKILL")
    time.sleep(RESTART_SECONDS)
    stage.start_controller()


CONTROLLER = Part("controller", "SIGKILL by itself, started again 1 s later", _nothing, _start_controller)
AGENT = Part("node agent", "SIGKILL of the agent on the node", _end_agent, _nothing, agent_signal="KILL")
CHANNEL = Part("agent channel", "SIGKILL of the node's sshd session", _cut_channel, _nothing)
SLURMCTLD = Part(
    "slurmctld",
    "SIGKILL, started again 1 s later",
    *_service("ctl", "slurmctld"),
    needs_saved_jobs=True,
    remind=_register_nodes,
)
SLURMD = Part("slurmd", "SIGKILL on the job's node, started again 1 s later", *_service(None, "slurmd"))
SLURMDBD = Part("slurmdbd", "SIGKILL, started again 1 s later", *_service("db", "slurmdbd"))
MUNGE = Part(
    "munge", "SIGKILL of munged on the controllers' host, started again 1 s later", *_service("ctl", "munge")
)
NODE = Part(
    "node",
    f"power cut (all processes killed, memory lost), started again {BOOT_SECONDS:g} s later",
    _power_cut,
    _power_on,
    converged_seconds=120.0,
)
DISK = Part("journal disk", "file system filled to the last byte for 3 s", _fill_disk, _empty_disk)
PARTS = (CONTROLLER, AGENT, CHANNEL, SLURMCTLD, SLURMD, SLURMDBD, MUNGE, NODE, DISK)


_CANCEL_RESERVATION = """\
own=$(squeue -h --me -n gandiva-reservation-{job} -o %i)
[ "$own" ] || {{ echo 'nothing is reserved'; exit 3; }}
scancel $own"""


def _cancel_reservation(stage: Stage, target: Target) -> None:
    said = stage.sh("ctl", _CANCEL_RESERVATION.format(job=target.job_id), user="gandiva", check=False)
    if said.status == 3:
        raise NotReached(said.text.strip())
    if said.status != 0:
        raise FaultFailed(said.text.strip())


RESERVATION = Part(
    "reservation", "scancel of the job that keeps the GPUs for it", _cancel_reservation, _nothing
)
"""Of a job that migrates only."""

# -- slow parts ----------------------------------------------------------------------------------------------

LATE_SECONDS = 3.0
"""Shorter than any deadline."""
SILENT_SECONDS = 30.0
"""Longer than any deadline of a call to Slurm."""


def _stop_agent(stage: Stage, target: Target) -> None:
    _signal_agents(stage, target.node, "STOP")


def _continue_agent(stage: Stage, target: Target) -> None:
    time.sleep(LATE_SECONDS)
    _signal_agents(stage, target.node, "CONT")


def _clear_agents(stage: Stage, target: Target) -> None:
    """Those that still stand still; sshd cannot tell them from those that are slow."""
    script = (
        "for p in $(pgrep -f '[g]andiva-agent'); do "
        "if grep -q '^State:.T' /proc/$p/status 2> /dev/null; then kill -9 $p; fi; done"
    )
    stage.sh(target.node, script)


def _stop_slurmctld(stage: Stage, _: Target) -> None:
    stage.service("ctl", "running", "slurmctld")
    stage.service("ctl", "kill", "slurmctld", "STOP")


def _continue_slurmctld(seconds: float) -> Act:
    def act(stage: Stage, _: Target) -> None:
        time.sleep(seconds)
        stage.service("ctl", "kill", "slurmctld", "CONT")

    return act


LATE_AGENT = Part(
    "agent late",
    f"stopped, goes on after {LATE_SECONDS:g} s",
    _stop_agent,
    _continue_agent,
    agent_signal="STOP",
)
SILENT_AGENT = Part(
    "agent silent",
    "stopped for good",
    _stop_agent,
    _nothing,
    converged_seconds=90.0,
    tidy=_clear_agents,
    agent_signal="STOP",
)
LATE_SLURMCTLD = Part(
    "slurmctld late",
    f"stopped, goes on after {LATE_SECONDS:g} s",
    _stop_slurmctld,
    _continue_slurmctld(LATE_SECONDS),
)
SILENT_SLURMCTLD = Part(
    "slurmctld silent",
    f"stopped, answers after {SILENT_SECONDS:g} s",
    _stop_slurmctld,
    _continue_slurmctld(SILENT_SECONDS),
)
SLOW = (LATE_AGENT, SILENT_AGENT, LATE_SLURMCTLD, SILENT_SLURMCTLD)

# -- people -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """What Slurm says where it refuses a command (a regular expression)."""

    said: str
    always: bool = True
    """False: the job may be there already or not yet, and Slurm does either."""


ENDED_BY_ITSELF = "Job has already finished|already completing or completed"
Refusals = Mapping[str, Refusal]
"""By step. Everywhere else the command must succeed."""


def _owner(*words: str, refused: Refusals = MappingProxyType({})) -> Act:
    """The job's owner runs `scontrol` (or `scancel`) on it."""

    def act(stage: Stage, target: Target) -> None:
        _as_expected(words, stage.as_owner(target.job_id, *words), refused.get(target.step))

    return act


def _operator(*words: str, user: str = "gandiva", refused: Refusals = MappingProxyType({})) -> Act:
    """The controller's user, whom Slurm takes for an operator; nodes are root's to change."""

    def act(stage: Stage, target: Target) -> None:
        filled = [word.format(job=target.job_id, node=target.node) for word in words]
        said = stage.sh("ctl", shlex.join(filled), user=user, check=False)
        _as_expected(words, said, refused.get(target.step))

    return act


def _as_expected(words: Sequence[str], said: Said, refusal: Refusal | None) -> None:
    """Raises FaultFailed for a command that was to succeed and did not, or was to be refused and was not;
    NotReached where the job had come to its own end just then."""
    command, answer = " ".join(words), said.text.strip()
    if said.status == 0:
        if refusal is not None and refusal.always:
            raise FaultFailed(f"{command} succeeded: expected Slurm to say {refusal.said!r}")
    elif refusal is None or not re.search(refusal.said, answer):
        if re.search(ENDED_BY_ITSELF, answer):
            raise NotReached(f"{command}: {answer}")
        raise FaultFailed(f"{command} failed: {answer}")


def _later(act: Act) -> Act:
    def later(stage: Stage, target: Target) -> None:
        time.sleep(LATE_SECONDS)
        act(stage, target)

    return later


_NOT_SUSPENDED = Refusal("Job is not suspended")
_NOT_STARTED = Refusal("Job is pending execution")
_WAITING_ONLY = Refusal("only a waiting job can be held")
_NOTHING_TO_RESUME: Refusals = {
    "release": _NOT_STARTED,
    "await-start": Refusal("Job is pending execution|Job is not suspended"),
    "pause": _NOT_SUSPENDED,
    "slurm-suspend": _NOT_SUSPENDED,
    "node-resume": _NOT_SUSPENDED,
}
_NOTHING_TO_HOLD: Refusals = {
    "await-start": Refusal(_WAITING_ONLY.said, always=False),
    **dict.fromkeys(("pause", "slurm-suspend", "slurm-resume", "node-resume"), _WAITING_ONLY),
}
_NOT_YET_STARTED: Refusals = {
    "release": _NOT_STARTED,
    "await-start": Refusal(_NOT_STARTED.said, always=False),
}
_MAY_HAVE_ENDED: Refusals = dict.fromkeys(
    ("release", "await-start", "pause", "slurm-suspend", "slurm-resume", "node-resume"),
    Refusal(ENDED_BY_ITSELF, always=False),
)

PEOPLE = (
    Part(
        "user resumes",
        "scontrol resume by the owner",
        _owner("scontrol", "resume", "{job}", refused=_NOTHING_TO_RESUME),
        _nothing,
    ),
    Part("user cancels", "scancel by the owner", _owner("scancel", "{job}"), _nothing, kills_job=True),
    Part(
        "user holds",
        f"scontrol hold by the owner, release {LATE_SECONDS:g} s later",
        _owner("scontrol", "hold", "{job}", refused=_NOTHING_TO_HOLD),
        _later(_owner("scontrol", "release", "{job}", refused=_MAY_HAVE_ENDED)),
    ),
    Part(
        "user updates",
        "scontrol update of name, time limit and comment by the owner",
        _owner("scontrol", "update", "jobid={job}", "name=other", "timelimit=9", "comment=x"),
        _nothing,
    ),
    Part(
        "user requeues",
        "scontrol requeue by the owner",
        _owner("scontrol", "requeue", "{job}", refused=_NOT_YET_STARTED),
        _nothing,
    ),
    Part(
        "operator suspends",
        "scontrol suspend by an operator",
        _operator("scontrol", "suspend", "{job}", refused=_NOT_YET_STARTED),
        _nothing,
    ),
    Part(
        "operator resumes",
        "scontrol resume by an operator",
        _operator("scontrol", "resume", "{job}", refused=_NOTHING_TO_RESUME),
        _nothing,
    ),
    Part(
        "administrator drains",
        f"the job's node drained, resumed {LATE_SECONDS:g} s later",
        _operator("scontrol", "update", "nodename={node}", "state=drain", "reason=maintenance", user="root"),
        _later(_operator("scontrol", "update", "nodename={node}", "state=resume", user="root")),
    ),
)
