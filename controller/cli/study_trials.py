# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva trials … --study DIR`: what is asked of the trials of `gandiva run`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from controller.cli.study import study_folder
from controller.cluster.port import JobState
from controller.cluster.trial import Then
from controller.errors import GandivaError
from controller.run.asked import Asked, ask, meaning, trials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controller.cluster.trial import Trial


def set_priority(args: argparse.Namespace) -> None:
    (trial,) = _found(args, trials(study_folder(args)), [args.job])
    ask(study_folder(args), Asked(trial=trial.number, priority=args.priority))
    print(f"trial {_named(trial)} of study {args.study}: priority {args.priority:g}")


def set_exclusive(args: argparse.Namespace, words: list[str]) -> None:
    """The trials of these words, or with --top the first ones; and no others."""
    folder = study_folder(args)
    known = trials(folder)
    chosen = _found(args, known, words)
    going_on = [trial for trial in known.values() if _goes_on(trial)]
    if args.top is not None:
        chosen = sorted(going_on, key=lambda t: (-meaning(t.spec.word).priority, t.number))[: args.top]
    numbers = {trial.number for trial in chosen}
    # Those that are exclusive no more first: there are never more than wanted.
    for trial in sorted(going_on, key=lambda trial: trial.number in numbers):
        if meaning(trial.spec.word).exclusive != (wanted := trial.number in numbers):
            ask(folder, Asked(trial=trial.number, exclusive=wanted))
    print(f"study {args.study}: exclusive: {', '.join(map(_named, chosen)) or 'none'}")


def stop(args: argparse.Namespace) -> None:
    folder = study_folder(args)
    for trial in _found(args, trials(folder), args.jobs):
        ask(folder, Asked(trial=trial.number, stop=True))
        print(f"trial {_named(trial)} of study {args.study}: stopped")


def as_asked(args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials as `trials list` has them, with what was asked of them since."""
    known = trials(study_folder(args))
    for row in rows:
        if trial := known.get(row["job_id"]):
            said = meaning(trial.spec.word)
            row |= {"priority": said.priority, "exclusive": said.exclusive}
    return sorted(rows, key=lambda row: (not row["exclusive"], -row["priority"], row["job_id"]))


def _found(args: argparse.Namespace, known: Mapping[int, Trial], words: list[str]) -> list[Trial]:
    """By number or name. Raises GandivaError, also where one is over."""
    names = {trial.spec.name: trial.number for trial in known.values()}
    found = []
    for word in words:
        trial = known.get(_number(word, known, names))
        if trial is None:
            raise GandivaError(f"study {args.study} has no trial {word}")
        if trial.state is JobState.ENDED:
            raise GandivaError(f"trial {_named(trial)} of study {args.study} is over: {trial.state_name}")
        found.append(trial)
    return found


def numbers(args: argparse.Namespace, text: str) -> list[int]:
    """Trials by number or name, with commas, which names have too. Raises GandivaError."""
    known = trials(study_folder(args))
    names = {trial.spec.name: trial.number for trial in known.values()}
    parts, found = text.split(","), list[int]()
    while parts:
        ends = range(len(parts), 0, -1)
        numbers = ((_number(",".join(parts[:end]), known, names), end) for end in ends)
        number, end = next((each for each in numbers if each[0]), (0, 0))
        if not number:
            raise GandivaError(f"study {args.study} has no trial {','.join(parts)}")
        found.append(number)
        del parts[:end]
    return found


def _number(word: str, known: Mapping[int, Trial], names: Mapping[str, int]) -> int:
    """0: no trial has this name. A number stands for itself, unless only a name is like it."""
    if word.isdecimal() and (int(word) in known or word not in names):
        return int(word)
    return names.get(word, 0)


def _goes_on(trial: Trial) -> bool:
    return trial.state is not JobState.ENDED and trial.then is not Then.CANCELLED


def _named(trial: Trial) -> str:
    return f"{trial.number} ({trial.spec.name})"
