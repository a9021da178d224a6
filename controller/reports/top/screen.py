# SPDX-License-Identifier: GPL-2.0-or-later
"""Running the live view: a thread asks the controller, this one draws and reads keys."""

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time as clock
import tty
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.live import Live

from controller.api.client import ApiClient
from controller.api.messages import GpusMessage
from controller.errors import GandivaError
from controller.reports.top.control import press
from controller.reports.top.detail import Detail, ask
from controller.reports.top.frame import Frame
from controller.reports.top.gpus import HISTORY
from controller.reports.top.view import Page, View

_RESIZE_SECONDS = 0.5
"""How soon a changed size of the window takes effect."""
_SEQUENCE_SECONDS = 0.05
"""Longest gap within the escape sequence of one key; after it, the key was Escape."""
_ARROWS = {
    b"[A": "up", b"[B": "down", b"[C": "right", b"[D": "left", b"[5~": "page up", b"[6~": "page down",
    b"[H": "home", b"[1~": "home", b"[F": "end", b"[4~": "end",
}  # fmt: skip


def print_picture(console: Console, frame: Frame) -> None:
    """Once, for a terminal or a file."""
    if console.is_terminal:
        console.print(frame, end="")
        return
    with console.capture() as capture:
        console.print(frame, end="")
    for line in capture.get().splitlines():
        print(line.rstrip())


class _Poller:
    """Asks in a thread of its own, so that keys work while the controller is slow."""

    def __init__(self, client: ApiClient, interval_seconds: float, trials: Path | None) -> None:
        self._client = client
        self._trials = trials
        self._interval_seconds = interval_seconds
        self._about: int | None = None
        self._hurry = threading.Event()
        self._over = False
        self.latest: tuple[GpusMessage | None, str] = (None, "")
        """The last answer there was, and why there is no newer one."""
        self.detail: Detail | None = None
        """The last answer about the job that was asked for."""
        self.wake, self._wake_end = os.pipe()
        self._thread = threading.Thread(target=self._poll, name="poller", daemon=True)

    def __enter__(self) -> "_Poller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The thread may be waiting for an answer; it ends with the process.
        self._over = True
        self._hurry.set()

    def want(self, about: int | None, interval_seconds: float) -> None:
        """Ask about this job too from now on, and this often."""
        if about != self._about or interval_seconds < self._interval_seconds:
            self._hurry.set()
        self._about, self._interval_seconds = about, interval_seconds

    def _poll(self) -> None:
        while not self._over:
            self._hurry.clear()
            begin = clock.monotonic()
            try:
                self.latest = (self._client.gpus(), "")
            except GandivaError as error:
                self.latest = (self.latest[0], f"{error}; trying again")
            about = self._about
            if about is not None:
                self.detail = ask(self._client, about, self._trials)
            with contextlib.suppress(OSError):
                os.write(self._wake_end, b".")
            self._hurry.wait(max(0.05, self._interval_seconds - (clock.monotonic() - begin)))


class Screen:
    def __init__(
        self, client: ApiClient, console: Console, view: View, own_user: str, trials: Path | None = None
    ) -> None:
        """`trials`: the folder of a study's trials."""
        self._client = client
        self._trials = trials
        self._console = console
        self._keys = sys.stdin.isatty()
        self._view = replace(view, keys=self._keys)
        self._own = own_user
        self._answer: GpusMessage | None = None
        self._history: dict[str, deque[float | None]] = {}
        self._frame = Frame(None, view)

    def run(self) -> int:
        # So that the terminal is put back; and the picture cannot be left standing there by Ctrl-Z.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        with (
            _single_keys(sys.stdin.fileno()) if self._keys else contextlib.nullcontext(),
            _Poller(self._client, self._view.interval_seconds, self._trials) as poller,
            Live(console=self._console, screen=True, auto_refresh=False) as live,
        ):
            self._draw(live)
            while True:
                sources = [poller.wake] + ([sys.stdin.fileno()] if self._keys else [])
                ready, _, _ = select.select(sources, [], [], _RESIZE_SECONDS)
                if poller.wake in ready:
                    os.read(poller.wake, 4096)
                    if not self._view.paused:
                        self._take(poller)
                if sys.stdin.fileno() in ready and self._keys:
                    pressed = _read_keys(sys.stdin.fileno())
                    for key in _keys_in(pressed) if pressed else ("\x03",):
                        view = press(self._view, key, self._frame, self._own)
                        if view is None:
                            return 0
                        self._view = view
                        self._draw(live)
                    about = self._view.selected if self._view.page is Page.DETAIL else None
                    poller.want(about, self._view.interval_seconds)
                self._draw(live)

    def _take(self, poller: _Poller) -> None:
        """What the poller has found, and the history of each GPU with it."""
        answer, problem = poller.latest
        if answer is not None and (self._answer is None or answer.time != self._answer.time):
            for node in answer.nodes:
                for gpu in node.gpus:
                    seen = self._history.setdefault(f"{node.name}:{gpu.ordinal}", deque(maxlen=HISTORY))
                    seen.append(gpu.utilization_fraction)
        self._answer = answer
        history = {name: tuple(seen) for name, seen in self._history.items()}
        self._view = replace(self._view, history=history, detail=poller.detail, problem=problem)

    def _draw(self, live: Live) -> None:
        self._view = replace(self._view, height=self._console.size.height)
        self._frame = Frame(self._answer, self._view)
        live.update(self._frame, refresh=True)
        # The frame has moved what it shows so that the chosen job is seen; the next keys go on from there.
        self._view = replace(self._view, scroll=self._frame.start)


def _read_keys(terminal: int) -> bytes:
    """What was typed, with the rest of an escape sequence that came in two parts."""
    pressed = os.read(terminal, 64)
    unfinished = pressed.endswith((b"\x1b", b"\x1b[", b"\x1bO"))
    if unfinished and select.select([terminal], [], [], _SEQUENCE_SECONDS)[0]:
        pressed += os.read(terminal, 64)
    return pressed


def _keys_in(pressed: bytes) -> Iterator[str]:
    """Single keys; those that send escape sequences by name, unknown ones left out."""
    pieces = pressed.split(b"\x1b")
    yield from pieces[0].decode("utf-8", "ignore")
    for index, piece in enumerate(pieces[1:], start=1):
        if not piece and index == len(pieces) - 1:
            yield "escape"
        for sequence, name in _ARROWS.items():
            if piece.replace(b"O", b"[", 1).startswith(sequence):
                yield name
                yield from piece[len(sequence) :].decode("utf-8", "ignore")
                break


@contextlib.contextmanager
def _single_keys(terminal: int) -> Iterator[None]:
    """Keys come one by one and are not echoed; the terminal's mode is restored afterwards."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
