# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that commands write: checked before any work, and never one of the inputs."""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import TextIO

from controller.errors import GandivaError

STANDARD_OUTPUT = Path("/dev/stdout")


def output_path(text: str) -> Path:
    """The argument of an option that names a file to write; `-` is standard output."""
    return STANDARD_OUTPUT if text == "-" else Path(text)


def check_outputs(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Raises GandivaError where a file could not be written, or would overwrite an input.

    Files are by the option that names them; None: not given.
    """
    given = [(option, path) for option, path in outputs.items() if path is not None]
    for option, path in given:
        _check_place(path)
        refuse_inputs(option, path, inputs)
    for (one, first), (other, second) in combinations(given, 2):
        if os.path.realpath(first) == os.path.realpath(second) or _same_file(first, second):
            raise GandivaError(f"{one} and {other} name the same file, {first}: give each its own")


def refuse_inputs(option: str, path: Path, inputs: Mapping[str, Path | None]) -> None:
    """Raises GandivaError if writing `path` would overwrite one of the inputs, also through a relative path
    or a link."""
    for name, read in inputs.items():
        if read is not None and _same_file(path, read):
            raise GandivaError(
                f"{option} {path} is the file that {name} names ({read}): it would be overwritten; "
                "name another one"
            )


def _same_file(one: Path, other: Path) -> bool:
    """Whether the two are one regular file."""
    try:
        found = one.stat()
        return stat.S_ISREG(found.st_mode) and os.path.samestat(found, other.stat())
    except (OSError, ValueError):
        return False


def _check_place(path: Path) -> None:
    if path == STANDARD_OUTPUT:
        return
    if not path.parent.is_dir():
        raise GandivaError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise GandivaError(f"cannot write {path}: it is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise GandivaError(f"cannot write {path}: permission denied")


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """The file, or standard output, to write text to: all of it or nothing. Raises GandivaError."""
    if path == STANDARD_OUTPUT:
        yield sys.stdout
        return
    target = path.resolve()
    # Neither a pipe nor a file in a folder that is not writable can be replaced.
    in_place = path.exists() and not (path.is_file() and os.access(target.parent, os.W_OK))
    draft = path if in_place else target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("w" if in_place else "x", newline="", encoding="utf-8", errors="replace") as file:
            yield file
        if not in_place:
            draft.replace(target)
    except OSError as error:
        raise GandivaError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if not in_place:
            with suppress(OSError):
                draft.unlink()
