# SPDX-License-Identifier: GPL-2.0-or-later
"""The one decorator of the domain's values: frozen, slotted, compared by content."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from typing_extensions import dataclass_transform


def empty() -> Mapping[Any, Any]:
    """A mapping without items that stays so, for `field(default_factory=empty)`."""
    return MappingProxyType({})


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[Any] | None = None, /, *, kw_only: bool = False) -> Any:
    """A frozen, slotted data class. Wide types are `kw_only`: a new field never shifts the others."""
    decorate = dataclass(frozen=True, slots=True, kw_only=kw_only)
    return decorate if cls is None else decorate(cls)
