# SPDX-License-Identifier: GPL-2.0-or-later
"""Trials: a move changes something for some jobs, their rates are measured, and the change is kept or undone
(SPEC 1.4, 1.7).

One trial per job at a time: moves leave jobs of an open trial alone. A judged trial is remembered by what was
tried, such as the models and the configuration, until its cool-down is over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.model import JobId, Snapshot
from controller.policies.placement.draft import Draft
from controller.policies.settings import TrialSettings

NAME = "trials"
"""What the draft remembers them under."""
LOOK_SECONDS = 5.0
"""So often rates are waited for,"""
LOOK_FRACTION = 0.25
"""and the more seldom the longer the wait was: after such a part of it."""
PATIENCE = 10.0
"""A trial ends without rates after so many times its length."""


class Trial(NamedTuple):
    """One that is not judged yet, as it is remembered: JSON scalars and rows of them."""

    move: str
    what: str
    """What is tried: the result holds for all jobs with the same."""
    jobs: tuple[JobId, ...]
    before: tuple[float, ...]
    """Samples/s of each job before."""
    at: float
    """When it was begun, or its jobs last came together or parted."""
    seconds: float = 0.0
    """How long its jobs were as it wants them, up to `at`."""
    in_place: bool = False
    """They are since then."""


@dataclass
class _Memory:
    """What all moves together remember of their trials."""

    open: list[Trial] = field(default_factory=list)
    judged: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The score and when, by move and what was tried."""


def _recalled(draft: Draft) -> _Memory:
    memory = draft.recall(NAME, _Memory, _Memory())
    jobs = [job_id for trial in memory.open for job_id in trial.jobs]
    return memory if len(set(jobs)) == len(jobs) else _Memory()  # damaged


def jobs_on_trial(draft: Draft) -> set[JobId]:
    """Of all moves."""
    return {job_id for trial in _recalled(draft).open for job_id in trial.jobs}


class Trials:
    """The trials of one move within one plan: read from the draft, and written into it by `save`."""

    def __init__(self, snapshot: Snapshot, draft: Draft, move: str, settings: TrialSettings) -> None:
        self._snapshot, self._draft, self._move, self._settings = snapshot, draft, move, settings
        self._recalled = memory = _recalled(draft)
        self._judged = {
            key: (score, at)
            for key, (score, at) in memory.judged.items()
            if not key.startswith(f"{move} ") or snapshot.time < at + settings.cooldown_seconds
        }
        self._of = {job_id: trial for trial in memory.open for job_id in trial.jobs}
        """Open trials by job."""

    def _open(self) -> list[Trial]:
        return list(dict.fromkeys(self._of.values()))

    def busy(self, job_id: JobId) -> bool:
        """Whether the job is part of an open trial, of whatever move."""
        return job_id in self._of

    def of(self, job_id: JobId) -> Trial | None:
        """The open trial of this move that the job is part of."""
        trial = self._of.get(job_id)
        return trial if trial is not None and trial.move == self._move else None

    def score(self, what: str) -> float | None:
        """What this move gained when the same was tried last. None: not tried, or too long ago."""
        found = self._judged.get(f"{self._move} {what}")
        return None if found is None else found[0]

    def begin(self, what: str, before: Mapping[JobId, float]) -> None:
        """Try something on these jobs. `before`: their rates, in samples/s."""
        trial = Trial(self._move, what, tuple(before), tuple(before.values()), self._snapshot.time)
        self._of |= dict.fromkeys(trial.jobs, trial)

    def judge(self, what: str, score: float) -> None:
        """Remember what it gained."""
        self._judged[f"{self._move} {what}"] = (score, self._snapshot.time)

    def close(self, trial: Trial, score: float) -> None:
        """It is judged."""
        self.end(trial)
        self.judge(trial.what, score)

    def end(self, trial: Trial) -> None:
        """It is given up."""
        for job_id in trial.jobs:
            del self._of[job_id]

    def ripe(self, in_place: Callable[[Trial], bool]) -> list[Trial]:
        """Trials of this move that can be judged now. Those whose jobs have ended, or were long not as the
        trial wants them, are given up."""
        found: list[Trial] = []
        gone = {job_id for job_id in self._of if job_id not in self._snapshot.jobs}
        for trial in [trial for trial in self._open() if trial.move == self._move]:
            if not gone.isdisjoint(trial.jobs):
                self.end(trial)
                continue
            now = self._follow(trial, in_place(trial))
            if now is not None and now.in_place and self._is_ripe(now):
                found.append(now)
        return found

    def rates(self, trial: Trial) -> dict[JobId, float]:
        """Samples/s of its jobs as they are now. Empty: of one it is not known."""
        known = self._snapshot.job_rates
        if not all(job_id in known for job_id in trial.jobs):
            return {}
        return {job_id: known[job_id].samples_per_second for job_id in trial.jobs}

    def score_of(self, trial: Trial) -> float:
        """The sum of the rates of its jobs, each relative to that before. 0: of one it is not known."""
        rates = self.rates(trial).values()
        return sum((now / before for now, before in zip(rates, trial.before, strict=False)), 0.0)

    def is_gain(self, score: float) -> bool:
        """Whether it is worth the change."""
        return score > 1 + self._settings.gain_fraction

    def save(self) -> None:
        """Into the draft. The move is asked again once a result holds no more."""
        if own := [at for key, (_, at) in self._judged.items() if key.startswith(f"{self._move} ")]:
            self._draft.wake(min(own) + self._settings.cooldown_seconds)
        memory = _Memory(self._open(), self._judged)
        if memory != self._recalled:
            self._draft.remember(NAME, memory if memory != _Memory() else None)

    def _follow(self, trial: Trial, in_place: bool) -> Trial | None:
        """The trial as of now; None: given up."""
        now = self._snapshot.time
        if not in_place and not trial.in_place and now - trial.at > PATIENCE * self._settings.trial_seconds:
            self.end(trial)
            return None
        if in_place is trial.in_place:
            return trial
        seconds = trial.seconds + (now - trial.at if trial.in_place else 0.0)
        followed = trial._replace(at=now, seconds=seconds, in_place=in_place)
        self._of |= dict.fromkeys(trial.jobs, followed)
        return followed

    def _is_ripe(self, trial: Trial) -> bool:
        now, due = self._snapshot.time, trial.at + self._settings.trial_seconds - trial.seconds
        end = due + (PATIENCE - 1) * self._settings.trial_seconds
        if now < due:
            self._draft.wake(due)
        elif self.rates(trial) or now >= end:
            return True
        else:
            self._draft.wake(min(end, now + max(LOOK_SECONDS, LOOK_FRACTION * (now - trial.at))))
        return False
