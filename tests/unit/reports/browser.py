# SPDX-License-Identifier: GPL-2.0-or-later
"""A headless Chromium that opens pages of ours, driven over its debugging pipe. Nothing else to install."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from container.engine import exclusive

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
)


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def find_chromium() -> str:
    """The browser's path. Root of a Debian machine gets it installed; anybody else is told to."""
    if found := _found():
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with exclusive("browser"):  # several workers of one test run come here at the same time
            if not _found():
                environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                for words in (
                    "update -q",
                    "install -y -q --no-install-recommends chromium fonts-dejavu-core",
                ):
                    subprocess.run(["apt-get", *words.split()], check=True, timeout=540, env=environment)
    if found := _found():
        return found
    raise RuntimeError(f"no browser: install one of {', '.join(NAMES)} (Debian: apt install chromium)")


class BrowserError(Exception):
    """The browser did not do what it was asked to, or not in time."""


class Browser:
    """One browser with one page, closed on leaving its `with` block."""

    def __init__(self, *, deadline_seconds: float = 60.0) -> None:
        self._deadline_seconds = deadline_seconds
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._buffer = b""
        self.events: list[dict[str, Any]] = []
        """What the page did by itself: errors, messages, requests, dialogs."""

    def __enter__(self) -> Browser:
        self._stack = contextlib.ExitStack()
        profile = self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        # The browser reads commands from descriptor 3 and answers on 4. (dash knows no descriptor above 9.)
        wrapper = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write} 2>/dev/null', "bash"]
        self._process = subprocess.Popen(
            [*wrapper, find_chromium(), *_FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stack.close()

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the DevTools protocol; returns its result. Raises BrowserError."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._send(json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._deadline_seconds
        while True:
            answer = self._receive(method, deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path, *, dark: bool = False, width: int = 1280, height: int = 900) -> float:
        """Open a page from a file and wait until it has drawn itself; returns the seconds that took."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        begin = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.run("document.documentElement?.dataset.drawn || ''") != "yes":
            if self.troubles() or time.monotonic() > begin + self._deadline_seconds:
                raise BrowserError(f"{path} was not drawn: {self.troubles()}")
            time.sleep(0.02)
        return time.monotonic() - begin

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page (by the debugger, whatever the page's policy)."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def key(self, key: str, *, shift: bool = False) -> None:
        """Press a key; a single character is typed."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0, **text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`mouseMoved`, `mousePressed`, `mouseReleased` or `mouseWheel`."""
        buttons = {"button": "left", "clickCount": 1} if kind in ("mousePressed", "mouseReleased") else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{**buttons, **more})

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What is seen, or the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def troubles(self) -> list[str]:
        """Errors, dialogs, and requests for anything but the page itself."""
        found = []
        for event in self.events:
            method, values = event.get("method", ""), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"):
                found.append(f"{method}: {json.dumps(values)[:500]}")
            elif method == "Network.requestWillBeSent" and not values["request"]["url"].startswith("file:"):
                found.append(f"request: {values['request']['url'][:200]}")
        return found

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._write, data) :]

    def _receive(self, what: str, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise BrowserError(
                    f"{what}: the browser {'has ended' if ready else 'gave no answer in time'}"
                )
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer
