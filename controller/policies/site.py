# SPDX-License-Identifier: GPL-2.0-or-later
"""A site's own part, from a file (`/etc/gandiva/mine.py:MyOrder`) or an entry point of the group
`gandiva.policies`.

What goes wrong in it is an error that names its file and line.
"""

import inspect
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from controller.errors import SettingsError
from controller.model import Memory, Plan, Snapshot, value
from controller.policies.protocol import Policy, PolicyError
from controller.settings.base import first_wrong

GROUP = "gandiva.policies"
ALLOWED = f'a class of your own: "FILE.py:CLASS", or an entry point of the group {GROUP}'
"""What a name may be besides those of Gandiva's own parts."""


@value
class Part:
    """An object of a site's class, and the file that it comes from."""

    name: str
    made: object
    file: Path
    keys: tuple[str, ...] = ()
    """Of its settings."""


def is_site_part(name: str) -> bool:
    """Whether a name is that of a file and a class in it, or of an entry point."""
    return ".py:" in name or name in _entry_points()


def beside(name: str, folder: Path) -> str:
    """The name of a part as a settings file in this folder has it: its relative paths begin there."""
    path, colon, class_name = name.rpartition(".py:")
    if not colon or path.startswith("~"):
        return name
    return f"{folder / path}.py:{class_name}"


def home(path: str) -> Path:
    """With `~` in the place of a home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user
        return Path(path)


def load_part(name: str, own: Mapping[str, Any] | None = None) -> Part:
    """An object of the class that a name stands for. A class with `Settings`, a pydantic model, is made with
    these; any other without arguments. Raises SettingsError naming file, line and what is wrong.

    Args:
        own: the settings of all own parts, by key. A part reads those that its class names.
    """
    found, path = find_part(name)
    model = getattr(found, "Settings", None)
    if model is not None and not (inspect.isclass(model) and issubclass(model, BaseModel)):
        raise SettingsError(f"{path}: {found.__name__}.Settings must be a model of pydantic (BaseModel)")
    try:
        if model is None:
            return Part(name, found(), path)
        keys = tuple(model.model_fields)
        # As JSON, which has lists where a model may have tuples, sets or paths.
        given = json.dumps({key: value for key, value in (own or {}).items() if key in keys}, default=str)
        return Part(name, found(model.model_validate_json(given, strict=True)), path, keys)
    except ValidationError as error:
        key = "" if not error.errors()[0]["loc"] else "."
        raise SettingsError(f"policy.own{key}{first_wrong(error, '')} (of {name})") from error
    except Exception as error:
        raise SettingsError(f"{where(error, [path])}: {_words(error)}") from error


def find_part(name: str) -> tuple[type[Any], Path]:
    """The class that a name stands for, and its file. Raises SettingsError."""
    path_text, colon, class_name = name.rpartition(":")
    if not colon:
        found = _entry_point(name)
        return found, Path(inspect.getsourcefile(found) or name).resolve()
    path = home(path_text).resolve()
    return _class_in(path, class_name), path


def check_own(own: Mapping[str, Any], parts: Sequence[Part]) -> None:
    """Raises SettingsError where none of these parts reads a key. Without parts none is read, as the tables
    of other policies are not."""
    known = sorted({key for part in parts for key in part.keys})
    for key in own if parts else ():
        if key not in known:
            raise SettingsError(
                f"policy.own.{key}: no part in use has this setting; there are: {', '.join(known) or 'none'}"
            )


def _class_in(path: Path, class_name: str) -> type[Any]:
    module = _load(path)
    found = getattr(module, class_name, None)
    if inspect.isclass(found):
        return found
    own = [
        name
        for name, member in vars(module).items()
        if inspect.isclass(member) and member.__module__ == module.__name__
    ]
    raise SettingsError(
        f"{path}: no class {class_name!r} in it; its classes: {', '.join(sorted(own)) or 'none'}"
    )


def _load(path: Path) -> ModuleType:
    # Not at the top: reading settings without a site's part needs none of it.
    import importlib.util

    spec = importlib.util.spec_from_file_location(f"gandiva_site_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SettingsError(f"{path}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise SettingsError(f"{error.filename}: line {error.lineno}: {error.msg}") from error
    except Exception as error:
        raise SettingsError(f"{where(error, [path])}: {_words(error)}") from error
    return module


def _entry_points() -> set[str]:
    import importlib.metadata

    return {point.name for point in importlib.metadata.entry_points(group=GROUP)}


def _entry_point(name: str) -> type[Any]:
    import importlib.metadata

    try:
        (point,) = importlib.metadata.entry_points(group=GROUP, name=name)
        found = point.load()
    except Exception as error:
        raise SettingsError(f"entry point {name!r} of the group {GROUP}: {_words(error)}") from error
    if not inspect.isclass(found):
        raise SettingsError(f"entry point {name!r} of the group {GROUP} is not a class")
    return found


class Guarded:
    """A policy, whatever it raises as a `PolicyError`: a bug in it must not end the daemon."""

    def __init__(self, policy: Policy, files: Sequence[Path]) -> None:
        """`files`: those of the site's parts in it."""
        self.policy, self._files = policy, tuple(files)

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """That of the policy. Raises PolicyError."""
        try:
            plan = self.policy.plan(snapshot, memory)
            if self._files:
                # What is not JSON could not be written into the journal.
                json.dumps([dict(plan.memory.common), *plan.memory.jobs.values()], allow_nan=False)
        except Exception as error:
            raise PolicyError(f"{where(error, self._files)}: {_words(error)}") from error
        return plan


def where(error: BaseException, files: Sequence[Path]) -> str:
    """The last line of one of these files that the error came through; without files, of any."""
    names = {str(file) for file in files}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not names or f.filename in names]
    if frames:
        return f"{frames[-1].filename}: line {frames[-1].lineno}"
    return " or ".join(sorted(names))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
