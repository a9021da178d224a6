# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of a simulation: a settings file, then what the command line changes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.errors import SettingsError
from controller.policies.site import is_site_part
from controller.settings.base import parse_toml
from controller.settings.loading import check_values, read_values
from controller.settings.policies import MOVED, POLICIES
from controller.settings.schema import Settings

_PART = re.compile(r"""(?:[^,\[{"']|\[[^]]*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[\[{"'])+""")
"""What stands between commas; commas in brackets and quotes do not count."""
_CHANGED = re.compile(r"([^=]*):([^:=]*=.*)", re.DOTALL)


def compared(text: str) -> dict[str, tuple[str, list[str]]]:
    """Of `NAME,NAME:key=value,key=value,NAME` policy and changes of each, by label. Raises SettingsError."""
    entries: list[tuple[str, list[str]]] = []
    for part in _PART.findall(text) or [""]:
        if named := _CHANGED.fullmatch(part):
            entries.append((named[1].strip(), [named[2].strip()]))
        elif "=" not in part:
            entries.append((part.strip(), []))
        elif entries and entries[-1][1]:
            entries[-1][1].append(part.strip())
        else:
            raise SettingsError(f"--compare {text}: {part} belongs to no policy: write NAME:{part}")
    labelled: dict[str, tuple[str, list[str]]] = {}
    for policy, changes in entries:
        label = f"{policy}:{','.join(changes)}" if changes else policy
        if label in labelled:
            raise SettingsError(f"--compare {text}: {label} is there twice: give one other settings")
        labelled[label] = policy, changes
    return labelled


def configure(
    path: Path | None, policy: str | None, changes: Sequence[str], *, own_suspend: bool = False
) -> Settings:
    """`changes`: KEY=VALUE with a whole key (`simulation.round_seconds=300`) or one of the policy's own
    (`queue_limits=[3250.0]`). Values are TOML; what is not valid TOML is a string. `own_suspend`: where
    neither a file nor a change says how jobs are preempted, it is as the policy's authors do it. Raises
    SettingsError."""
    values, source = ({}, "command line") if path is None else (read_values(path, "--settings"), str(path))
    table = values.setdefault("policy", {})
    if not isinstance(table, dict):
        raise SettingsError(f"{source}: policy: must be a table")
    if policy is not None:
        table["name"] = policy
    name = str(table.get("name", "gandiva"))
    named = table.get("parts")
    site_part = is_site_part(name) or (isinstance(named, dict) and name in named)
    for change in changes:
        key, equals, text = change.partition("=")
        key = key.strip()
        if not equals or not key:
            raise SettingsError(f"--set {change}: must be KEY=VALUE, such as queue_limits=[3250.0]")
        if "." not in key:
            key = f"policy.own.{key}" if site_part else _whole(key, name, change)
        parts = key.split(".")
        if parts == ["policy", "name"] and policy is not None:
            raise SettingsError(f"--set {change}: the policy is {policy} already")
        _set(values, parts, _value(text.strip()), change)
    if own_suspend and path is None:
        own = "cooperative" if table.get("name", "gandiva") == "gandiva" else "requeue"
        values.setdefault("requests", {}).setdefault("suspend", own)
    return check_values(values, source)


def _whole(key: str, name: str, change: str) -> str:
    """The whole key that one of the policy's own is."""
    own = POLICIES.get(name, {})
    if key in own or name not in POLICIES or f"policy.{name}.{key}" in MOVED:
        return f"{own.get(key, f'policy.{name}')}.{key}"
    has = f"it has {', '.join(own)}" if own else "it has none of its own"
    raise SettingsError(f"--set {change}: {name} has no such setting; {has}; others are named TABLE.KEY")


def _value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}", SettingsError)["value"]
    except SettingsError:
        return text


def _set(values: dict[str, Any], parts: Sequence[str], value: Any, change: str) -> None:
    same = [old.split(".") for old, now in MOVED.items() if now == (".".join(parts), None)]
    for old in same:
        for name in (old[1], old[1].replace("-", "_")):
            if isinstance(there := values["policy"].get(name), dict):
                there.pop(old[2], None)
    table = values
    for i, part in enumerate(parts[:-1]):
        # A policy's table may be written with dashes or underscores.
        written = part
        if i == 1 and parts[0] == "policy":
            written = next((key for key in table if key.replace("_", "-") == part.replace("_", "-")), part)
        table = table.setdefault(written, {})
        if not isinstance(table, dict):
            raise SettingsError(f"--set {change}: {'.'.join(parts[: i + 1])} is not a table")
    table[parts[-1]] = value
