# SPDX-License-Identifier: GPL-2.0-or-later
"""The schema as text: every key with its table, type, limits, default and description."""

import enum
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from controller.settings.base import AbsolutePath, Address, ByteSize, HostName, ListenAddress, Url, UserName
from controller.settings.policies import POLICIES, PolicyName
from controller.settings.schema import Settings, takes_restart


@dataclass(frozen=True, slots=True)
class Key:
    table: str
    """`suspend` or `policy.gandiva`."""
    name: str
    default: Any
    type: str
    """Such as `number from 0.05 to 60`."""
    description: str
    restart: bool

    @property
    def path(self) -> str:
        return f"{self.table}.{self.name}"

    @property
    def words(self) -> str:
        """The type as the end of a sentence: `a number from 0.05 to 60`."""
        if self.type.startswith(('"', "true")):
            return self.type
        return f"{'an' if self.type[0] == 'a' else 'a'} {self.type}"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the settings file, with its own keys (not those of its sub-tables)."""

    name: str
    description: str
    keys: tuple[Key, ...]


def tables(root: type[BaseModel] = Settings, prefix: str = "") -> Iterator[Table]:
    """All tables, in the order of the schema."""
    hints = typing.get_type_hints(root, include_extras=True)
    for name in root.model_fields:
        section = hints[name]
        if isinstance(section, type) and issubclass(section, BaseModel):
            path = f"{prefix}{toml_name(prefix, name)}"
            description = " ".join((section.__doc__ or "").split())
            yield Table(path, description, tuple(_keys(section, path)))
            yield from tables(section, f"{path}.")
        else:
            assert prefix, f"{name}: a key outside of every table"


def toml_name(prefix: str, name: str) -> str:
    """A table as the file has it: policies' names have dashes."""
    return name.replace("_", "-") if prefix == "policy." else name


def _keys(section: type[BaseModel], table: str) -> Iterator[Key]:
    hints = typing.get_type_hints(section, include_extras=True)
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        default, kind = field.get_default(call_default_factory=True), type_text(hints[name], field)
        yield Key(table, name, default, kind, field.description or "", takes_restart(field))


_NAMED = {
    AbsolutePath: "absolute path",
    Address: '"host" or "host:port"',
    ByteSize: 'number of bytes, or a size such as "4GiB"',
    HostName: "host name",
    ListenAddress: '"address:port"',
    Url: "URL",
    UserName: "user name",
}
_PLAIN = {bool: "true or false", int: "whole number", float: "number", str: "string", Any: "value"}


def type_text(hint: Any, field: FieldInfo | None = None) -> str:
    """Which values are valid, as text."""
    if hint == PolicyName:
        return " or ".join(json.dumps(name) for name in POLICIES)
    for named, words in _NAMED.items():
        if hint == named:
            return words
    if get_origin(hint) is Literal:
        return " or ".join(json.dumps(value) for value in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return type_text(next(arm for arm in get_args(hint) if arm is not type(None)))
    if get_origin(hint) is typing.Annotated:
        base, *metadata = get_args(hint)
        limits = [m for extra in metadata for m in (extra.metadata if isinstance(extra, FieldInfo) else [])]
        return _limited(type_text(base), limits)
    if get_origin(hint) is list:
        return f"list, each {type_text(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"table of name = {type_text(get_args(hint)[1])}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(json.dumps(member.value) for member in hint)
    return _limited(_PLAIN.get(hint, str(hint)), field.metadata if field else [])


def _limited(words: str, metadata: list[Any]) -> str:
    kinds = ("ge", "gt", "le")
    limits = {kind: getattr(m, kind) for m in metadata for kind in kinds if hasattr(m, kind)}
    low, above, high = map(limits.get, kinds)
    if low is not None and high is not None:
        return f"{words} from {low:g} to {high:g}"
    if low is not None:
        return f"{words}, at least {low:g}"
    if above is not None:
        words += f" above {above:g}"
    return words if high is None else f"{words}, at most {high:g}"


def to_toml(value: Any) -> str:
    """A value as TOML writes it: as JSON does, but for tables."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(str(key))} = {to_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(value, default=lambda one: getattr(one, "value", str(one)), ensure_ascii=False)
