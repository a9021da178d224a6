# SPDX-License-Identifier: MIT
"""The jobs of a search for hyper-parameters, for the program that drives it.

    from gandiva.trials import Search

    search = Search("lr")
    for rate in (0.1, 0.01, 0.001):
        search.submit("--gres=gpu:1", "train.sbatch", str(rate))
    ...
    search.set_priority(job, 4)
    search.set_exclusive(best_two)
    search.stop(worst)

It runs Slurm's own commands as the user who runs it: what a user may not do with a job, Slurm refuses. What
is said of a job is a word in its comment in Slurm, which its user may change at any time and the controller
reads. Standard library only.
"""

import json
import re
import subprocess
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence

from gandiva._processes import slurm_environment

PREFIX = "gandiva-trial:"
MIN_PRIORITY, MAX_PRIORITY = 0.01, 100.0
_REQUEST = "gandiva:"
_WORD = re.compile(rf"(?:(?<=^)|(?<=[\s;])){PREFIX}[a-z0-9.,=]{{0,64}}(?=$|[\s;])")
_NAME = re.compile(r"[A-Za-z0-9._+-]{1,64}")
_JOB = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")
_DEADLINE_SECONDS = 60.0


class TrialsError(Exception):
    """One of Slurm's commands refused or failed; the text says which and why."""


class Trial(NamedTuple):
    """A job of a search, as Slurm has it now."""

    job: str
    """As Slurm's commands name it: `12`, or `12_3` for a task of an array."""
    job_id: int
    search: str
    state: str
    """Slurm's, such as RUNNING."""
    priority: float = 1.0
    exclusive: bool = False
    comment: str = ""
    """All of it."""


class Search:
    """The search of this name of the user who runs this. Raises ValueError where it cannot be a name."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name: 1 to 64 letters, digits and . _ + -")
        self.name = name

    def submit(self, *arguments: str) -> str:
        """`sbatch` with these arguments, as a trial of this search; returns the job. Raises TrialsError."""
        # sbatch takes its user's environment along: that is what the job is to have.
        asked = ("sbatch", "--parsable", "--gandiva", f"--gandiva-search={self.name}", *arguments)
        return _run(asked, with_all=True).strip().partition(";")[0]

    def trials(self) -> List[Trial]:
        """Its jobs that are not over, in the order of their numbers. Raises TrialsError."""
        return [trial for trial in trials() if trial.search == self.name]

    def set_priority(self, job: str, priority: float) -> None:
        """From now on the job has `priority` turns (0.01 to 100) of the search for each one of a job with
        priority 1. Raises TrialsError, ValueError."""
        trial = self._one(job)
        say(trial, priority, exclusive=trial.exclusive)

    def set_exclusive(self, jobs: Iterable[str]) -> None:
        """From now on these jobs come first in the search, and no others. Raises TrialsError."""
        mine = self.trials()
        wanted = set(jobs)
        missing = wanted - {trial.job for trial in mine}
        if missing:
            raise TrialsError(f"search {self.name} has no job {', '.join(sorted(missing))} that is not over")
        # Those that are exclusive no more first: there are never more than wanted.
        for trial in sorted(mine, key=lambda trial: trial.job in wanted):
            if trial.exclusive != (trial.job in wanted):
                say(trial, trial.priority, exclusive=trial.job in wanted)

    def top(self, count: int) -> List[Trial]:
        """The jobs with the highest priorities, of equal ones the older. Raises TrialsError."""
        return sorted(self.trials(), key=lambda trial: (-trial.priority, trial.job_id))[:count]

    def stop(self, job: str) -> None:
        """`scancel`, where the job is one of this search. Raises TrialsError."""
        _run(("scancel", self._one(job).job))

    def _one(self, job: str) -> Trial:
        trial = find(job)
        if trial.search != self.name:
            raise TrialsError(f"job {job} is no trial of search {self.name}")
        return trial


def trials() -> List[Trial]:
    """All jobs of the user's searches that are not over. Raises TrialsError."""
    return _read(_run(("squeue", "--me", "--json")))


def find(job: str) -> Trial:
    """One job of a search. Raises TrialsError, also where it is none."""
    if not _JOB.fullmatch(job):
        raise TrialsError(f"{job!r} is not a job: 12, or 12_3 for a task of an array")
    found = _read(_run(("squeue", "--json", f"--jobs={job}")))
    for trial in found:
        if job in (trial.job, str(trial.job_id)):
            return trial
    raise TrialsError(f"job {job} is over, or was not submitted with --gandiva-search")


def say(trial: Trial, priority: float, *, exclusive: bool) -> None:
    """Write into the job's comment what it is to its search; the rest of the comment stays. Raises
    TrialsError, ValueError."""
    comment = with_word(trial.comment, priority, exclusive=exclusive)
    _run(("scontrol", "update", f"JobId={trial.job}", f"Comment={comment}"))


def with_word(comment: str, priority: float, *, exclusive: bool) -> str:
    """A comment that says this, and the rest of what it said. Raises ValueError: no such priority."""
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority {priority!r}: from {MIN_PRIORITY:g} to {MAX_PRIORITY:g}")
    number = f"{priority:.4f}".rstrip("0").rstrip(".")
    words = ([f"priority={number}"] if priority != 1 else []) + (["exclusive"] if exclusive else [])
    rest = re.sub(r"^[\s;]+|[\s;]+$", "", _WORD.sub("", comment))
    word = PREFIX + ",".join(words) if words else ""
    return "; ".join(part for part in (word, re.sub(r"(\s*;\s*){2,}", "; ", rest)) if part)


def _read(reply: str) -> List[Trial]:
    try:
        jobs = json.loads(reply)["jobs"]
        found = [_trial(job) for job in jobs]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TrialsError(f"squeue's answer makes no sense: {error!r}"[:300]) from error
    return sorted((trial for trial in found if trial is not None), key=lambda trial: trial.job_id)


def _trial(job: Any) -> Optional[Trial]:
    request = str(job.get("admin_comment", ""))
    if not request.startswith(_REQUEST):
        return None
    asked = json.loads(request[len(_REQUEST) :])
    search = asked.get("search")
    if not isinstance(search, str) or not search:
        return None
    comment, states = str(job.get("comment", "")), job["job_state"]
    word = _WORD.search(comment)
    said = word.group()[len(PREFIX) :].split(",") if word else []
    priorities = [item[len("priority=") :] for item in said if item.startswith("priority=")]
    number = int(job["job_id"])
    known = priorities and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,4})?", priorities[0])
    priority = float(priorities[0]) if known else 1.0
    state = states if isinstance(states, str) else str(states[0])
    return Trial(_name(job, number), number, search, state, priority, "exclusive" in said, comment)


def _name(job: Any, number: int) -> str:
    """To scontrol the number of an array's last task is all of the array."""
    array, task = (_number(job.get(field)) for field in ("array_job_id", "array_task_id"))
    return f"{array}_{task}" if array and task is not None else str(number)


def _number(value: Any) -> Optional[int]:
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") else None
    return None if value is None else int(value)


def _run(command: Sequence[str], *, with_all: bool = False) -> str:
    """What a command prints. `with_all`: in the whole environment of this process."""
    env = None if with_all else slurm_environment()
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise TrialsError(f"{command[0]} did not answer within {_DEADLINE_SECONDS:g} s") from None
    except OSError as error:
        raise TrialsError(
            f"cannot run {command[0]}: {error.strerror}; run this where Slurm's commands are"
        ) from None
    if done.returncode:
        why = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise TrialsError(f"{' '.join(command[:3])}: {why[-500:] or f'exit status {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")
