# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading gandiva.toml, with error messages an administrator can act on."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from controller.errors import SettingsError
from controller.policies.site import beside
from controller.settings.base import parse_toml, wrong
from controller.settings.schema import Settings

DEFAULT_PATH = Path("/etc/gandiva/gandiva.toml")
ENVIRONMENT = "GANDIVA_CONFIG"
MAX_FILE_BYTES = 1 << 20


def settings_path(named: Path | None = None) -> Path:
    """The settings file: the one named on the command line, else $GANDIVA_CONFIG, else the installed one."""
    return named or Path(os.environ.get(ENVIRONMENT) or DEFAULT_PATH)


def load_settings(path: Path) -> Settings:
    """Read and check a settings file. Raises SettingsError with a message that names file, key and value."""
    return check_values(read_values(path), str(path))


def read_values(path: Path, named_with: str = f"--config or {ENVIRONMENT}") -> dict[str, Any]:
    """The values of a settings file, unchecked. Files of own parts are named from its folder on. Raises
    SettingsError. `named_with`: what another file is named with, for the message."""
    values = parse_toml(_read_text(path, named_with), lambda problem: SettingsError(f"{path}: {problem}"))
    return with_parts_of(path.absolute().parent, values)


def with_parts_of(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a settings file, files of own parts named from this folder on."""
    for table, key in _NAMES_PARTS:
        if isinstance(named := values.get(table), dict) and key in named:
            named[key] = _beside(named[key], folder)
    return values


_NAMES_PARTS = (("policy", "name"), ("policy", "moves"), ("policy", "parts"), ("simulation", "progress"))


def _beside(named: Any, folder: Path) -> Any:
    """Names of parts, in whatever they are."""
    if isinstance(named, dict):
        return {key: _beside(name, folder) for key, name in named.items()}
    if isinstance(named, list):
        return [_beside(name, folder) for name in named]
    return beside(named, folder) if isinstance(named, str) else named


def _read_text(path: Path, named_with: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SettingsError(
            f"there is no settings file {path}: make one from `gandiva config sample`, or name another one "
            f"with {named_with}"
        ) from None
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise SettingsError(f"{path} is larger than {MAX_FILE_BYTES} bytes: is it the settings file?")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text (byte {error.start}): TOML files must be") from error


def client_settings(named: Path | None = None) -> Settings:
    """Settings for commands that only talk to the API.

    The defaults where no file is named and none is installed.
    """
    path = settings_path(named)
    if named is None and not os.environ.get(ENVIRONMENT) and not path.exists():
        return Settings()
    return load_settings(path)


def parse_settings(text: str, source: str = "settings") -> Settings:
    """Check the text of a settings file; `source` is how messages name it. Raises SettingsError."""
    return check_values(parse_toml(text, lambda problem: SettingsError(f"{source}: {problem}")), source)


def check_values(values: Mapping[str, Any], source: str) -> Settings:
    """Settings from the values of a TOML file. Raises SettingsError."""
    try:
        # Strict for the policies' sections too, of whatever base class.
        return Settings.model_validate(values, strict=True)
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors()]
        lines = problems if len(problems) == 1 else [f"{len(problems)} problems:", *problems]
        raise SettingsError(f"{source}: " + "\n  ".join(lines)) from error


def _problem(details: ErrorDetails) -> str:
    location = [str(part) for part in details["loc"] if part != "[key]"]
    key, kind = ".".join(_quoted(part) for part in _as_written(location)), details["type"]
    if kind == "extra_forbidden":
        return f"{key}: {_unknown(location)}"
    given = "" if isinstance(details["input"], BaseModel | dict) else f" = {_shown(details['input'])}"
    return f"{key}{given}: {_allowed(key, details)}"


def _as_written(location: list[str]) -> list[str]:
    from controller.settings.describe import toml_name  # slow to load, needed for messages only

    prefixes = ("policy." if location[:i] == ["policy"] else "" for i in range(len(location)))
    return list(map(toml_name, prefixes, location))


def _unknown(location: list[str]) -> str:
    """About a key that does not exist, with a key that was probably meant."""
    import difflib

    from controller.settings.describe import tables

    table: type[BaseModel] = Settings
    for part in location[:-1]:
        annotation = table.model_fields[part].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        table = annotation
    known, where = list(table.model_fields), ".".join(_as_written(location[:-1]))
    what = "key" if where else "table"
    close = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
    if close:
        return f"no such {what}; did you mean {close[0]}?"
    # A valid key in another table is the other common mistake.
    for other in tables():
        if any(key.name == location[-1] for key in other.keys):
            return f"no such {what} here; it belongs into [{other.name}]"
    if not known:
        return f"no such key; [{where}] has none"
    return f"no such {what}; " + (f"[{where}] has " if where else "there are ") + ", ".join(known)


def _allowed(key: str, details: ErrorDetails) -> str:
    from controller.settings.describe import tables

    kind, context = details["type"], details.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in ("model_type", "dict_type"):
        return "must be a table"
    if known := next((one for table in tables() for one in table.keys if one.path == key), None):
        return f"must be {known.words}"
    # An entry of a table with free keys, such as addresses or priority_by_qos.
    match kind:
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "less_than_equal":
            return f"must be at most {context['le']:g}"
        case "int_type" | "int_from_float":
            return "must be a whole number"
        case "string_type":
            return 'must be a string in quotes ("…")'
    return wrong(details)


def _quoted(part: str) -> str:
    return part if part.replace("_", "").replace("-", "").isalnum() and part.isascii() else json.dumps(part)


def _shown(value: object) -> str:
    """The value as the file has it, cut to a readable length."""
    shown = json.dumps(value, default=str, ensure_ascii=False) if not isinstance(value, Mapping) else "{…}"
    return shown if len(shown) <= 60 else shown[:57] + "…"
