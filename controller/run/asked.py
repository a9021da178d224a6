# SPDX-License-Identifier: GPL-2.0-or-later
"""What users ask of the trials of a study, new ones among it: a file each in the study's folder, so that it
works while nothing supervises the study, and from other hosts. docs/interfaces.md."""

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.agent.files import write_atomically
from controller.cluster.request import InvalidRequest
from controller.cluster.trial import Then, Trial, read_trial
from controller.errors import GandivaError
from controller.model import Search
from controller.observe.requests import parse_trial
from controller.run.folder import StudyFolder
from controller.settings.base import first_wrong
from gandiva.trials import MAX_PRIORITY, MIN_PRIORITY, with_word

log = logging.getLogger(__name__)


class Asked(BaseModel):
    """Of one trial. None: as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trial: Annotated[int, Field(gt=0)]
    """Its number."""
    priority: Annotated[float, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    exclusive: bool | None = None
    stop: bool = False

    def word(self, before: str) -> str:
        """What the trial's word (`TrialSpec.word`) becomes of what it was."""
        if self.priority is None and self.exclusive is None:
            return before
        known = meaning(before)
        priority = known.priority if self.priority is None else self.priority
        exclusive = known.exclusive if self.exclusive is None else self.exclusive
        return with_word("", priority, exclusive=exclusive)


class Submission(BaseModel):
    """A trial that is to be there from now on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    request: str
    """By this the answer is found: the name of the request's file."""
    submit: dict[str, Any]
    """As a table of `[[trials]]`."""


def meaning(word: str) -> Search:
    """Priority and exclusive, by a trial's word. What cannot be read counts as not said."""
    with suppress(InvalidRequest):
        return parse_trial(word, "") if word else Search("")
    return Search("")


def ask(folder: StudyFolder, asked: Asked) -> None:
    """Raises GandivaError."""
    path = folder.asked / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    try:
        folder.asked.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, asked.model_dump_json(exclude_defaults=True) + "\n", 0o600)
    except OSError as error:
        raise GandivaError(f"cannot write {path}: {error.strerror}") from error


def answer(folder: StudyFolder, submission: Submission, outcome: int | str) -> None:
    """Say which trial it has become, or why none. What cannot be written is in the log."""
    said = {"refused": outcome} if isinstance(outcome, str) else {"trial": outcome}
    try:
        folder.answers.mkdir(mode=0o700, exist_ok=True)
        write_atomically(folder.answers / f"{submission.request}.json", json.dumps(said) + "\n", 0o600)
    except OSError as error:
        log.error("file %s cannot be written into: %s", folder.answers, error.strerror)


def take(folder: StudyFolder) -> Iterator[Asked | Submission]:
    """What was asked, in order. A request is removed when the caller comes for the next one: one that was not
    carried out when the supervisor was killed is there for the next supervisor."""
    for path in _files(folder):
        try:
            yield _read(path)
        except (OSError, ValidationError) as error:
            why = first_wrong(error) if isinstance(error, ValidationError) else error.strerror
            log.warning("file %s says nothing to be done, and is removed: %s", path, why)
        with suppress(OSError):
            path.unlink()


def trials(folder: StudyFolder) -> dict[int, Trial]:
    """Those of the study, as they are once all that is asked has been carried out. Raises GandivaError."""
    waiting = []
    for path in _files(folder):  # before the trials: what is carried out meanwhile is in these
        with suppress(OSError, ValidationError):
            waiting.append(_read(path))
    known = {trial.number: trial for trial in map(read_trial, sorted(folder.trials.glob("*.json")))}
    for asked in waiting:
        if isinstance(asked, Asked) and (trial := known.get(asked.trial)):
            spec = trial.spec.model_copy(update={"word": asked.word(trial.spec.word)})
            then = Then.CANCELLED if asked.stop else trial.then
            known[trial.number] = trial.model_copy(update={"spec": spec, "then": then})
    return known


def _files(folder: StudyFolder) -> list[Path]:
    """In the order of their names, which is that in time."""
    try:
        with os.scandir(folder.asked) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.name.endswith(".json"))
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("file %s cannot be read: %s", folder.asked, error.strerror)
        return []


def _read(path: Path) -> Asked | Submission:
    raw = path.read_bytes()
    with suppress(ValueError, RecursionError):
        said = json.loads(raw)
        if isinstance(said, dict) and "submit" in said:
            return Submission.model_validate({**said, "request": path.stem})
    return Asked.model_validate_json(raw)
