# SPDX-License-Identifier: GPL-2.0-or-later
"""The folder of a study: its trials, journal and log, and a note of its supervisor, the process of `gandiva
run`, while that lives."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.agent.files import text_of, write_atomically
from controller.cluster.steps import STEP
from controller.errors import GandivaError
from controller.model.value import value
from controller.settings.base import first_wrong

JOURNAL = "journal.sqlite"


class Supervisor(BaseModel):
    """Who serves a study, and where."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    host: str
    """As `os.uname` names it."""
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    socket: str
    """The path of the API's UNIX socket."""
    started: float
    """Seconds since the epoch."""

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, on this host."""
        return self.host == os.uname().nodename

    @property
    def journal(self) -> Path:
        """On its host, beside the socket. Not there after another boot."""
        return Path(self.socket).with_name(JOURNAL)


@value
class StudyFolder:
    """The files of the study in a folder, which need not be there."""

    path: Path

    @property
    def trials(self) -> Path:
        """The folder of N.json, N.out and N.report for each trial N."""
        return self.path / "trials"

    def step(self, trial: int) -> str | None:
        """The job step that a trial was last, such as `77.4`; None: none, as far as is known."""
        text = text_of(self.trials / f"{trial}.step")
        return text.strip() if STEP.fullmatch(text) else None

    @property
    def journal(self) -> Path:
        """The copy for other hosts and other times, a minute old at most while its supervisor lives."""
        return self.path / JOURNAL

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def asked(self) -> Path:
        """The folder of what users ask of trials."""
        return self.path / "asked"

    @property
    def answers(self) -> Path:
        """The folder of what becomes of trials that were submitted."""
        return self.path / "answers"

    @property
    def note(self) -> Path:
        """Says who supervises the study."""
        return self.path / "supervisor.json"

    def write_note(self, supervisor: Supervisor) -> None:
        """Raises GandivaError."""
        try:
            write_atomically(self.note, supervisor.model_dump_json() + "\n", 0o600)
        except OSError as error:
            raise GandivaError(f"cannot write {self.note}: {error.strerror}") from error

    def supervisor(self) -> Supervisor | None:
        """By the note; None: there is none. Raises GandivaError."""
        try:
            return Supervisor.model_validate_json(self.note.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise GandivaError(f"cannot read {self.note}: {error.strerror}") from error
        except ValidationError as error:
            raise GandivaError(
                f"{self.note} does not say who supervises the study ({first_wrong(error)}): remove it if no "
                "'gandiva run' does"
            ) from error

    def remove_note(self) -> None:
        """Raises GandivaError; there may be none."""
        try:
            self.note.unlink(missing_ok=True)
        except OSError as error:
            raise GandivaError(f"cannot remove {self.note}: {error.strerror}") from error


def living(supervisor: Supervisor) -> bool:
    """Whether it runs on this host. A process of another user is not it: only its own user reads the note."""
    if not supervisor.is_here:
        return False
    try:
        os.kill(supervisor.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
