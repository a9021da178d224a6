# SPDX-License-Identifier: GPL-2.0-or-later
"""Texts of a certain form in descriptions of clusters."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator


def matching(pattern: str, longest: int, words: str) -> AfterValidator:
    """A text that the whole pattern matches; errors describe it with `words`."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if len(value) > longest or compiled.fullmatch(value) is None:
            raise ValueError(f"must be {words}, at most {longest} characters")
        return value

    return AfterValidator(check)


Model = Annotated[
    str,
    matching(r"[a-z][a-z0-9]*", 32, "lower-case letters and digits, a letter first, such as a100 or rtx6000"),
]
"""GRES types are made of it: a100_0, a100_1, …"""
