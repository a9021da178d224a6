# SPDX-License-Identifier: GPL-2.0-or-later
"""How the live view looks at things: order, filter, symbols and colours. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from controller.api.messages import LiveJobMessage

PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7")
"""The colours of Okabe and Ito, told apart by people with any kind of colour vision (without their dark blue,
hard to see on dark screens). A colour only leads the eye from a GPU to its job: all is there in text too."""
BAR = 8
"""Width of a bar."""
WARNING = "#D55E00"
DIM = "bright_black"


def bar(fraction: float | None, columns: int, glyphs: Glyphs) -> str:
    """`███░░`; blanks for what is not known."""
    if fraction is None:
        return " " * columns
    full = round(max(0.0, min(1.0, fraction)) * columns)
    return glyphs.full * full + glyphs.empty * (columns - full)


class Order(enum.Enum):
    """Order of the list of jobs."""

    STATE = "state"
    SHARE = "share"
    USER = "user"
    NUMBER = "number"

    def following(self) -> Order:
        """The next one, for the key `s`."""
        members = list(Order)
        return members[(members.index(self) + 1) % len(members)]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Symbols for terminals that speak UTF-8, and for those that do not."""

    full: str
    empty: str
    running: str
    waiting: str
    queued: str
    idle: str
    ordinary: str
    broken: str
    arrow: str
    because: str
    brackets: tuple[str, str, str]
    """Joins GPUs that the same jobs wait for: first, between, last."""


UNICODE = Glyphs("█", "░", "▶", "‖", "…", "·", "■", "✗", "◀", "└", ("┐", "│", "┘"))
ASCII = Glyphs("#", ".", ">", "=", ".", "-", "x", "!", "<", "`-", ("\\", "|", "/"))

_SYMBOLS = {
    "running": ("running", "running"),
    "starting": ("running", "starting"),
    "suspended": ("waiting", "suspended"),
    "yielded": ("waiting", "waiting"),
    "queued": ("queued", "queued"),
    "ineligible": ("queued", "not yet"),
    "completing": ("running", "ending"),
    "stuck": ("broken", "stuck"),
    "unknown": ("broken", "unknown"),
}
_RANK = (
    "stuck",
    "unknown",
    "running",
    "starting",
    "completing",
    "yielded",
    "suspended",
    "queued",
    "ineligible",
)


def phase_words(phase: str, glyphs: Glyphs) -> str:
    """A symbol and a word: `▶ running`."""
    symbol, word = _SYMBOLS.get(phase, ("queued", phase))
    return f"{getattr(glyphs, symbol)} {word}"


def job_colors(jobs: Iterable[LiveJobMessage]) -> dict[int, str]:
    """A colour for each job on GPUs or waiting for them; neighbours in the list differ."""
    shown = [job.job_id for job in jobs if job.binding or job.running_on]
    return {job_id: PALETTE[index % len(PALETTE)] for index, job_id in enumerate(sorted(shown))}


def job_share(job: LiveJobMessage, now: float) -> float | None:
    """Part of the time since its first start that the job was on GPUs; None before that."""
    if job.start_time is None or now <= job.start_time:
        return None
    return min(1.0, max(0.0, job.run_seconds / (now - job.start_time)))


def ordered(jobs: Iterable[LiveJobMessage], order: Order, now: float) -> list[LiveJobMessage]:
    """The list of jobs in the order asked for; by number among equals."""
    by_number = sorted(jobs, key=lambda job: job.job_id)
    if order is Order.STATE:
        return sorted(by_number, key=lambda job: _RANK.index(job.phase) if job.phase in _RANK else len(_RANK))
    if order is Order.SHARE:
        return sorted(by_number, key=lambda job: -(job_share(job, now) or 0.0))
    if order is Order.USER:
        return sorted(by_number, key=lambda job: job.user)
    return by_number
