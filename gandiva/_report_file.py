# SPDX-License-Identifier: MIT
"""What a training says of itself, a line of JSON for each `session.report()`; docs/interfaces.md."""

import json
import math
import os
import warnings
from typing import Any, Dict, List, Mapping, Optional

from . import _environment

FILE_NAME = "GANDIVA_REPORT"
"""The environment variable with the file's path."""


class Reporter:
    """Writes the lines of one process. Never raises: a full disk is no reason to end a training."""

    def __init__(self, environ: Mapping[str, str], rank: Optional[int] = None) -> None:
        """`rank`: None: as the environment says. Only rank 0 reports."""
        self._descriptor: Optional[int] = None
        self._warned = False
        # A job that is submitted from within a trial inherits its variables.
        foreign = environ.get("GANDIVA_TRIAL") and not _environment.trial(environ)
        path = "" if foreign else environ.get(FILE_NAME, "")
        try:
            first = (_environment.place(environ).rank if rank is None else rank) == 0
            if path and first:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (OSError, ValueError) as error:
            self._warn(error)

    def write(self, step: float, numbers: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            return
        try:
            said = {name: _plain(number) for name, number in {"step": step, **numbers}.items()}
            # In one piece: processes that write at the same time do not mix their lines.
            os.write(self._descriptor, (json.dumps(said) + "\n").encode())
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            why = f"{_environment.message_prefix()}the training's report is incomplete: {error}"
            warnings.warn(why, RuntimeWarning, stacklevel=4)


def _plain(number: Any) -> Any:
    """As JSON has it, which has no NaN and no infinity: these are strings."""
    number = number if type(number) in (int, float) else float(number)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def parse(lines: bytes, known: List[Dict[str, float]]) -> None:
    """Add what these lines say to what is known. A training that has begun anew says a step again: what it
    says then counts."""
    for line in lines.splitlines():
        try:
            said = {str(name): _number(number) for name, number in json.loads(line).items()}
            step = said["step"]
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            continue  # cut off on a full disk
        while known and known[-1]["step"] >= step:
            known.pop()
        known.append(said)


def _number(number: Any) -> float:
    return number if type(number) in (int, float) else float(number)
