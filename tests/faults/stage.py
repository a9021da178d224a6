# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster that faults happen to: its jobs, the daemon with a place for faults, waiting until it is right
again."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from container import render
from container.cluster import CONTROLLER_LOG, MiniCluster
from container.errors import MiniClusterError
from container.services import SCRIPT
from tests.faults.workload import COOPERATIVE, EMPTY_SCRIPT, EMPTY_SOURCE, GPU_SECONDS, Workload
from tests.live.conftest import restore
from tests.live.gpu_history import EVENTS, Event, Hold, holds
from tests.live.support import ENDED, Site

SLICE_SECONDS = 1.5
RESTART_SECONDS = 1.0
"""What was killed is started again so long after, as systemd would."""
WAY_SECONDS = 60.0
"""A job that is to migrate is at work, and a node is free for it, within this time."""
BOOT_SECONDS = 30.0
"""A node that lost power is back so long after."""
CONVERGED_SECONDS = 60.0
"""Every job that is there must be at work again, or have had its turn, this long after the repair. Nothing in
the settings below waits longer than 20 s; twice that, and a margin for a busy machine."""

JOURNAL = "/dev/shm/gandiva/journal.sqlite"
"""On a file system of its own (256 MiB), to be filled."""
SETTINGS: Mapping[str, Any] = {
    "cluster": {"rpc_deadline_seconds": 8.0},
    "loop": {"interval_seconds": 0.25},
    "policy": {
        "name": "gandiva",
        "gandiva": {"slice_seconds": SLICE_SECONDS, "max_jobs_per_gpu": 8},
        # tests/faults/injected.py has another move in its place: jobs migrate when they are told.
        "moves": ["defragment"],
    },
    "suspend": {
        "step_deadline_seconds": 8.0,
        "offload_deadline_seconds": 8.0,
        "resume_deadline_seconds": 15.0,
        "start_deadline_seconds": 20.0,
        "retry_after_seconds": 3.0,
    },
    "journal": {"path": JOURNAL},
}

DAEMON = "/opt/gandiva/faults/gandiva-daemon.py"
FOLDER = "/run/gandiva-faults"
SHARED = "/shared/gandiva-faults"
STRIKER = f"{SHARED}/striker.py"
KILL_SCRIPT = "/opt/gandiva/faults/kill-again"
START_DAEMON = f"""\
setsid setpriv --reuid=gandiva --regid=gandiva --init-groups env HOME=/var/lib/gandiva \
/opt/gandiva/venv/bin/python {DAEMON} /etc/gandiva/gandiva.toml >> {CONTROLLER_LOG} 2>&1 < /dev/null &
echo $! > /run/slurm/gandiva.pid"""
_AWAIT_MET = f"""\
for i in $(seq $(($1 * 50))); do
  if [ -e {FOLDER}/met ]; then cat {FOLDER}/met; rm {FOLDER}/met; exit; fi; sleep 0.02
done; exit 9"""
_LOOK = """\
squeue -h -t all -o '%A %T' || exit 7
exec 3<> /dev/tcp/localhost/6822 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3
echo "health ${status:-none}"
for job in "$@"; do
  for f in /shared/home/*/"$job".beat; do echo "beat $job $(tail -qn2 "$f" | head -n1)"; done
done
"""

Moment = Literal["before", "during", "after"]


class FaultFailed(AssertionError):
    """A fault did what it must not; the message is the evidence."""


class NotReached(Exception):
    """The place where the fault should come was not reached, or what it should hit was not there."""


@dataclass(frozen=True, slots=True)
class Order:
    """Where the daemon stops, and what it does there; read by tests/faults/injected.py."""

    kind: str = ""
    """Of the operation: place, suspend, resume, requeue, withdraw."""
    step: str = ""
    moment: Moment = "before"
    deed: Literal["kill", "meet", "lose", "twice"] = "meet"
    jobs: tuple[int, ...] = ()
    """Any of these; none: any job."""
    times: int = 1
    refuse: str = ""
    """A node call to refuse first."""
    node: str = ""
    """Whose agent is hit `during` the call."""


@dataclass(frozen=True, slots=True)
class Way:
    """Of a job that is to migrate; read by tests/faults/injected.py."""

    job: int
    source: str
    target: str
    suspended: bool = False
    """It migrates while it is off its GPU."""

    def node(self, side: Literal["source", "target"]) -> str:
        """One of its two ends."""
        return self.source if side == "source" else self.target


@dataclass(slots=True)
class LiveJob:
    """A job under test."""

    id: int
    user: str
    workload: Workload
    gpu_seconds: float
    submitted: float
    may_fail: bool = False
    """It was cancelled on purpose."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the jobs are doing, at one moment."""

    states: Mapping[int, str]
    beats: Mapping[int, float]
    """When each made its last step."""
    healthy: bool
    """The controller's loop turns."""


@dataclass(slots=True)
class Round:
    """Some faults with the jobs that lived through them."""

    jobs: list[LiveJob] = field(default_factory=list)
    faults: int = 0
    trouble_seconds: float = 0.0
    """From each fault to the time when all was right again."""
    node_deaths: int = 0
    books: bool = True
    """Time on GPUs can be looked up at the end: no journal was lost."""
    events: dict[str, list[Event]] = field(default_factory=dict)
    """History of mock GPUs that is not on the nodes any more."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed (both outputs), and its status."""

    text: str
    status: int


class Stage:
    """A mini cluster with `tests.faults.injected` as its controller."""

    START = START_DAEMON

    def __init__(self, cluster: MiniCluster, say: Callable[[str], None] = lambda _: None) -> None:
        self.cluster = cluster
        self.site = Site(cluster, nodes=cluster.spec.node_names)
        self.say = say
        self.round = Round()
        self._closed = False
        self._digests: dict[tuple[str, float], str] = {}

    # -- commands ---------------------------------------------------------------------------------------

    def sh(
        self,
        host: str,
        script: str,
        *,
        user: str = "root",
        check: bool = True,
        timeout_seconds: float = 60.0,
    ) -> Said:
        """Run a bash script on a host; anybody but root in their home folder."""
        if self._closed:
            raise RuntimeError("the run has ended")
        home = "/var/lib/gandiva" if user == "gandiva" else None
        both = f"exec 2>&1\n{script}"
        done = self.cluster.exec(
            host, both, user=user, check=check, timeout_seconds=timeout_seconds, workdir=home
        )
        return Said(done.stdout, done.exit_code)

    def service(self, host: str, action: str, name: str, *words: object) -> None:
        """`service.sh ACTION NAME …` of the mini cluster."""
        self.sh(host, shlex.join([SCRIPT, action, name, *map(str, words)]), timeout_seconds=120)

    def close(self) -> None:
        """Commands are refused from now on."""
        self._closed = True

    # -- setting up -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Put the scripts there and learn what each kind of job computes when nothing disturbs it."""
        folders = f"{FOLDER} {Path(JOURNAL).parent} {Path(CONTROLLER_LOG).parent}"
        self.sh("ctl", f"install -d -o gandiva -g gandiva {folders}")
        source = Path(__file__).with_name("injected.py").read_text()
        self.cluster.write_file("ctl", DAEMON, source)
        self.cluster.write_file("login", EMPTY_SCRIPT, EMPTY_SOURCE)
        self.sh("ctl", f"install -d -o gandiva -g gandiva {SHARED}; rm -f {SHARED}/*")
        self.cluster.write_file("ctl", STRIKER, Path(__file__).with_name("striker.py").read_text())
        self.cluster.stop_controller()
        self.kill_controllers()
        self.cluster.start_services()
        restore(self.cluster)
        text = render.controller_toml(self.cluster.spec, SETTINGS)
        for host in ("ctl", "login"):
            self.cluster.write_file(host, "/etc/gandiva/gandiva.toml", text)

    def learn_digests(self, workloads: Iterable[Workload], gpu_seconds: float = GPU_SECONDS) -> None:
        """Run one ordinary job of each kind, undisturbed."""
        wanted = [w for w in workloads if (w.name, gpu_seconds) not in self._digests]
        jobs = {}
        for workload in wanted:
            options = [o for o in workload.options if not o.startswith("--gandiva")]
            jobs[workload.name] = self.site.submit(
                "carol", workload.undisturbed(gpu_seconds), "--no-gandiva", *options
            )
        states = self.site.wait_ended(jobs.values(), 60 + 4 * gpu_seconds)
        if set(states.values()) - {"COMPLETED"}:
            raise FaultFailed(f"undisturbed jobs did not complete: {states}")
        for name, job_id in jobs.items():
            self._digests[name, gpu_seconds] = self.digest("carol", job_id)

    def expected_digest(self, job: LiveJob) -> str:
        return self._digests[job.workload.name, job.gpu_seconds]

    def digest(self, user: str, job_id: int) -> str:
        """The digests of all ranks, without their names."""
        return " ".join(line.split()[-1] for line in self.site.digest(user, job_id).splitlines())

    # -- the controller -----------------------------------------------------------------------------------

    def start_controller(self) -> None:
        """As systemd does: start it, and not wait for more."""
        self.sh("ctl", self.START)

    def kill_controllers(self) -> None:
        """All there are, standbys too, and wait until they are gone."""
        script = (
            f"pkill -9 -f '[b]ash {KILL_SCRIPT}'; pkill -9 -f '[g]andiva-daemon.py'; "
            "while pgrep -f '[g]andiva-daemon.py' > /dev/null; do sleep 0.05; done"
        )
        self.sh("ctl", script, check=False)

    def controller_running(self) -> bool:
        return self.cluster.controller_running()

    def order(self, order: Order) -> None:
        """To be carried out when the daemon gets there."""
        self._tell("order", json.dumps(asdict(order)))

    def migrate(self, way: Way) -> None:
        """Let a job migrate. It is tried again as long as the job is on the first of the two nodes."""
        self._tell("migrate", json.dumps(asdict(way)))

    def _tell(self, name: str, text: str) -> None:
        new = f"{FOLDER}/{name}.new"
        script = f"cat > {new}; chown gandiva: {new}; mv {new} {FOLDER}/{name}"
        answers = f"rm -f {FOLDER}/met {FOLDER}/go; " if name == "order" else ""
        self.sh("ctl", f"{answers}printf %s {shlex.quote(text)} | {{ {script}; }}")

    def withdraw_order(self) -> None:
        orders = f"{FOLDER}/order {FOLDER}/migrate {FOLDER}/met"
        self.sh("ctl", f"rm -f {orders}; touch {FOLDER}/go; sleep 0.1; rm -f {FOLDER}/go")

    def await_met(self, seconds: float = 15.0) -> dict[str, Any]:
        """Until the order is being carried out. Raises NotReached."""
        script = _AWAIT_MET.replace("$1", str(round(seconds)))
        said = self.sh("ctl", script, check=False, timeout_seconds=seconds * 2 + 20)
        if said.status != 0:
            raise NotReached
        answer: dict[str, Any] = json.loads(said.text)
        return answer

    def arm(self, node: str, signal_name: str, delay_seconds: float) -> None:
        """Make the striker of this node ready; the next order `during` a call is its trigger."""
        self.disarm(node)
        pipe = f"rm -f {SHARED}/ready {SHARED}/struck {SHARED}/trigger; mkfifo -m 666 {SHARED}/trigger"
        start = f"setsid python3 {STRIKER} {signal_name} {delay_seconds:g} < /dev/null > /dev/null 2>&1 &"
        ready = f"for i in $(seq 500); do [ -e {SHARED}/ready ] && exit; sleep 0.01; done; exit 1"
        self.sh(node, f"{pipe}; {start}\n{ready}")

    def disarm(self, node: str) -> None:
        """A striker that has not been needed ends."""
        self.sh(node, "pkill -9 -f '[s]triker.py'", check=False)

    def await_call_ended(self, job_id: int, seconds: float = 40.0) -> dict[str, Any]:
        """How the call ended that was hit. Raises FaultFailed when it has not."""
        path = f"{FOLDER}/call-ended"
        script = (
            f"for i in $(seq {round(seconds * 10)}); do [ -e {path} ] && break; sleep 0.1; done; cat {path}"
        )
        said = self.sh("ctl", script, check=False, timeout_seconds=seconds * 2)
        if said.status != 0:
            raise FaultFailed(f"the call of job {job_id} that was hit has not ended after {seconds:g} s")
        answer: dict[str, Any] = json.loads(said.text)
        if answer["job"] != job_id:
            raise FaultFailed(f"the call that ended was one of job {answer['job']}, not of job {job_id}")
        return answer

    def go(self) -> None:
        """End of the meeting."""
        self.sh("ctl", f"touch {FOLDER}/go")

    # -- jobs -----------------------------------------------------------------------------------------------

    def submit(
        self, workload: Workload, gpu_seconds: float = GPU_SECONDS, *options: str, user: str | None = None
    ) -> LiveJob:
        self.learn_digests([workload], gpu_seconds)
        who = user or ("alice", "bob")[len(self.round.jobs) % 2]
        words = ["sbatch", "--parsable", "--mem=200M", "--output=%j.out", "--gandiva", *workload.options]
        words += [*options, "--wrap", workload.command(gpu_seconds)]
        # In a clean environment: sbatch passes its own on to the job.
        home = f"HOME=/home/{who} USER={who} PATH=/usr/bin:/bin"
        said = self.sh("login", f"env -i {home} {shlex.join(words)}", user=who)
        job_id = int(said.text.strip().splitlines()[-1].split(";")[0])
        job = LiveJob(job_id, who, workload, gpu_seconds, time.time())
        self.round.jobs.append(job)
        return job

    def populate(self, workload: Workload, number: int = 2, *, fresh: int = 0) -> list[LiveJob]:
        """See to it that so many jobs of this kind are there; at least `fresh` of them new."""
        alive = [j for j in self.alive() if j.workload is workload]
        for _ in range(max(number - len(alive), fresh)):
            alive.append(self.submit(workload))
        return alive

    def alive(self) -> list[LiveJob]:
        """Jobs of this round that have not ended."""
        states = self.look([]).states
        return [j for j in self.round.jobs if states.get(j.id, "COMPLETED") not in ENDED]

    def await_ended(self) -> None:
        """Until all jobs of this round have ended."""
        self.site.wait("the end of all jobs", lambda: not self.alive(), 120)

    def await_saved(self, since: float | None = None) -> None:
        """Until slurmctld has written down what was then, or the last submission: killed, it forgets what
        came later."""
        last = max((j.submitted for j in self.round.jobs), default=0.0) if since is None else since
        script = (
            f"for i in $(seq {300 if since is None else 100}); do "
            f"[ $(stat -c %Y /var/spool/slurmctld/job_state) -gt {int(last) + 1} ] "
            "&& exit 0; sleep 0.1; done; exit 9"
        )
        self.sh("ctl", script, check=False)

    def way(self, job: LiveJob) -> Way:
        """Once the job is at work: from its node to one where no job is. Raises NotReached."""
        script = "squeue -h -t R,CG,S -o '%A %N'"
        deadline = time.monotonic() + WAY_SECONDS
        while time.monotonic() < deadline:
            lines = [line.split(" ") for line in self.sh("ctl", script).text.splitlines() if line]
            at = {int(line[0]): line[-1] for line in lines}
            free = sorted(set(self.site.nodes) - set(at.values()))
            if free and at.get(job.id) and job.id in self.look([job]).beats:
                return Way(job.id, at[job.id], free[0], job.workload.waits)
            time.sleep(0.2)
        raise NotReached(f"job {job.id} is not at work, or no node is free for it to go to")

    def share(self, way: Way, gpu_seconds: float) -> None:
        """Another job takes turns with one that is to migrate while it is suspended."""
        if way.suspended:
            self.submit(COOPERATIVE, gpu_seconds, "-w", way.source, "--gandiva-migrate=no")

    def reservations(self) -> list[str]:
        """The jobs that keep GPUs for others."""
        said = self.sh("ctl", "squeue -h --me -t PD,CF,R,S -o '%j'", user="gandiva")
        return [line for line in said.text.splitlines() if line.startswith("gandiva-reservation-")]

    def requeue_running(self, jobs: Sequence[LiveJob]) -> None:
        """As an operator, behind the controller's back."""
        ids = {j.id for j in jobs}
        for _ in range(50):
            states = self.look([]).states
            for job_id in sorted(ids):
                if states.get(job_id) == "RUNNING":
                    self.sh("ctl", f"scontrol requeue {job_id}", check=False)
                    return
            time.sleep(0.1)
        raise NotReached

    def as_owner(self, job_id: int, *words: str) -> Said:
        """The owner of the job runs this command, in which `{job}` is its number."""
        user = next(j.user for j in self.round.jobs if j.id == job_id)
        filled = [word.format(job=job_id) for word in words]
        return self.sh("login", shlex.join(filled), user=user, check=False)

    # -- looking ------------------------------------------------------------------------------------------

    def look(self, jobs: Sequence[LiveJob]) -> Look:
        """Raises MiniClusterError while Slurm does not answer."""
        jobs_in_words = " ".join(str(j.id) for j in jobs)
        script = f"set -- {jobs_in_words}; {{ {_LOOK} }} 2> /dev/null"
        done = self.sh("ctl", script, timeout_seconds=30)
        states, beats, healthy = {}, {}, False
        for line in done.text.splitlines():
            first, _, rest = line.partition(" ")
            if first == "health":
                healthy = rest == "200"
            elif first == "beat":
                job_id, _, text = rest.partition(" ")
                try:
                    beats[int(job_id)] = float(json.loads(text)["time"])
                except (ValueError, KeyError, TypeError):
                    continue
            elif first.isdigit():
                states[int(first)] = rest
        return Look(states, beats, healthy)

    def await_converged(
        self, since: float, seconds: float = CONVERGED_SECONDS, *, without: Iterable[int] = ()
    ) -> float:
        """Until the controller works and every job has made a step since then or ended. Returns how many
        seconds that took. Raises FaultFailed."""
        left_out = set(without)
        waiting = [j for j in self.round.jobs if j.id not in left_out]
        deadline = since + seconds
        seen: Look | None = None
        while True:
            try:
                seen = self.look(waiting)
            except MiniClusterError:
                pass
            else:
                now = time.time()
                waiting = [
                    j
                    for j in waiting
                    if seen.states.get(j.id, "COMPLETED") not in ENDED and seen.beats.get(j.id, 0.0) <= since
                ]
                if not waiting and seen.healthy:
                    return now - since
            if time.time() > deadline:
                self._not_converged(waiting, seen, seconds)
            time.sleep(0.3)

    def _not_converged(self, waiting: Sequence[LiveJob], seen: Look | None, seconds: float) -> None:
        what = ", ".join(
            f"job {j.id} ({j.workload.name}) {seen.states.get(j.id, 'unknown') if seen else 'unknown'}"
            for j in waiting
        )
        if seen is None:
            what = "Slurm does not answer"
        elif not seen.healthy:
            what = f"the controller's loop does not turn; {what}"
        raise FaultFailed(f"not right again after {seconds:g} s: {what}")

    def interrupted_operations(self) -> int:
        """Operations of this round that a controller did not live to end."""
        script = (
            f"import sqlite3; print(sqlite3.connect('{JOURNAL}').execute("
            "\"SELECT count(*) FROM operations WHERE outcome = 'interrupted'\").fetchone()[0])"
        )
        said = self.sh("ctl", f"/opt/gandiva/venv/bin/python -c {shlex.quote(script)}", user="gandiva")
        return int(said.text)

    def count_trouble(self, since: float) -> None:
        """A fault that began then is over."""
        self.round.faults += 1
        self.round.trouble_seconds += time.time() - since

    def log_since(self) -> str:
        """The controller's log of this round."""
        return self.sh("ctl", f"cat {CONTROLLER_LOG}").text

    def gather_logs(self, folder: Path) -> None:
        self.cluster.gather_logs(folder)
        (folder / "queue.txt").write_text(self.site.queue())

    def holds(self) -> list[Hold]:
        """Who held memory on which GPU in this round, lost history included."""
        found: list[Hold] = []
        for node in self.site.nodes:
            events = [*self.round.events.get(node, []), *self.history(node)]
            now = float(self.sh(node, "date +%s.%N").text)
            found += holds(node, events, now)
        return found

    def history(self, node: str) -> list[Event]:
        return EVENTS.validate_json(self.sh(node, "mockgpu history --json").text)

    def begin_round(self) -> None:
        """A fresh controller with an empty journal, idle nodes, GPUs without a past."""
        self.kill_controllers()
        self.cluster.start_services()
        restore(self.cluster)
        self.sh("ctl", f"rm -rf {JOURNAL}* {FOLDER}/*; truncate -s 0 {CONTROLLER_LOG}", check=False)
        for node in self.site.nodes:
            self.sh(node, "mockgpu clear-history")
        self.round = Round()
        self.start_controller()
