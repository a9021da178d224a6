# SPDX-License-Identifier: GPL-2.0-or-later
"""Deprecated keys of the table [policy], read as those that they are now."""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class Moved(NamedTuple):
    """What a deprecated key is now."""

    key: str
    """Empty: nothing."""
    instead: tuple[Any, Any] | None = None
    """Its one value that is said with another key, and the value of that one; the other is so anyway. Of a
    key that is nothing now: its one value that changes nothing, and what any other one is told."""

    @property
    def words(self) -> str:
        if not self.key:
            return "nothing"
        return self.key if self.instead is None else f"{self.key} = {json.dumps(self.instead[1])}"


def take_moved(policy: dict[str, Any], moved: Mapping[str, Moved], known: Collection[str]) -> list[str]:
    """Puts values of deprecated keys under those that they are now, and has a sentence about each. `known`:
    the tables that there are. Raises ValueError: two keys contradict each other."""
    name, moves = policy.get("name", "gandiva"), policy.get("moves")
    in_use = [_field(part) for part in (name, *(moves if isinstance(moves, list) else []))]
    gone = {"fifo_skip", *(_split(old)[0] for old in moved)} - {*known}
    empty = [_written(table) for table in sorted(gone) if policy.get(table) == {}]
    said, origin = list[str](), dict[str, str]()
    for old, now in moved.items():
        table, key = _split(old)
        here = policy.get(table)
        if not isinstance(here, dict) or key not in here:
            continue
        policy[table], value = {other: here[other] for other in here if other != key}, here[key]
        if now.key and now.instead is not None and not isinstance(value, bool):
            raise ValueError(f"{old} = {json.dumps(value, default=str)}: must be true or false")
        nothing = now.instead is not None and value != now.instead[0]
        said.append(f"{old} is deprecated: it is {'nothing' if nothing else now.words} now")
        if table not in in_use:
            said[-1] += ", and has no effect with this policy and its moves"
            continue
        if nothing and not now.key and now.instead is not None:
            raise ValueError(f"{old} = {json.dumps(value, default=str)}: {now.instead[1]}")
        if nothing or not now.key:
            continue
        table, key = _split(now.key)
        there = policy.get(table, {}) if table else policy
        if not isinstance(there, dict):
            continue
        if now.instead is not None:
            value = now.instead[1]
        elif key in there and there[key] != value:
            other = f"{origin.get(now.key, now.key)} = {json.dumps(there[key], default=str)}"
            shown = json.dumps(value, default=str)
            raise ValueError(f"{old} = {shown} and {other} contradict each other: keep {now.key} alone")
        origin[now.key] = old
        policy.update({table: {**there, key: value}} if table else {key: value})
    for table in sorted(gone):
        if isinstance(left := policy.get(table), dict):
            if left:
                raise ValueError(
                    f"there is no table {_written(table)} any more, nor a key for {', '.join(left)}"
                )
            del policy[table]
    if empty:
        said.append(f"there are no tables {', '.join(empty)} any more: remove them")
    return said


def _split(key: str) -> tuple[str, str]:
    """Field of the table within [policy], and the key in it; an empty one for keys of [policy] itself."""
    _, *table, name = key.split(".")
    return _field(".".join(table)), name


def _written(table: str) -> str:
    return f"[policy.{table.replace('_', '-')}]"


def _field(name: object) -> str:
    return str(name).replace("-", "_")
