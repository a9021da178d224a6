# SPDX-License-Identifier: GPL-2.0-or-later
"""What is chosen, and orders, symbols and colours of the live view. No I/O."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller.api.messages import LiveJobMessage
from controller.reports.advice import SLURM, Words

if TYPE_CHECKING:
    from controller.reports.top.detail import Detail

PALETTE = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7")
"""The colours of Okabe and Ito, distinct with any kind of colour vision, but for their dark blue, which is
hard to see on dark screens. A colour links a GPU with its job; everything is there as text too."""
BAR = 8
"""Width of a bar."""
WARNING = "#D55E00"
DIM = "bright_black"


def bar(fraction: float, columns: int, glyphs: "Glyphs") -> str:
    """`███░░`."""
    full = round(max(0.0, min(1.0, fraction)) * columns)
    return glyphs.full * full + glyphs.empty * (columns - full)


class Order(enum.Enum):
    """Order of the list of jobs; the value is its name at the foot of the screen."""

    STATE = "state"
    SHARE = "share"
    USER = "user"
    NUMBER = "number"
    NAME = "name"
    GPUS = "GPUs"
    WEIGHT = "weight"

    def following(self, by: int = 1) -> "Order":
        """The next one, for the keys `s` and `.`; with `by=-1` the one before."""
        members = list(Order)
        return members[(members.index(self) + by) % len(members)]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Symbols for terminals with UTF-8, or without."""

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
    """Around GPUs that the same jobs wait for: first, between, last."""
    levels: str
    """From low to high, for the history of a GPU."""


UNICODE = Glyphs("█", "░", "▶", "‖", "…", "·", "■", "✗", "◀", "└", ("┐", "│", "┘"), " ▁▂▃▄▅▆▇█")
ASCII = Glyphs("#", ".", ">", "=", ".", "-", "x", "!", "<", "`-", ("\\", "|", "/"), " ._-=+*%#")


class Page(enum.Enum):
    JOBS = "jobs"
    DETAIL = "detail"
    HELP = "help"


@dataclass(frozen=True, slots=True)
class View:
    """What was chosen with keys and options, and the size of the screen."""

    order: Order = Order.STATE
    reverse: bool = False
    by_user: bool = False
    user: str | None = None
    filter: str = ""
    """Only jobs with this text."""
    typing: bool = False
    """The filter is being typed."""
    selected: int | None = None
    """The job that Enter explains."""
    page: Page = Page.JOBS
    compact: bool | None = None
    """One line per node; None: where the GPUs one by one would fill more than half of the screen."""
    glyphs: Glyphs = UNICODE
    scroll: int = 0
    scroll_before: int = 0
    """Scroll position of the jobs before another page was opened."""
    height: int | None = None
    """Rows of the screen; None: no screen, everything is printed."""
    paused: bool = False
    interval_seconds: float = 2.0
    words: Words = SLURM
    problem: str = ""
    """Why there is no fresh answer."""
    keys: bool = False
    history: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Utilisation of each GPU (`node:ordinal`) in the last answers, oldest first."""
    detail: "Detail | None" = None
    """What is known of the selected job."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all parts of the picture are drawn with."""

    jobs: Mapping[int, LiveJobMessage]
    colors: Mapping[int, str]
    now: float
    view: View


_SYMBOLS = {
    "stuck": ("broken", "stuck"),
    "unknown": ("broken", "unknown"),
    "running": ("running", "running"),
    "suspending": ("running", "suspending"),
    "resuming": ("running", "resuming"),
    "starting": ("running", "starting"),
    "completing": ("running", "ending"),
    "yielded": ("waiting", "waiting"),
    "suspended": ("waiting", "suspended"),
    "queued": ("queued", "queued"),
    "ineligible": ("queued", "not yet"),
}
"""Of each phase: its symbol and its word, in the order of the list."""
RANK = {phase: place for place, phase in enumerate(_SYMBOLS)}


def phase_words(phase: str, glyphs: Glyphs) -> str:
    """A symbol and a word: `▶ running`."""
    symbol, word = _SYMBOLS.get(phase, ("queued", phase))
    return f"{getattr(glyphs, symbol)} {word}"


def job_colors(jobs: Iterable[LiveJobMessage]) -> dict[int, str]:
    """A colour for each job on GPUs or waiting for them; jobs in a row have different ones."""
    shown = [job.job_id for job in jobs if job.binding or job.running_on]
    return {job_id: PALETTE[index % len(PALETTE)] for index, job_id in enumerate(sorted(shown))}


def job_share(job: LiveJobMessage, now: float) -> float | None:
    """Part of the time since its first start that the job was on GPUs; None before that."""
    if job.start_time is None or now <= job.start_time:
        return None
    return min(1.0, max(0.0, job.run_seconds / (now - job.start_time)))


def spark(fractions: Iterable[float | None], glyphs: Glyphs) -> str:
    """A history as a line of blocks; `?` where it was not known."""
    top = len(glyphs.levels) - 1
    return "".join(
        "?" if f is None else glyphs.levels[max(f > 0, round(max(0.0, min(1.0, f)) * top))] for f in fractions
    )
