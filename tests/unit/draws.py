# SPDX-License-Identifier: GPL-2.0-or-later
"""How deep random tests go: a few cases with each change (`make test`), many each night (`make nightly`).

The variable `DEPTH` says which.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck

DEPTH: Final = "GANDIVA_TEST_DEPTH"
NIGHTLY: Final = os.environ.get(DEPTH) == "nightly"

WITH_FIXTURES: Final = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
"""Checks of hypothesis that are off where all examples of a property use one fixture."""

Case = TypeVar("Case")


def draws(few: int, many: int) -> int:
    """How many random cases: so many with each change, so many each night."""
    return many if NIGHTLY else few


def some(cases: Iterable[Case], with_each_change: Callable[[Case], object]) -> list[Any]:
    """All cases for `parametrize`; those that need not run with each change are marked as nightly."""
    made = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        made.append(pytest.param(*values, marks=() if with_each_change(case) else pytest.mark.nightly))
    return made
