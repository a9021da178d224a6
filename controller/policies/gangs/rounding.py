# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounding of many times at once, with the outcome of `round`."""

from __future__ import annotations

from collections.abc import Sequence

_WORTH_ARRAYS = 2000
"""From so many values on, arrays gain more than a tenth of a millisecond. (Loading them takes 70.)"""
_PLACES, _PARTS = 6, 1e6
_FEW_SECONDS = 4e6
"""In millionths, a number with floating point tells so many from their halves to a thousandth."""
_FEW_PARTS = 2.0**50
"""Fewer millionths than that are told from their halves by a number with floating point."""


def rounded(values: Sequence[float]) -> list[float]:
    """Each to millionths, as `round` does it: a place in a queue may depend on the last digit."""
    if len(values) < _WORTH_ARRAYS:
        # (Half the time of `round` to digits, which decide only where the multiplication may have carried a
        # value over a half.)
        return [
            whole / _PARTS
            if -_FEW_SECONDS < value < _FEW_SECONDS
            and -0.499 < (parts := value * _PARTS) - (whole := round(parts)) < 0.499
            else round(value, _PLACES)
            for value in values
        ]
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        many = np.asarray(values, dtype=float) * _PARTS
        near = np.rint(many)
        off_half = np.abs(np.abs(many - near) - 0.5)
    size = np.abs(many)
    answer: list[float] = (near / _PARTS).tolist()
    doubtful = ~(size < _FEW_PARTS) | (off_half <= size * 2.3e-16)
    for index in np.flatnonzero(doubtful).tolist():
        answer[index] = round(values[index], _PLACES)
    return answer


def prepare(count: int) -> None:
    """Ahead of looks at so many values: loading the arrays takes longer than any of these."""
    if count >= _WORTH_ARRAYS:
        import numpy  # noqa: F401
