# SPDX-License-Identifier: GPL-2.0-or-later
"""What keys do: from one view to the next. No I/O."""

from dataclasses import replace

from controller.reports.top.frame import Frame
from controller.reports.top.view import Page, View

INTERVALS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between two pictures, for the keys + and -."""
MAX_FILTER = 64
_QUIT = ("q", "Q", "\x03")
_BACK = ("escape", "left", "h", "q", "Q", "?", "\r", "\n")
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -1, "page down": 1}


def press(view: View, key: str, drawn: Frame, own_user: str) -> View | None:
    """The view after a key; None: quit. Keys without a meaning change nothing."""
    if key == "\x03":
        return None
    if view.typing:
        return _type(view, key)
    if view.page is not Page.JOBS:
        if key in _BACK:
            return replace(view, page=Page.JOBS, scroll=view.scroll_before)
        return _scrolled(view, key, drawn)
    return _jobs(view, key, drawn, own_user)


def _type(view: View, key: str) -> View:
    if key in ("\r", "\n"):
        return replace(view, typing=False)
    if key == "escape":
        return replace(view, typing=False, filter="")
    if key in ("\x7f", "\b"):
        return replace(view, filter=view.filter[:-1])
    if key == "\x15":  # Ctrl-U, as in a shell
        return replace(view, filter="")
    if len(key) == 1 and key.isprintable():
        return replace(view, filter=(view.filter + key)[:MAX_FILTER])
    return view


def _jobs(view: View, key: str, drawn: Frame, own_user: str) -> View | None:
    if key in _QUIT:
        return None
    if key in _STEPS or key in ("home", "end", "g", "G"):
        return _move(view, key, drawn)
    if key in ("?", "h"):
        return replace(view, page=Page.HELP, scroll=0, scroll_before=view.scroll)
    if key in ("\r", "\n") and view.selected is not None:
        return replace(view, page=Page.DETAIL, scroll=0, scroll_before=view.scroll)
    simple: dict[str, dict[str, object]] = {
        "/": {"typing": True},
        "escape": {"filter": "", "selected": None},
        "p": {"paused": not view.paused},
        "s": {"order": view.order.following()},
        ",": {"order": view.order.following(-1)},
        "r": {"reverse": not view.reverse},
        "t": {"by_user": not view.by_user},
        "c": {"compact": not drawn.compact},
        "u": {"user": None if view.user else own_user},
        "+": {"interval_seconds": _interval(view, 1)},
        "-": {"interval_seconds": _interval(view, -1)},
    }
    key = {" ": "p", ".": "s", "I": "r"}.get(key, key)
    return replace(view, **simple[key]) if key in simple else view  # type: ignore[arg-type]


def _interval(view: View, by: int) -> float:
    steps = sorted({*INTERVALS, view.interval_seconds})
    place = steps.index(view.interval_seconds) + by
    return steps[max(0, min(place, len(steps) - 1))]


def _move(view: View, key: str, drawn: Frame) -> View:
    """Go from job to job; above the first one the arrows scroll the GPUs."""
    order = [job_id for job_id, _ in drawn.job_lines]
    if key in ("home", "g"):
        return replace(view, selected=None, scroll=0)
    if key in ("end", "G"):
        return replace(view, selected=order[-1] if order else None, scroll=drawn.body_rows)
    by = _step(key, drawn)
    if view.selected in order:
        place = order.index(view.selected) + by
        if place >= 0:
            return replace(view, selected=order[min(place, len(order) - 1)])
        return _scrolled(replace(view, selected=None), key, drawn)
    seen = [job_id for job_id, line in drawn.job_lines if 0 <= line - drawn.start < drawn.shown_rows]
    if by == 1 and seen:
        return replace(view, selected=seen[0])
    return _scrolled(view, key, drawn)


def _scrolled(view: View, key: str, drawn: Frame) -> View:
    deepest = max(0, drawn.body_rows - drawn.shown_rows)
    if key in ("home", "g"):
        return replace(view, scroll=0)
    if key in ("end", "G"):
        return replace(view, scroll=deepest)
    if key not in _STEPS:
        return view
    return replace(view, scroll=max(0, min(deepest, drawn.start + _step(key, drawn))))


def _step(key: str, drawn: Frame) -> int:
    return _STEPS[key] * (max(1, drawn.shown_rows - 1) if key.startswith("page") else 1)
