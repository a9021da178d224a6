# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster port without an administrator: jobs are the trials of a study, with numbers of their own.

What is known of a trial is in `trials/N.json`, and is written before anything is done that depends on it: a
supervisor that is started after `kill -9` of the one before goes on with what it finds there, and with the
processes that live.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from controller.cluster.family import Process
from controller.cluster.gres import bound_gres
from controller.cluster.port import ALLOCATED, ON_NODES, ClusterJob, ClusterNode, ClusterView, JobState
from controller.cluster.trial import Then, Trial, TrialSpec, read_trial, write_trial
from controller.errors import ClusterRefused, ClusterUnavailable, GandivaError, UnknownJob
from controller.model import GpuSet, JobId, Share, by_node

log = logging.getLogger(__name__)

GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL."""
LOOK_SECONDS = 0.05
KILL_AGAIN_SECONDS = 1.0
SHOWN_SECONDS = 60.0
"""An ended trial is in the views for so long: as Slurm's MinJobAge."""
KILLED = 128 + signal.SIGKILL


class Launcher(Protocol):
    """How trials become processes."""

    place: str
    """What these live and die with: another boot of the machine, another allocation is another place."""
    home: str
    """See `Trial`."""
    asks: bool
    """Whether `lost` and `signal` ask Slurm, which may not answer for long."""

    def clear(self, trial: Trial) -> None:
        """Nothing of an earlier start counts any more."""

    def start(self, trial: Trial) -> Process:
        """On the GPUs that it is bound to. Raises ClusterRefused."""

    def find(self, trial: Trial) -> Process | None:
        """The first process of a trial that was being started when the supervisor was killed; None: none."""

    def lives(self, trial: Trial) -> bool:
        """Whether processes of it are left."""

    def signal(self, trial: Trial, number: signal.Signals) -> None:
        """To all its processes."""

    def exit_code(self, trial: Trial) -> int | None:
        """Of a trial that does not live; None: nobody knows."""

    def ended_at(self, trial: Trial) -> float:
        """When it did, as far as that is known: seconds since the epoch."""

    def lost(self, trial: Trial) -> bool:
        """Whether its processes were ended with what was around them, rather than by themselves. Raises
        GandivaError: that is not known, or they may live in another place."""

    def forget(self, trial: Trial) -> None:
        """It does not live any more: remove its control block."""


class LocalCluster:
    """Implements `ClusterPort`."""

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[ClusterNode],
        launcher: Launcher,
        on_change: Callable[[Trial], None] = lambda _: None,
    ) -> None:
        """`folder`: of the trials' files. `on_change`: is told of each trial whose state has changed.

        Raises GandivaError: a file is broken, or trials may live on another host.
        """
        self.trials: dict[JobId, Trial] = {}
        """All of the study, by number."""
        self._live: set[JobId] = set()
        """Those that have GPUs, or are getting or leaving them."""
        self._left: set[JobId] = set()
        """Those that are not over."""
        self.on_change = on_change
        self._folder, self._launcher = folder, launcher
        self._nodes = {node.name: node for node in nodes}
        self._touched: dict[JobId, None] = {}
        self._answered = False
        self._ended_at: dict[JobId, float] = {}
        """Ended trials that views still have."""
        self._endings: dict[JobId, asyncio.Task[None]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._last = max(
            (int(path.stem) for path in folder.glob("[0-9]*.out") if path.stem.isdecimal()), default=0
        )
        """The highest number that was ever given, also to a trial whose file was moved away."""
        for path in sorted(folder.glob("*.json"), key=lambda path: (len(path.name), path.name)):
            trial = read_trial(path)
            self._keep(trial)
            self._go_on_with(trial)

    def submit(self, spec: TrialSpec) -> JobId:
        """A new trial, which waits."""
        number = JobId(max(self._last, *self.trials, 0) + 1)
        self._last = number
        self._put(Trial(number=number, spec=spec, submit_time=time.time()))
        return number

    def again(self, number: JobId, spec: TrialSpec | None = None) -> None:
        """An ended trial waits anew. `spec`: in place of its own."""
        old = self.trials[number]
        fresh = Trial(
            number=number, spec=spec or old.spec, submit_time=time.time(), restarts=old.restarts + 1
        )
        self._ended_at.pop(number, None)
        self._put(fresh)

    def say(self, number: JobId, word: str) -> None:
        """What its user says of a trial from now on."""
        trial = self._find(number)
        self._put(trial, spec=trial.spec.model_copy(update={"word": word}))

    def cancel(self, number: JobId, reason: str) -> None:
        """End it, whatever its state. Raises UnknownJob."""
        trial = self._find(number)
        if trial.state is JobState.PENDING:
            self._to(trial, JobState.ENDED, "CANCELLED", reason=reason, end_time=time.time())
        elif trial.state is not JobState.ENDED:
            self._end(trial, Then.CANCELLED, reason)

    def kill(self) -> None:
        """End all processes of all trials at once, without a word to them."""
        for trial in self._allocated():
            self._launcher.signal(trial, signal.SIGKILL)

    @property
    def over(self) -> bool:
        """Whether no trial has anything left to do."""
        return not self._left

    # The port.

    async def observe(self) -> ClusterView:
        now = time.time()
        for number in sorted(self._live):
            self._look(self.trials[number])
        complete = not self._answered
        gone = frozenset(n for n, at in self._ended_at.items() if at + SHOWN_SECONDS < now)
        shown = self.trials if complete else self._touched
        jobs = tuple(self.trials[number].view() for number in shown if number not in gone)
        for number in gone:
            del self._ended_at[number]
        for job in jobs:
            if job.state is JobState.ENDED:
                self._ended_at.setdefault(job.id, now)
        nodes = self._nodes_now() if complete or self._touched else ()
        self._touched, self._answered = {}, True
        return ClusterView(now, jobs, nodes, complete, frozenset() if complete else gone)

    async def shares(self) -> tuple[Share, ...]:
        return ()

    async def job(self, job_id: JobId) -> ClusterJob:
        return self._find(job_id).view()

    async def bind(self, job_id: JobId, binding: GpuSet) -> None:
        self._require_gpus(job_id, binding)
        self._find(job_id)
        if ending := self._endings.get(job_id):  # it is not through with its last run
            await asyncio.wait({ending})
        trial = self._in_state(job_id, JobState.PENDING)
        self._put(trial, wanted=tuple(sorted((gpu.node, gpu.ordinal) for gpu in binding)))

    async def unbind(self, job_id: JobId) -> None:
        self._put(self._in_state(job_id, JobState.PENDING), wanted=())

    async def release(self, job_id: JobId) -> None:
        trial = self._find(job_id)
        if trial.state is not JobState.PENDING or not trial.held:
            return
        if not trial.wanted:
            raise ClusterRefused(f"trial {job_id} is not bound to GPUs")
        self._launcher.clear(trial)
        trial = self._to(
            trial, JobState.CONFIGURING, held=False, place=self._launcher.place, home=self._launcher.home
        )
        try:
            process = self._launcher.start(trial)
        except ClusterRefused as refused:
            self._to(trial, JobState.ENDED, "FAILED", exit_code=1, end_time=time.time(), reason=str(refused))
            raise
        self._keep(trial := trial.model_copy(update={"process": process}))
        self._started(trial)

    async def hold(self, job_id: JobId) -> None:
        self._in_state(job_id, JobState.PENDING)

    async def suspend(self, job_id: JobId) -> None:
        trial = self._in_state(job_id, *ON_NODES)
        self._launcher.signal(trial, signal.SIGSTOP)
        self._to(trial, JobState.SUSPENDED)

    async def resume(self, job_id: JobId) -> None:
        trial = self._in_state(job_id, *ON_NODES)
        self._to(trial, JobState.RUNNING)
        self._launcher.signal(trial, signal.SIGCONT)

    async def requeue(self, job_id: JobId) -> None:
        trial = self._in_state(job_id, JobState.PENDING, *ALLOCATED)
        if trial.then is None and (ending := self._endings.get(job_id)):  # it has ended by itself
            await asyncio.wait({ending})
            trial = self._in_state(job_id, JobState.PENDING, *ALLOCATED)
        if trial.state in ON_NODES:  # else the call is repeated
            self._end(trial, Then.AGAIN)

    async def end(self, job_id: JobId, reason: str) -> None:
        self.cancel(job_id, reason)

    async def reserve(self, job_id: JobId, gpus: GpuSet, seconds: float) -> None:
        self._require_gpus(job_id, gpus)  # nobody else is given GPUs here

    async def unreserve(self, job_id: JobId) -> None:
        """Nothing is reserved."""

    async def reservations(self) -> Mapping[JobId, GpuSet]:
        return {}

    async def close(self) -> None:
        """Trials go on; the next supervisor ends those that are being ended."""
        for task in self._endings.values():
            task.cancel()

    # What becomes of trials.

    def _go_on_with(self, trial: Trial) -> None:
        """With what an earlier supervisor has left."""
        if trial.state not in ALLOCATED:
            return
        if trial.place != self._launcher.place and self._launcher.lost(trial):
            self._ended(trial, lost=True)
        elif trial.home and trial.home != self._launcher.home:
            if trial.process is not None and trial.process.lives():
                raise GandivaError(
                    f"trial {trial.number} still runs, begun before the study was moved or copied to here: "
                    f"move it back, or end process {trial.process.pid}"
                )
            self._ended(trial, lost=True)
        elif trial.state is JobState.CONFIGURING:
            # One that was started a moment ago cannot be found yet: /proc has its environment after the exec.
            trial = trial.model_copy(update={"process": trial.process or self._launcher.find(trial)})
            if trial.process is None and self._launcher.exit_code(trial) is None:
                self._to(trial, JobState.PENDING, held=True)
            else:
                self._started(trial)
        elif trial.then is not None:
            self._end(trial, trial.then, trial.reason)

    def _started(self, trial: Trial) -> None:
        self._to(trial, JobState.RUNNING, binding=trial.wanted, start_time=time.time())

    def _look(self, trial: Trial) -> None:
        """See whether it has ended by itself. What could not be written before is tried again."""
        try:
            if trial.id in self._endings:
                return
            if trial.state in ON_NODES and not self._launcher.lives(trial):
                if self._launcher.asks:
                    self._ends(trial.id, self._note_end(trial.id))
                else:
                    self._ended(trial, lost=self._launcher.lost(trial))
            elif trial.state is JobState.CONFIGURING or trial.then:
                self._go_on_with(trial)
        except ClusterUnavailable as error:
            log.warning("job %s: how it has ended is not known yet: %s", trial.id, error)
        except OSError as error:
            log.error("job %s: %s: what became of it cannot be written, and is tried again", trial.id, error)

    def _ended(self, trial: Trial, *, lost: bool) -> None:
        """Its processes have ended: it is over, or waits for its next start. `lost`: with what was around."""
        code, cancelled = self._launcher.exit_code(trial), trial.then is Then.CANCELLED
        # One that was ended from without may say that all went well: it has saved its work, say.
        again = not cancelled and (trial.then is Then.AGAIN or lost)
        self._launcher.forget(trial)
        changes: dict[str, Any] = {"then": None, "process": None}
        if again:
            changes |= {"held": True, "binding": (), "wanted": (), "start_time": None, "end_time": None}
            self._to(trial, JobState.PENDING, restarts=trial.restarts + 1, **changes)
            return
        changes["end_time"] = trial.end_time or self._launcher.ended_at(trial)
        changes["exit_code"] = KILLED if code is None else code
        if code is None and not cancelled:
            changes["reason"] = "its first process was killed"
        said = "CANCELLED" if cancelled else "FAILED" if changes["exit_code"] else "COMPLETED"
        self._to(trial, JobState.ENDED, said, **changes)

    def _end(self, trial: Trial, then: Then, reason: str = "") -> None:
        """Have its processes end. Of two that ask, the one who cancels it is right."""
        number = trial.id
        then = Then.CANCELLED if trial.then is Then.CANCELLED else then
        self._to(trial, JobState.COMPLETING, then=then, reason=reason, end_time=time.time())
        if number not in self._endings:
            self._ends(number, self._ending(number))

    def _ends(self, number: JobId, ending: Coroutine[Any, Any, None]) -> None:
        task = self._endings[number] = asyncio.get_running_loop().create_task(ending)
        task.add_done_callback(lambda _: self._endings.pop(number))

    async def _ending(self, number: JobId) -> None:
        trial, until = self.trials[number], time.monotonic() + GRACE_SECONDS
        await asyncio.to_thread(self._launcher.signal, trial, signal.SIGTERM)
        await asyncio.to_thread(self._launcher.signal, trial, signal.SIGCONT)
        while self._launcher.lives(trial):
            if time.monotonic() > until:
                await asyncio.to_thread(self._launcher.signal, trial, signal.SIGKILL)
                until = time.monotonic() + KILL_AGAIN_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
        await self._note_end(number)

    async def _note_end(self, number: JobId) -> None:
        """Of a trial that does not live. What fails is tried again at the next look."""
        try:
            lost = await asyncio.to_thread(self._launcher.lost, self.trials[number])
            self._ended(self.trials[number], lost=lost)
        except (OSError, ClusterUnavailable) as error:
            log.error("job %s: %s: its end is not noted yet", number, error)

    async def stop_all(self) -> None:
        """End all processes of all trials, whatever can be written."""
        for number in signal.SIGTERM, signal.SIGCONT:
            for trial in self._allocated():
                self._launcher.signal(trial, number)
        for _ in range(int(GRACE_SECONDS / LOOK_SECONDS)):
            if not any(map(self._launcher.lives, self._allocated())):
                return
            await asyncio.sleep(LOOK_SECONDS)
        self.kill()

    def _allocated(self) -> list[Trial]:
        return [self.trials[number] for number in sorted(self._live)]

    # Notes.

    def _to(self, trial: Trial, state: JobState, said: str = "", **changes: Any) -> Trial:
        changed = self._put(trial, state=state, state_name=said or state.value, **changes)
        self.on_change(changed)
        return changed

    def _put(self, trial: Trial, **changes: Any) -> Trial:
        trial = trial.model_copy(update=changes)
        write_trial(self._folder / f"{trial.number}.json", trial)
        self._keep(trial)
        self._touched[trial.id] = None
        return trial

    def _keep(self, trial: Trial) -> None:
        number = trial.id
        self.trials[number] = trial
        (self._live.add if trial.state in ALLOCATED else self._live.discard)(number)
        (self._left.discard if trial.state is JobState.ENDED else self._left.add)(number)

    def _find(self, job_id: JobId) -> Trial:
        if job_id not in self.trials:
            raise UnknownJob(f"trial {job_id} is not known")
        self._look(self.trials[job_id])
        return self.trials[job_id]

    def _in_state(self, job_id: JobId, *states: JobState) -> Trial:
        trial = self._find(job_id)
        if trial.state not in states:
            raise ClusterRefused(f"trial {job_id} is {trial.state_name}, not {states[0].value.lower()}")
        return trial

    def _require_gpus(self, job_id: JobId, gpus: GpuSet) -> None:
        """Raises ValueError as the other adapters do, and ClusterRefused for a node that is not there."""
        names = by_node(gpus).keys()
        if gone := sorted(names - self._nodes.keys()):
            raise ClusterRefused(f"trial {job_id}: {', '.join(gone)} is no node of this study")
        bound_gres(gpus, {name: self._nodes[name].gpus[0].model for name in names})

    def _nodes_now(self) -> tuple[ClusterNode, ...]:
        """With the memory that the trials on them have asked for."""
        taken = dict.fromkeys(self._nodes, 0)
        for trial in self._allocated():
            for name in {node for node, _ in trial.binding}:
                taken[name] += trial.spec.memory_bytes
        return tuple(replace(node, memory_allocated_bytes=taken[n]) for n, node in self._nodes.items())
