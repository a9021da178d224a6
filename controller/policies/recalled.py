# SPDX-License-Identifier: GPL-2.0-or-later
"""What policies and their moves remember, read back out of the journal, where it may have been damaged."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


def recalled(raw: object, kind: type[T], nothing: T) -> T:
    """A memory as a value of this type, such as `dict[str, int]` or a data class; `nothing` where it is
    none. Lists count as tuples, and texts of numbers (JSON's keys) as numbers."""
    try:
        found: T = _adapter(cast(Any, kind)).validate_python(raw)
    except ValidationError:
        return nothing
    return found


def mapping(raw: object) -> Mapping[str, Any]:
    """A part of a memory by its keys."""
    return raw if isinstance(raw, Mapping) else {}


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
