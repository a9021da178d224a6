# SPDX-License-Identifier: GPL-2.0-or-later
"""Rates in a file: those that `gandiva rates import` declares, beside the journal, and what it exports."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from controller.errors import GandivaError
from controller.model import Configuration, Provenance, Rate
from controller.observe.rates import RATE, Table
from controller.settings.base import first_wrong, key_twice, read_file

MAX_FILE_BYTES = 1 << 26
MAX_RATES = 200_000

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._+:-]{1,64}$")]
_Type = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._+: -]{0,64}$")]
_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RatesFileError(GandivaError):
    """The file is none of rates, or cannot be read or written."""


class FileRate(BaseModel):
    """One rate in a file: the model, and what `Configuration` and `Rate` have."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    model: _Name
    gpu_type: _Type
    gpus: _Count
    nodes: _Count = 1
    models_beside: Annotated[tuple[_Name, ...], Field(max_length=64, strict=False)] = ()
    samples_per_second: Annotated[float, Field(gt=0, lt=1e12)]
    window_seconds: _Time = 0.0
    measured_at: _Time = 0.0
    mini_batches: Annotated[int, Field(ge=0)] = 0
    provenance: Annotated[Provenance, Field(strict=False)] = Provenance.DECLARED


class RatesFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    gandiva_rates: Literal[1] = 1
    rates: Annotated[tuple[FileRate, ...], Field(max_length=MAX_RATES)] = ()


def declared_path(journal: Path) -> Path:
    """Where the declared rates of the controller with this journal are."""
    return journal.with_name("rates.json")


def read_rates(path: Path) -> dict[str, dict[Configuration, Rate]]:
    """By model. Raises RatesFileError."""
    raw = read_file(path, MAX_FILE_BYTES, RatesFileError)
    try:
        rates, wrong = RatesFile.model_validate_json(raw).rates, key_twice(raw)
    except ValidationError as error:
        rates, wrong = (), first_wrong(error)
    if wrong:
        raise RatesFileError(f"{path}: not a file of rates: {wrong}")
    table: dict[str, dict[Configuration, Rate]] = {}
    for number, each in enumerate(rates):
        where_to = Configuration(each.gpu_type, each.gpus, each.nodes, tuple(sorted(each.models_beside)))
        known = table.setdefault(each.model, {})
        if where_to in known:
            words = f"a rate of {each.model} in the same configuration stands before it"
            raise RatesFileError(f"{path}: rates[{number}]: {words}")
        known[where_to] = Rate(*RATE(each))
    return table


def rates_json(rates: Iterable[tuple[str, Configuration, Rate]]) -> str:
    """The content of a file. Raises RatesFileError where a rate has a name that files do not have."""
    try:
        found = [FileRate(model=model, **asdict(where), **asdict(rate)) for model, where, rate in rates]
        return RatesFile(rates=tuple(found)).model_dump_json(indent=1) + "\n"
    except ValidationError as error:
        raise RatesFileError(f"a rate cannot be written: {first_wrong(error)}") from None


class DeclaredFile:
    """The declared rates of a running controller: read when the file is another one than before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> Table | None:
        """What is declared now; None: the same as before. A file that is not there declares nothing. Raises
        RatesFileError, once for each such file: what was declared before stays."""
        try:
            status = self.path.stat()
            found = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            found = None
        except OSError as error:
            raise RatesFileError(f"cannot look at {self.path}: {error.strerror}") from error
        if found == self._seen:
            return None
        self._seen = found
        return read_rates(self.path) if found else {}
