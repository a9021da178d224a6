# SPDX-License-Identifier: GPL-2.0-or-later
"""Base class and types of the tables of the settings file, and what is wrong with a value in words."""

import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from controller.errors import GandivaError
from controller.model import SuspendMethod, Trespass, Unsuspendable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


class Section(BaseModel):
    """One table of the settings file. Unknown keys and values of another type are errors.

    Its validator is built when it is needed: for a table within another never, since that of the whole file
    includes it.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True, defer_build=True
    )


def setting(default: Any, description: str, *, restart: bool = False, **limits: Any) -> Any:
    """One key: its default, the text of the reference page, and its limits (`ge`, `le`, `pattern`, …).

    `restart`: a change takes effect at the next start of the daemon, not at a reload.
    """
    return Field(default, description=description, json_schema_extra={"restart": restart}, **limits)


def table() -> Any:
    """A table within another: its defaults where the file does not have it."""
    return Field(default_factory=dict)


_UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")},
    **{f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate(("k", "M", "G", "T"))},
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([A-Za-z]{0,3})")


def parse_bytes(value: object) -> object:
    """`4294967296` or `"4GiB"` -> bytes. Decimal (MB, GB) and binary (MiB, GiB) units. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None or match[2] not in _UNITS:
        raise ValueError('must be a number of bytes or a size such as "512MiB" or "4GiB"')
    return math.floor(float(match[1]) * _UNITS[match[2]])


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path (starting with /)")
    return path


_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}))"
_HOST_PORT = re.compile(rf"(?P<host>{_HOST})(?::(?P<port>\d{{1,5}}))?")


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """`"host"`, `"host:port"` or `"[v6]:port"` -> host (without brackets) and port. Raises ValueError."""
    match = _HOST_PORT.fullmatch(address)
    port = default_port if match is None or match["port"] is None else int(match["port"])
    if match is None or not 0 < port < 65536:
        raise ValueError('must be "host" or "host:port" with a port from 1 to 65535')
    return match["host"].strip("[]"), port


def matching(pattern: str, words: str, longest: int | None = None) -> AfterValidator:
    """A string of this form, of so many characters at most. `words`: the message about any other."""
    said = words if longest is None else f"{words}, at most {longest} characters"

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None or (longest is not None and len(text) > longest):
            raise ValueError(said)
        return text

    return AfterValidator(check)


def _address(address: str) -> str:
    split_address(address, 1)
    return address


def _listen(address: str) -> str:
    match = _HOST_PORT.fullmatch(address)
    if match is None or match["port"] is None or not 0 <= int(match["port"]) < 65536:
        raise ValueError('must be "host:port", such as "0.0.0.0:6822"')
    return address


def check_url(url: str) -> str:
    """The URL of the API, without a slash at its end. Raises ValueError."""
    if re.fullmatch(rf"https?://{_HOST}(?::\d{{1,5}})?(?:/[A-Za-z0-9._~/-]*)?", url) is None:
        raise ValueError('must be a URL such as "http://ctl:6822"')
    return url.rstrip("/")


_SUBJECT = re.compile(r"^(?:Value error, |[A-Z][a-z]+ should (?=be |have |match ))")


def wrong(details: Mapping[str, Any]) -> str:
    """What is wrong with a value, such as `must be greater than 0`. `details`: one error of pydantic's."""
    message = str(details["msg"])
    found = _SUBJECT.match(message)
    if found is None:
        return message
    rest = message[found.end() :]
    return rest if found[0].startswith("Value") else f"must {rest}"


def first_wrong(error: ValidationError, whole: str = "file") -> str:
    """Its first mistake, such as `jobs.0.gpus: must be greater than 0`. `whole`: the name of it all."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {wrong(first)}"


def read_file(path: Path, most_bytes: int, kind: type[GandivaError]) -> bytes:
    """All of a file. Raises `kind`: it cannot be read, or is too large to be what is meant."""
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > most_bytes:
        raise kind(f"{path} is larger than {most_bytes} bytes: is it the right file?")
    return raw


def parse_toml(text: str, error_of: Callable[[str], GandivaError]) -> dict[str, Any]:
    """The values of a TOML text. Raises what `error_of` makes of the problem."""
    try:
        values: dict[str, Any] = tomllib.loads(text)
        return values
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits, 1,000 brackets
        raise error_of(f"not valid TOML: {error}") from error


class _Pairs(list[tuple[str, Any]]):
    """An object of a JSON text with all of its keys."""


def key_twice(text: str | bytes) -> str:
    """Where a JSON text has a key twice, as `jobs[0]: the key 'gpus' is there twice`: JSON's readers take the
    last. Empty: nowhere. Raises ValueError, RecursionError: it is no JSON."""
    return _key_twice(json.loads(text, object_pairs_hook=_Pairs), "")


def _key_twice(thing: Any, place: str) -> str:
    if isinstance(thing, _Pairs):
        keys = [key for key, _ in thing]
        if len(set(keys)) < len(keys):
            key = next(key for number, key in enumerate(keys) if key in keys[:number])
            return f"{place}: the key {key!r} is there twice".removeprefix(": ")
        parts = ((f"{place}.{key}".removeprefix("."), item) for key, item in thing)
    elif isinstance(thing, list):
        parts = ((f"{place}[{number}]", item) for number, item in enumerate(thing))
    else:
        return ""
    return next(filter(None, (_key_twice(item, where) for where, item in parts)), "")


def _from_text(kind: Callable[[str], object]) -> BeforeValidator:
    """What is no text of this kind stays as it is, for the message."""

    def make(value: object) -> object:
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return kind(value)
        return value

    return BeforeValidator(make)


# Validation is strict: TOML has types, so a quoted number is a mistake. Paths, sizes and enumerations, which
# TOML does not have, are made from strings here.
ByteSize = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=2**62)]
AbsolutePath = Annotated[Path, _from_text(Path), AfterValidator(_absolute)]
Address = Annotated[str, AfterValidator(_address)]
ListenAddress = Annotated[str, AfterValidator(_listen)]
Url = Annotated[str, AfterValidator(check_url)]
Method = Annotated[SuspendMethod, _from_text(SuspendMethod)]
WayOut = Annotated[Unsuspendable, _from_text(Unsuspendable)]
OfTrespass = Annotated[Trespass, _from_text(Trespass)]
NodeName = Annotated[
    str,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}",
        "must be a node name as Slurm has it (letters, digits, dot, dash, underscore)",
    ),
]
UserName = Annotated[str, matching(r"[a-z_][a-z0-9_-]{0,31}", "must be a user name")]
HostName = Annotated[str, matching(_HOST, "must be a host name or an address (IPv6 in brackets)")]
