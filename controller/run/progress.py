# SPDX-License-Identifier: GPL-2.0-or-later
"""What `gandiva run` says while it runs, and the table at its end."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from controller.cluster.port import JobState
from controller.cluster.request import read_message
from controller.cluster.trial import Trial, TrialSpec
from controller.journal import JobFilter, JournalReader
from controller.loop.loop import Cycle
from controller.model import IN_HOST_MEMORY, JobId, Phase
from controller.reports.table import Column, Layout, render
from controller.reports.text import clean, gpu_list
from controller.reports.units import duration
from controller.run.command import shown

SUMMARY_SECONDS = 60.0
MOST_LISTED = 50
"""Trials that a plan or a table shows one by one."""

Cells = Mapping[str, str]
_NAME: Column[Cells] = Column("Name", 28, lambda r: r["name"], left=True)
_PLANNED: tuple[Column[Cells], ...] = (
    _NAME,
    Column("GPUs", 9, lambda r: r["gpus"]),
    Column("Memory", 8, lambda r: r["memory"]),
    Column("Command", 48, lambda r: r["command"], left=True),
)
_ENDED: tuple[Column[Cells], ...] = (
    Column("Trial", 5, lambda r: r["number"]),
    _NAME,
    Column("State", 10, lambda r: r["state"]),
    Column("Exit", 4, lambda r: r["exit"]),
    Column("Starts", 6, lambda r: r["starts"]),
    Column("GPUTime", 11, lambda r: r["gpu"]),
)


class Progress:
    """Says when a trial starts for the first time or ends, and each minute how far the study is."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._states: dict[JobId, str] = {}
        self._summary_at = time.monotonic()

    def begin(self, trials: Iterable[Trial]) -> None:
        """What is known already is not said again."""
        self._states = {trial.id: _state(trial) for trial in trials}

    def completed(self, cycle: Cycle, changed: Iterable[Trial], trials: Iterable[Trial]) -> None:
        """`changed`: since the cycle before, of all `trials`."""
        for trial in changed:
            if (said := _state(trial)) and self._states.get(trial.id) != said:
                self._states[trial.id] = said
                self._say(f"{_clock()}  {trial.number:>4}  {clean(trial.spec.name)}: {said}")
        if time.monotonic() >= self._summary_at + SUMMARY_SECONDS:
            self._summary_at = time.monotonic()
            self._say(f"{_clock()}  {summary(cycle, trials)}")


def _state(trial: Trial) -> str:
    if trial.state is JobState.ENDED:
        code = f" (exit status {trial.exit_code})" if trial.state_name == "FAILED" else ""
        why = f": {clean(trial.reason)}" if trial.reason else ""
        return f"{trial.state_name.lower()}{code}{why}"
    if trial.binding and trial.start_time is not None:
        gpus = gpu_list(map(str, sorted(trial.gpus)))
        return f"{'starts again' if trial.restarts else 'starts'} on {gpus}"
    return ""


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def summary(cycle: Cycle, trials: Iterable[Trial]) -> str:
    """Such as `3 of 12 trials are over, 1 failed; 4 are on GPUs, 2 pause, 3 wait`."""
    all_trials = list(trials)
    ended = Counter(trial.state_name for trial in all_trials if trial.state is JobState.ENDED)
    phases = [job.phase for job in cycle.snapshot.jobs.values()]
    paused = sum(phase in IN_HOST_MEMORY for phase in phases)
    waiting = sum(phase in (Phase.QUEUED, Phase.INELIGIBLE) for phase in phases)
    on_gpus = len(phases) - paused - waiting
    bad = "".join(f", {count} {name.lower()}" for name, count in sorted(ended.items()) if name != "COMPLETED")
    return (
        f"{ended.total()} of {len(all_trials)} trials are over{bad}; {on_gpus} are on GPUs, {paused} pause, "
        f"{waiting} wait"
    )


def plan(trials: Sequence[TrialSpec], gpus: Sequence[str]) -> Iterator[str]:
    """What `--dry-run` prints."""
    yield f"{_many(len(trials), 'trial')} on {_many(len(gpus), 'GPU')} ({', '.join(gpus)})"
    rows = [_planned(trial) for trial in trials[:MOST_LISTED]]
    yield from render(rows, Layout(_PLANNED, True, None))
    if len(trials) > MOST_LISTED:
        yield f"and {len(trials) - MOST_LISTED} more"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _planned(trial: TrialSpec) -> dict[str, str]:
    asked = read_message(trial.request)
    gpus = f"{asked.min_gpus}-{asked.max_gpus}" if asked.max_gpus else str(asked.wanted_gpus)
    memory = f"{trial.memory_bytes / 2**30:.4g}GiB" if trial.memory_bytes else ""
    return {"name": trial.name, "gpus": gpus, "memory": memory, "command": shown(trial.command)}


def table(trials: Sequence[Trial], journal: JournalReader) -> Iterator[str]:
    """All trials with the time that they had GPUs; of many the newest."""
    now = time.time()
    had = {row.record.id: row.gpu_seconds for row in journal.jobs(JobFilter(limit=len(trials) + 1), now=now)}
    rows = [
        {
            "number": str(trial.number),
            "name": clean(trial.spec.name),
            "state": trial.state_name,
            "exit": str(trial.exit_code) if trial.state is JobState.ENDED else "",
            "starts": str(trial.restarts + (trial.start_time is not None)),
            "gpu": duration(had.get(trial.id, 0.0)),
        }
        for trial in trials
    ]
    yield from render(rows[-MOST_LISTED:], Layout(_ENDED, True, None))
    if len(rows) > MOST_LISTED:
        yield f"and {len(rows) - MOST_LISTED} more: gandiva report --study"
