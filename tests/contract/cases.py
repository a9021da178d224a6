# SPDX-License-Identifier: GPL-2.0-or-later
"""The tests of a contract one by one, for those who run several of them at the same time."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Case:
    """A test of a contract with its arguments, but for the world."""

    name: str
    run: Callable[..., Awaitable[None]]
    alone: bool
    """It is marked so."""


def cases(contract: type, *wanted: Callable[..., Awaitable[None]]) -> Iterator[Case]:
    """All tests of a contract, or those that are wanted, in the order in which they are written. A test may
    have one `pytest.mark.parametrize`, of one argument."""
    tests = {name: test for part in reversed(contract.__mro__) for name, test in vars(part).items()}
    for name, test in tests.items():
        if name.startswith("test_") and (not wanted or test in wanted):
            for label, arguments in _arguments(test):
                run = functools.partial(test, contract(), **arguments)
                yield Case(f"{name}{label}", run, hasattr(test, "alone"))


def _arguments(test: Callable[..., Awaitable[None]]) -> Sequence[tuple[str, dict[str, Any]]]:
    marks: Sequence[pytest.Mark] = getattr(test, "pytestmark", ())
    if not marks:
        return [("", {})]
    ((argument, values),) = (mark.args for mark in marks)
    return [(f"[{value}]", {argument: value}) for value in values]
