# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva run`: a controller for the trials of one study, until they are over.

It is a process of the user's own, and may end at any moment: what it knows is in the study's folder, trials
go on without it, and the next one goes on with both. SIGINT and SIGTERM put the trials by first
(`controller.run.ending`).
"""

import asyncio
import logging
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from controller.cluster.allocation import ends_at
from controller.cluster.local import LocalCluster
from controller.cluster.port import ALLOCATED, JobState
from controller.cluster.request import read_message
from controller.cluster.trial import Trial, TrialSpec
from controller.daemon.assembly import Assembly
from controller.daemon.leadership import introduction
from controller.errors import GandivaError, NodeError
from controller.journal import Journal, JournalReader
from controller.journal.lock import JournalLock
from controller.loop.loop import Controller, Cycle
from controller.model import JobId, value
from controller.nodes.connection import Patience
from controller.nodes.protocol import HelloResult
from controller.nodes.remote import RemoteNodes
from controller.policies.assemble import make_policy
from controller.reports.text import some
from controller.run.asked import Asked, Submission, answer, take
from controller.run.ending import margin_seconds, put_by
from controller.run.folder import JOURNAL, StudyFolder, Supervisor
from controller.run.journal import study_journal
from controller.run.machine import Machine, held
from controller.run.progress import Progress, table
from controller.run.site import site
from controller.run.study import Study, StudyError, submitted

log = logging.getLogger(__name__)

ALL_COMPLETED, SOME_FAILED, OTHER_SUPERVISOR, UNFINISHED, INTERRUPTED = 0, 1, 3, 75, 130
"""Exit statuses; 2 is that of a wrong study file or command line."""
CONNECT_SECONDS = 30.0
AGAIN_SECONDS = 1.0
PUT_BY_SECONDS = 600.0
LAST_SECONDS = 5.0
"""Of an allocation: nothing is begun in them."""


@value(kw_only=True)
class Wishes:
    """What the command line says besides the study."""

    gpus: tuple[str, ...] = ()
    """By index or UUID; none: all."""
    retry: tuple[str, ...] = ()
    """Trials that ended so are run again, such as FAILED."""
    open: bool = False
    """Trials may be submitted until standard input ends."""


class OtherSupervisor(GandivaError):
    """Another process runs this study."""


class StudyRun:
    """One supervisor of a study."""

    def __init__(self, study: Study, folder: Path, wishes: Wishes, environ: Mapping[str, str]) -> None:
        self._study, self._folder, self._wishes = study, StudyFolder(folder), wishes
        self._site = site(study, folder, wishes.gpus, environ)
        self._environ, self._ends_at = environ, ends_at(environ)
        self._stop = asyncio.Event()
        self._journal = self._site.run_dir / JOURNAL
        self._signal = 0
        """What ends it before its trials are over."""
        self._open = wishes.open
        self._cluster: LocalCluster | None = None
        self._changed: dict[JobId, Trial] = {}
        """Trials whose state has changed since the last cycle."""
        self._progress = Progress(lambda line: print(line, flush=True))

    async def look(self) -> Machine:
        """What there is to run on; nothing is started but an agent that ends with us. Raises GandivaError."""
        nodes = self._nodes(None)
        try:
            return await self._look(nodes)
        finally:
            await nodes.close()

    async def run(self) -> int:
        """Until all trials are over, or a signal. Returns the exit status. Raises GandivaError."""
        (self._folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        lock = JournalLock(self._folder.journal)
        if not lock.take():
            raise OtherSupervisor(f"process {lock.holder} runs the study in {self._folder.path} already")
        nodes = self._nodes(lock)
        try:
            found = self._found = await self._look(nodes)
            with held(found, self._folder.path):
                cluster = self._cluster = self._trials(found)
                with study_journal(self._journal, self._folder.journal, lock) as journal:
                    await self._serve(journal, cluster, nodes)
            print("\n".join(table(list(cluster.trials.values()), JournalReader(self._journal))))
        finally:
            await nodes.close()
            self._folder.remove_note()
        if failed := [trial for trial in cluster.trials.values() if trial.state_name == "FAILED"]:
            print(
                f"{len(failed)} failed: their output is in {self._folder.trials}/N.out, such as "
                f"{failed[0].number}.out; --retry failed runs them once more"
            )
        if cluster.over:
            shutil.rmtree(self._site.run_dir, ignore_errors=True)
            completed = all(trial.state_name == "COMPLETED" for trial in cluster.trials.values())
            return ALL_COMPLETED if completed else SOME_FAILED
        return INTERRUPTED if self._signal == signal.SIGINT else UNFINISHED

    def _nodes(self, lock: JournalLock | None) -> RemoteNodes:
        transport = self._site.transport(self._folder.path / "agent.log" if lock is not None else None)
        me = introduction(lock.journal) if lock is not None else None
        return RemoteNodes(transport, Patience(connect_seconds=CONNECT_SECONDS), introduction=me)

    async def _look(self, nodes: RemoteNodes) -> Machine:
        await nodes.set_nodes(self._site.addresses)
        hellos = await asyncio.gather(*(self._hello(nodes, name) for name in self._site.addresses))
        found = self._site.machine({hello.node: hello.gpus for hello in hellos})
        _require_room(self._study.trials, found)
        return found

    async def _hello(self, nodes: RemoteNodes, name: str) -> HelloResult:
        """Of an agent, once it has started. Raises GandivaError."""
        until = time.monotonic() + self._site.agent_seconds
        while True:
            try:
                return await nodes.hello(name, CONNECT_SECONDS)
            except NodeError as error:
                if time.monotonic() >= until:
                    message = f"the agent of node {name} does not start: {error.message}"
                    raise GandivaError(message) from error
                log.warning("node %s: its agent does not start, and is started again: %s", name, error)
            await asyncio.sleep(AGAIN_SECONDS)

    def _trials(self, found: Machine) -> LocalCluster:
        """All trials, those that earlier supervisors have begun among them."""
        launcher = self._site.launcher(self._folder.trials, found.uuids)
        cluster = LocalCluster(self._folder.trials, found.nodes, launcher)
        known = {trial.spec.name: trial for trial in cluster.trials.values()}
        specs = {spec.name: spec for spec in self._study.trials}
        others = []
        for spec in self._study.trials:
            if (trial := known.get(spec.name)) is None:
                cluster.submit(spec)
            elif trial.spec.command != spec.command and not self._retries(trial):
                others.append(spec.name)
        if others:
            text = "begun with another command than the file has now, and left as it was"
            print(f"{text}: {some(others)}", file=sys.stderr)
        for number, trial in list(cluster.trials.items()):
            if self._retries(trial):
                cluster.again(number, specs.get(trial.spec.name))
        return cluster

    def _retries(self, trial: Trial) -> bool:
        return trial.state is JobState.ENDED and trial.state_name in self._wishes.retry

    async def _serve(self, journal: Journal, cluster: LocalCluster, nodes: RemoteNodes) -> None:
        settings = self._study.settings
        assembly = Assembly(journal.path)
        socket = self._site.run_dir / "api"
        api = assembly.serve(f"unix:{socket}", settings.loop.interval_seconds)
        try:
            here = Supervisor(
                host=os.uname().nodename, pid=os.getpid(), socket=str(socket), started=time.time()
            )
            self._folder.write_note(here)
            self._say_what_runs(cluster)

            def publish(cycle: Cycle) -> None:
                assembly.publisher.completed(cycle)
                self._completed(cycle)

            async with assembly.leading(
                settings, make_policy(settings.policy), cluster, nodes, journal, publish
            ) as controller:
                cluster.on_change = lambda trial: self._has_changed(controller, trial)
                self._handle_signals(controller)
                if self._open:
                    self._watch_input(controller)
                await controller.run(self._stop)
                if self._signal:
                    again = "; Ctrl-C kills them as they are" if self._signal == signal.SIGINT else ""
                    print(f"saving the trials{again}:", flush=True)
                    await self._put_by(controller, cluster)
                await controller.executor.drain(1.0)
        finally:
            api.stop()
            with suppress(GandivaError):
                await cluster.close()

    async def _put_by(self, controller: Controller, cluster: LocalCluster) -> None:
        try:
            most = min(self._seconds_left(), PUT_BY_SECONDS)
            await put_by(controller, most, lambda line: print(f"  {line}", flush=True))
        except (GandivaError, OSError) as error:
            print(f"the trials cannot be saved ({error}), and are stopped", file=sys.stderr, flush=True)
            await cluster.stop_all()

    def _say_what_runs(self, cluster: LocalCluster) -> None:
        trials = cluster.trials.values()
        self._progress.begin(trials)
        over = sum(trial.state is JobState.ENDED for trial in trials)
        gone_on = f", {over} of them over" if over else ""
        print(
            f"study {self._study.name}: {len(trials)} trial{'s' * (len(trials) != 1)}{gone_on}, policy "
            f"{self._study.settings.policy.name}\n"
            f"watch it with: gandiva top --study {self._folder.path}",
            flush=True,
        )

    def _has_changed(self, controller: Controller, trial: Trial) -> None:
        self._changed[trial.id] = trial
        if trial.state not in ALLOCATED:  # else by an operation, whose end is seen at once
            controller.pace.poke()

    def _completed(self, cycle: Cycle) -> None:
        assert self._cluster is not None
        self._look_at_asked(self._cluster)
        changed, self._changed = self._changed, {}
        self._progress.completed(cycle, changed.values(), self._cluster.trials.values())
        if self._cluster.over and not cycle.snapshot.jobs and not self._open:
            self._stop.set()
        elif self._ends_at is not None and not self._signal and self._ends_soon(cycle):
            self._ends_at = ends_at(self._environ) or self._ends_at  # its user may have changed the limit
            if self._ends_soon(cycle):
                print(f"the allocation ends in {self._seconds_left():.0f} s", flush=True)
                self._end(signal.SIGTERM)

    def _ends_soon(self, cycle: Cycle) -> bool:
        return self._seconds_left() < margin_seconds(cycle.snapshot)

    def _seconds_left(self) -> float:
        """Of the allocation; infinity where nothing ends."""
        return math.inf if self._ends_at is None else self._ends_at - time.time() - LAST_SECONDS

    def _look_at_asked(self, cluster: LocalCluster) -> None:
        for asked in take(self._folder):
            if isinstance(asked, Asked):
                self._carry_out(asked, cluster)
            else:
                answer(self._folder, asked, self._submit(asked, cluster))

    def _submit(self, asked: Submission, cluster: LocalCluster) -> int | str:
        """The number of the trial, or why there is none. Once more it is the same trial: the supervisor may
        have been killed before it answered, and a program that is run again submits its trials again."""
        try:
            spec = submitted(self._study, self._folder.path, asked.submit, len(cluster.trials) + 1)
            for trial in cluster.trials.values():
                if trial.spec.name == spec.name:
                    same = trial.spec.command == spec.command
                    return trial.number if same else f"trial {spec.name} is there, with another command"
            _require_room([spec], self._found)
            return cluster.submit(spec)
        except StudyError as error:
            return str(error)
        except OSError as error:
            return f"cannot write the trial into {self._folder.trials}: {error.strerror}"
        except Exception as error:  # those that wait behind it have their turn
            log.exception("file %s.json: cannot be carried out: %r", asked.request, asked.submit)
            return f"{error!r}: {self._folder.log} says more"

    def _carry_out(self, asked: Asked, cluster: LocalCluster) -> None:
        trial = cluster.trials.get(JobId(asked.trial))
        if trial is None or trial.state is JobState.ENDED:
            return
        if (word := asked.word(trial.spec.word)) != trial.spec.word:
            cluster.say(trial.id, word)
        if asked.stop:
            cluster.cancel(trial.id, "")

    def _handle_signals(self, controller: Controller) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGCHLD, self._poked, controller)

    def _poked(self, controller: Controller) -> None:
        """The end of a trial is seen at once, and what is asked: who asks sends SIGCHLD, which harms no other
        process that may have our number by then."""
        assert self._cluster is not None
        self._look_at_asked(self._cluster)
        controller.pace.poke()

    def _watch_input(self, controller: Controller) -> None:
        """It ends when whoever has opened the study closes it, or is gone."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            with suppress(OSError):
                if os.read(0, 4096):
                    return
            loop.remove_reader(0)
            self._open = False
            controller.pace.poke()

        try:
            loop.add_reader(0, read)
        except OSError:  # a file, /dev/null, or nothing
            self._open = False

    def _end(self, number: int) -> None:
        if self._signal and number == signal.SIGINT and self._cluster is not None:
            self._cluster.kill()
        self._signal = self._signal or number
        self._stop.set()


def _require_room(trials: Sequence[TrialSpec], found: Machine) -> None:
    """Raises StudyError for a trial that would wait for ever."""
    nodes = found.nodes
    gpus, cpus = sum(len(node.gpus) for node in nodes), max(node.cpus for node in nodes)
    memory_bytes = max(node.memory_bytes for node in nodes)
    models = {node.gpus[0].model for node in nodes}
    for trial in trials:
        asked = read_message(trial.request)
        least = asked.min_gpus or asked.wanted_gpus
        if least > gpus:
            raise StudyError(f"trial {trial.name}: gpus: it needs {least}, and there are {gpus}")
        if not found.fits(least):
            raise StudyError(
                f"trial {trial.name}: gpus: it needs {least}, and no nodes have so many with the same "
                "numbers on each: ask Slurm for whole nodes"
            )
        if asked.gpu_types and models.isdisjoint(asked.gpu_types):
            raise StudyError(f"trial {trial.name}: gpu_types: the GPUs here are {', '.join(sorted(models))}")
        if trial.cpus > cpus:
            raise StudyError(f"trial {trial.name}: cpus: it needs {trial.cpus}, and there are {cpus}")
        if trial.memory_bytes > memory_bytes:
            there = f"{memory_bytes / 2**30:.0f} GiB"
            raise StudyError(f"trial {trial.name}: memory: it needs more than the {there} that there are")


def supervise(study: Study, folder: Path, wishes: Wishes, environ: Mapping[str, str]) -> int:
    """Run a study. Returns the exit status. Raises GandivaError."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.raiseExceptions = False  # what a full disk keeps from the log is not said in its place
    logging.basicConfig(
        level=logging.INFO,
        filename=StudyFolder(folder).log,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )

    async def run() -> int:
        return await StudyRun(study, folder, wishes, environ).run()

    return asyncio.run(run())


def dry_run(study: Study, folder: Path, wishes: Wishes, environ: Mapping[str, str]) -> Machine:
    """What it would run on. Raises GandivaError, as `supervise` would."""

    async def look() -> Machine:
        return await StudyRun(study, folder, wishes, environ).look()

    return asyncio.run(look())
