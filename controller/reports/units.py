# SPDX-License-Identifier: GPL-2.0-or-later
"""Times, durations and sizes written as sacct writes them."""

import math
import os
import time as clock
from bisect import bisect_left

from controller.model.clock import shown_seconds

UNKNOWN = "Unknown"
_PREFIXES = "KMGTP"


def duration(seconds: float | None) -> str:
    """`[DD-]HH:MM:SS`, rounded to seconds; empty for None."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    return shown_seconds(max(0.0, seconds))


def moment(time: float | None) -> str:
    """`2024-05-17T09:30:00` in local time, or as SLURM_TIME_FORMAT says; `Unknown` for None."""
    if time is None:
        return UNKNOWN
    wanted = os.environ.get("SLURM_TIME_FORMAT", "standard")
    if wanted in ("", "standard", "relative"):
        wanted = "%Y-%m-%dT%H:%M:%S"
    try:
        return clock.strftime(wanted, clock.localtime(time))
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def zone_offsets(begin: float, end: float) -> list[tuple[float, int]]:
    """The local time zone from `begin` to `end`: from when on (seconds since the epoch) it is how many
    seconds east of UTC. The first is from `begin` on, the others from when the clocks are changed."""
    found = [(begin, clock.localtime(begin).tm_gmtoff)]
    low, stride = int(begin), max(86400, int(end - begin) // 5000)
    while low < end:
        high, offset = min(low + stride, int(end) + 1), found[-1][1]
        if clock.localtime(high).tm_gmtoff != offset:
            seconds = range(low, high)
            change = low + bisect_left(seconds, True, key=lambda at: clock.localtime(at).tm_gmtoff != offset)
            found.append((float(change), clock.localtime(change).tm_gmtoff))
        low = high
    return found


def step(seconds: float | None) -> str:
    """The time of one mini-batch, with three digits that matter: `0.0124s`, `1.25s`; empty for None."""
    if seconds is None or seconds <= 0:
        return ""
    return f"{seconds:.3g}s" if seconds < 1000 else f"{seconds:.0f}s"


def percent(fraction: float | None, digits: int = 0) -> str:
    """`66%`, or with so many digits; empty for None."""
    return "" if fraction is None else f"{100 * fraction:.{digits}f}%"


def gain(ratio: float | None) -> str:
    """Throughput as a multiple of that before: `1.60x`; empty for None."""
    return "" if ratio is None else f"{ratio:.2f}x"


def several(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(count: int | None, unit: str = "") -> str:
    """Bytes like sacct's memory columns: `1.5G`, or in the unit given (K, M, G, T, P). Empty for None."""
    if count is None:
        return ""
    if unit:
        return _number(count / 1024 ** (_PREFIXES.index(unit) + 1)) + unit
    value, prefix = float(count), ""
    for candidate in _PREFIXES:
        if abs(value) < 1024:
            break
        value, prefix = value / 1024, candidate
    return _number(value) + prefix


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
