# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounding of many times at once, with the outcome of `round`."""

from __future__ import annotations

from collections.abc import Sequence

_WORTH_ARRAYS = 200
"""From so many values on, arrays are faster than a loop."""
_PLACES, _PARTS = 6, 1e6
_FEW_SECONDS = 4e6
"""In millionths, a number with floating point tells so many from their halves to a thousandth."""
_FEW_PARTS = 2.0**50
"""Fewer millionths than that are told from their halves by a number with floating point."""


def rounded_one(value: float) -> float:
    """`round(value, 6)`, in half the time for times up to a few weeks."""
    if not -_FEW_SECONDS < value < _FEW_SECONDS:
        return round(value, _PLACES)
    parts = value * _PARTS
    whole = round(parts)
    if -0.499 < parts - whole < 0.499:
        return whole / _PARTS
    # The multiplication may have carried it over a half: digits decide.
    return round(value, _PLACES)


def rounded(values: Sequence[float]) -> list[float]:
    """Each to millionths, as `round` does it: a place in a queue may depend on the last digit."""
    if len(values) < _WORTH_ARRAYS:
        return [rounded_one(value) for value in values]
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        parts = np.asarray(values, dtype=float) * _PARTS
        whole = np.rint(parts)
        off_half = np.abs(np.abs(parts - whole) - 0.5)
    size = np.abs(parts)
    answer: list[float] = (whole / _PARTS).tolist()
    # Where the multiplication may have carried a value over a half, digits decide.
    doubtful = ~(size < _FEW_PARTS) | (off_half <= size * 2.3e-16)
    for index in np.flatnonzero(doubtful).tolist():
        answer[index] = round(values[index], _PLACES)
    return answer


def prepare(count: int) -> None:
    """Ahead of looks at so many values: loading the arrays takes longer than any of these."""
    if count >= _WORTH_ARRAYS:
        import numpy  # noqa: F401
