# SPDX-License-Identifier: GPL-2.0-or-later
"""Times on the command line, in the forms sacct takes for -S and -E. Local time, as there."""

import re
from contextlib import suppress
from datetime import datetime, timedelta

from controller.errors import GandivaError

FORMS = (
    "HH:MM[:SS][AM|PM], MMDD[YY], MM/DD[/YY], MM.DD[.YY], MM/DD[/YY]-HH:MM[:SS], YYYY-MM-DD[THH:MM[:SS]], "
    "today, tomorrow, midnight, elevenses, noon, fika, teatime, utsEPOCH, "
    "now[{+|-}COUNT[seconds|minutes|hours|days|weeks]]"
)

_NAMED_HOURS = {
    "midnight": 0, "today": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16, "tomorrow": 24
}  # fmt: skip
_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 604800}
_NOW = re.compile(r"now(?:(?P<sign>[+-])(?P<count>\d{1,9})(?P<unit>[a-z]*))?")
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?: ?(?P<half>[AaPp][Mm]))?"
_TIME = re.compile(_CLOCK)
_EPOCH = re.compile(r"uts0*([1-9]\d{6,11})")
_US_DATE = re.compile(
    rf"(?:(?P<m1>\d{{2}})(?P<d1>\d{{2}})(?P<y1>\d{{2}})?"
    rf"|(?P<m2>\d{{1,2}})(?P<sep>[/.])(?P<d2>\d{{1,2}})(?:(?P=sep)(?P<y2>\d{{2}}|\d{{4}}))?)(?:-{_CLOCK})?"
)
_ISO = re.compile(rf"(?P<year>\d{{4}})-(?P<month>\d{{1,2}})-(?P<day>\d{{1,2}})(?:[T ]{_CLOCK})?")


def parse_time(text: str, now: float) -> float:
    """Seconds since the epoch. Raises GandivaError, which names the forms."""
    present = datetime.fromtimestamp(now)  # noqa: DTZ006  sacct's times are local
    with suppress(ValueError, OverflowError, OSError):
        if (found := _parse(text.strip(), present)) is not None:
            return found.timestamp()
    raise GandivaError(f"{text[:60]!r} is not a time, or out of range; the forms are: {FORMS}")


def _parse(word: str, now: datetime) -> datetime | None:
    lower = word.lower()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if lower in _NAMED_HOURS:
        return midnight + timedelta(hours=_NAMED_HOURS[lower])
    if match := _NOW.fullmatch(lower):
        return _relative(match, now)
    if match := _EPOCH.fullmatch(lower):
        return datetime.fromtimestamp(int(match[1]))  # noqa: DTZ006
    if match := _TIME.fullmatch(word):
        return midnight + _clock(match)
    if match := _ISO.fullmatch(word):
        return midnight.replace(int(match["year"]), int(match["month"]), int(match["day"])) + _clock(match)
    if match := _US_DATE.fullmatch(word):
        year, month = match["y1"] or match["y2"], int(match["m1"] or match["m2"])
        # Without a year a month that is still to come was last year's.
        years = now.year - (month > now.month) if year is None else int(year) + 2000 * (len(year) == 2)
        return midnight.replace(years, month, int(match["d1"] or match["d2"])) + _clock(match)
    return None


def _relative(match: re.Match[str], now: datetime) -> datetime | None:
    if match["count"] is None:
        return now
    unit = match["unit"] or "seconds"
    scale = next((seconds for name, seconds in _UNITS.items() if name.startswith(unit)), None)
    if scale is None:
        return None
    # Elapsed time, not time on the wall: an hour ago is 3,600 s ago in the night the clocks change, too.
    seconds = int(match["count"]) * scale
    return datetime.fromtimestamp(now.timestamp() + (seconds if match["sign"] == "+" else -seconds))  # noqa: DTZ006


def _clock(match: re.Match[str]) -> timedelta:
    if match["hour"] is None:
        return timedelta()
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    half = (match["half"] or "").upper()
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(hour)
        hour = hour % 12 + (12 if half == "PM" else 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(match[0])
    return timedelta(hours=hour, minutes=minute, seconds=second)
