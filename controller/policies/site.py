# SPDX-License-Identifier: GPL-2.0-or-later
"""A site's own part, from a file (`./mine.py:MyOrder`) or an entry point of the group `gandiva.policies`.

An order is composed with gangs, a move follows the mechanism, and a class with `plan` is a whole policy. What
goes wrong in it is a `PolicyError` that names its file and line.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from controller.errors import SettingsError
from controller.model import Memory, Plan, Snapshot
from controller.policies.moves.move import Move
from controller.policies.orders.order import Order
from controller.policies.presets import gangs
from controller.policies.protocol import Policy, PolicyError

GROUP = "gandiva.policies"


def is_site_part(name: str) -> bool:
    """Whether a name is that of a file and a class in it, or of an entry point."""
    return ".py:" in name or name in {point.name for point in importlib.metadata.entry_points(group=GROUP)}


def load_class(name: str) -> type[object]:
    """The class that a name stands for. Raises SettingsError naming file, line and what is wrong."""
    path_text, colon, class_name = name.rpartition(":")
    if not colon:
        return _entry_point(name)
    path = Path(path_text).expanduser().resolve()
    module = _load(path)
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        classes = [
            n
            for n, member in vars(module).items()
            if inspect.isclass(member) and member.__module__ == module.__name__
        ]
        known = ", ".join(sorted(classes)) or "none"
        raise SettingsError(f"{path}: no class {class_name!r} in it; its classes: {known}")
    return found


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gandiva_site_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SettingsError(f"cannot read the policy part {path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise SettingsError(f"{error.filename}: line {error.lineno}: {error.msg}") from error
    except Exception as error:
        raise SettingsError(f"{where(error, path)}: {_words(error)}") from error
    return module


def _entry_point(name: str) -> type[object]:
    try:
        (point,) = importlib.metadata.entry_points(group=GROUP, name=name)
        found = point.load()
    except Exception as error:
        raise SettingsError(f"entry point {name!r} of group {GROUP}: {_words(error)}") from error
    if not inspect.isclass(found):
        raise SettingsError(f"entry point {name!r} of group {GROUP} is not a class")
    return found


def load_move(name: str) -> Move:
    """A move of the site. Raises SettingsError."""
    made = _make(name)
    if not callable(getattr(made, "propose", None)):
        raise SettingsError(f"{name}: a move has a method propose(snapshot, draft)")
    return made  # type: ignore[return-value]


def load_policy(name: str, moves: Sequence[Move]) -> Policy:
    """An order of the site as gangs, or a whole policy. Raises SettingsError."""
    made = _make(name)
    if isinstance(made, Order):
        return Guarded(gangs(made, moves), name)
    if callable(getattr(made, "plan", None)):
        return Guarded(made, name)  # type: ignore[arg-type]
    raise SettingsError(f"{name}: neither an Order nor a class with plan(snapshot, memory)")


def _make(name: str) -> object:
    part = load_class(name)
    try:
        return part()
    except Exception as error:
        raise SettingsError(f"{where(error, _file_of(part))}: {_words(error)}") from error


def _file_of(part: type[object]) -> Path:
    return Path(inspect.getsourcefile(part) or "?")


class Guarded:
    """A policy with parts of the site: whatever they raise becomes a `PolicyError`."""

    def __init__(self, policy: Policy, name: str) -> None:
        self._policy, self._file = policy, Path(name.rpartition(":")[0] or name).resolve()

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        """That of the policy."""
        try:
            return self._policy.plan(snapshot, memory)
        except Exception as error:
            raise PolicyError(f"{where(error, self._file)}: {_words(error)}") from error


def where(error: BaseException, path: Path) -> str:
    """The last line of this file that the error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}: line {frames[-1].lineno}" if frames else str(path)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
