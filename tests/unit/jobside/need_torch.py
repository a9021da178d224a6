# SPDX-License-Identifier: GPL-2.0-or-later
"""PyTorch for the tests that need it: the image of `make torch` has one, the developer's environment none."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

import pytest

REQUIRED: Final = "GANDIVA_TESTS_NEED_TORCH"
"""Environment variable: when it is set, a missing PyTorch is an error."""


def need_torch() -> Any:
    """The module torch. Where it is missing the test module is skipped; under REQUIRED it fails."""
    if os.environ.get(REQUIRED):
        return importlib.import_module("torch")
    return pytest.importorskip("torch")
