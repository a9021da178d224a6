# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading traces strictly: the first thing that is wrong ends it, with its line and column."""

import csv
import gzip
import io
import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

from controller.errors import GandivaError

MAX_LINE_CHARACTERS = 65536
MAX_GPUS = 1_000_000
MAX_SECONDS = 1e11
UNREADABLE = (OSError, EOFError, zlib.error)
"""What reading a file may raise, a packed one that is damaged included."""
_BAD_BYTE = re.compile("[\udc80-\udcff]")
"""What a byte that is no UTF-8 becomes (`surrogateescape`)."""


class TraceError(GandivaError):
    """A trace cannot be used. Nothing was written."""

    def __init__(self, path: Path, line: int, column: str, problem: str) -> None:
        place = f"line {line}" + (f", column `{column}`" if column else "")
        super().__init__(f"{path}: {place}: {problem}")
        self.line = line
        self.column = column


class NoJobs(TraceError):
    """There is none in it, or none that counts."""


LeftOut: TypeAlias = Counter[str]
"""How many rows of a trace do not count, by what they are, such as `without GPUs`."""


def in_words(left_out: LeftOut) -> str:
    """`3 without GPUs, 1 that never ran`; empty: none."""
    return ", ".join(f"{count} {what}" for what, count in left_out.items())


@dataclass(frozen=True, slots=True)
class TraceJob:
    id: str
    """As the trace names it."""
    submit_seconds: float
    """Since the first submission or the trace's own zero."""
    gpus: int
    """0: it does not count."""
    duration_seconds: float | None
    """On its GPUs, undisturbed. None: it follows from steps and a table of throughputs."""
    line: int
    """Of the file, for messages."""
    model: str = ""
    user: str = "user"
    account: str = ""
    qos: str = ""
    partition: str = ""
    """Empty: any."""
    steps: float | None = None
    weight: float = 1.0
    nodes: int | None = None
    gpu_types: tuple[str, ...] = ()
    may_pack: bool | None = None
    """None: its user did not say."""
    max_gpus: int | None = None
    """It may grow to so many."""
    has_store: bool | None = None
    """Its sessions have a checkpoint store. None: as the settings say."""
    gpus_column: str = "gpus"
    left_out: str = ""
    """What it is, such as `that never ran`, if it does not count."""
    recorded: bool = False
    """It ran on a cluster: types, partitions and numbers of nodes that another one does not have do not count
    there."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Of the tables of one format."""

    delimiter: str
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    others: tuple[str, ...] | None = None
    """More that a file may have and that are not read: these of them are no misspelt ones. None: it has no
    more."""
    header: bool = True
    """False: the files have none, and the columns that are needed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; all getters raise TraceError."""

    path: Path
    line: int
    values: Mapping[str, str]

    def error(self, column: str, problem: str) -> TraceError:
        """To be raised."""
        return TraceError(self.path, self.line, column, problem)

    def text(self, column: str) -> str:
        """Not empty."""
        if not (value := self.word(column)):
            raise self.error(column, "is empty")
        return value

    def word(self, column: str, otherwise: str = "") -> str:
        """`otherwise` where it is empty or not there."""
        return self.values.get(column, "").strip() or otherwise

    def number(self, column: str, low: float = 0.0, high: float = MAX_SECONDS) -> float:
        """A finite number from low to high."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"{_shown(text)} is not a number") from None
        if not math.isfinite(value) or not low <= value <= high:
            raise self.error(column, f"{_shown(text)} is not from {low:g} to {high:g}")
        return value

    def count(self, column: str, low: int = 1) -> int:
        """A whole number from low to MAX_GPUS."""
        value = self.number(column, low, MAX_GPUS)
        if value != int(value):
            raise self.error(column, f"{_shown(self.values[column])} is not a whole number")
        return int(value)

    def choice(self, column: str) -> bool | None:
        """`yes` or `no`; None where it is empty or not there."""
        text = self.word(column)
        if text not in ("", "yes", "no"):
            raise self.error(column, f"{_shown(text)} is neither yes nor no")
        return text == "yes" if text else None

    def work(self, column: str, gpus_column: str, high: float = MAX_SECONDS) -> float:
        """How much a job did. 0: it never ran; without GPUs it is not read."""
        return self.number(column, 0.0, high) if self.count(gpus_column, 0) else 0.0


def without_number(gpu_type: str) -> str:
    """Without what Gandiva's configuration of Slurm adds to a type, the number of the GPU (`a100_0`), which a
    type of a site may look like (`a100_80`)."""
    return re.sub(r"_[0-9]{1,2}$", "", gpu_type)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    for number in itertools.count(1):
        try:
            line = file.readline(MAX_LINE_CHARACTERS + 1)
        except UNREADABLE as error:
            raise TraceError(path, number, "", f"cannot be read: {error}") from None
        if not line:
            return
        if len(line) > MAX_LINE_CHARACTERS:
            raise TraceError(path, number, "", f"longer than {MAX_LINE_CHARACTERS} characters")
        if "\0" in line:
            raise TraceError(path, number, "", "contains a zero byte: this is not a text file")
        if bad := _BAD_BYTE.search(line):
            problem = f"not UTF-8 text (byte 0x{ord(bad[0]) - 0xDC00:02x} after {bad.start()} characters)"
            raise TraceError(path, number, "", problem)
        yield line


def open_text(path: Path) -> IO[str]:
    """The file, unpacked where its name ends in .gz. Raises GandivaError.

    Text is decoded in large pieces, ahead of the line that is read: a byte that is no UTF-8 becomes a
    character of `_BAD_BYTE`, so that the line which has it is the one that is refused.
    """
    # (Spreadsheets begin with a mark that is no text.)
    encoding, errors = "utf-8-sig", "surrogateescape"
    try:
        if path.suffix == ".gz":
            return io.TextIOWrapper(gzip.open(path, "rb"), encoding, errors, newline="")
        return path.open(encoding=encoding, errors=errors, newline="")
    except OSError as error:
        raise GandivaError(f"cannot read the trace {path}: {error.strerror}") from error


def read_table(path: Path, columns: Columns, hint: str = "") -> Iterator[Row]:
    """Rows of a table. `hint`: the end of a message about its columns. Raises TraceError."""
    with open_text(path) as file:
        # Quotes have a meaning in files with commas only: sacct and Gavel write them as they are.
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if columns.delimiter == "," else csv.QUOTE_NONE
        reader = csv.reader(_lines(path, file), delimiter=columns.delimiter, quoting=quoting, strict=True)
        names = None if columns.header else list(columns.needed)
        seen = False
        while True:
            # A row begins on this line; with line breaks in quotes it ends on a later one.
            line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                if str(error) == "unexpected end of data":
                    raise TraceError(path, line, "", "a quote is opened and never closed") from None
                raise TraceError(path, reader.line_num, "", str(error)) from None
            if not any(field.strip() for field in fields):
                continue
            if names is None:
                names = [field.strip() for field in fields]
                _check_header(path, line, names, columns, hint)
                continue
            if len(fields) != len(names):
                missing = names[len(fields)] if len(fields) < len(names) else ""
                problem = f"{len(fields)} columns instead of {len(names)}" + hint
                raise TraceError(path, line, missing, problem)
            seen = True
            yield Row(path, line, dict(zip(names, fields, strict=True)))
        if not seen:
            but = " but for its header" if names and columns.header else ""
            raise NoJobs(path, 1, "", f"no jobs: the file is empty{but}")


def _check_header(path: Path, line: int, names: list[str], columns: Columns, hint: str) -> None:
    for name in columns.needed:
        if name not in names:
            found = ", ".join(_shown(n)[1:-1] for n in names[:12])
            raise TraceError(path, line, name, f"there is no such column; the file has {found}{hint}")
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise TraceError(path, line, doubled, "there are two columns of this name")
    allowed, others = (*columns.needed, *columns.optional), columns.others
    for name in (name for name in names if name not in (*allowed, *(others or ()))):
        import difflib

        # A file of another program has columns of its own: there only one that nearly is ours is misspelt.
        near = {other.lower(): other for other in (allowed if others is None else columns.optional)}
        close = difflib.get_close_matches(name.lower(), near, n=2, cutoff=0.5 if others is None else 0.8)
        if close or others is None:
            means = f"; did you mean {' or '.join(near[word] for word in close)}?" if close else ""
            problem = f"there is no such column{means} (read are {', '.join(allowed)})"
            raise TraceError(path, line, _shown(name)[1:-1], problem)


def check_unique(path: Path, jobs: Sequence[TraceJob], column: str) -> None:
    """Raises TraceError at the second job of one id."""
    lines: dict[str, int] = {}
    for job in jobs:
        first = lines.setdefault(job.id, job.line)
        if first != job.line:
            raise TraceError(path, job.line, column, f"job {_shown(job.id)} is on line {first} already")
