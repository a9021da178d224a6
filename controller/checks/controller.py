# SPDX-License-Identifier: GPL-2.0-or-later
"""The controller's API and its journal."""

import contextlib
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from controller import __version__
from controller.api.client import ApiClient, ApiRefused, ApiUnavailable
from controller.api.messages import StatusMessage
from controller.checks.finding import Finding, Subject
from controller.errors import JournalError
from controller.journal import JournalReader
from controller.journal.verify import verify
from controller.reports.text import clean

MAX_PROBLEMS = 20
VERIFIED_BYTES = 100 << 20
"""Larger journals are only opened: verifying one takes too long for this check."""
STARTING_SECONDS = 10.0
"""How long a controller may take for its first observation of the cluster before that is an error."""


def judge_api(url: str, deadline_seconds: float, token: str | None = None) -> Iterator[Finding]:
    """Asks the controller for its status. `token`: for a controller with api.private_data."""
    subject = Subject(url, "API")
    client = ApiClient(url, deadline_seconds=deadline_seconds, token=token)
    try:
        status = _status(client, deadline_seconds)
    except ApiUnavailable as failure:
        if "refused" in str(failure):
            change = "systemctl start gandiva on the controller's host"
            yield subject.warning("connection refused: the controller does not run", change)
        else:
            change = "is its host up and its port open to this host? is [cluster] controller_host right?"
            yield subject.error(str(failure), change)
        return
    except ApiRefused as failure:
        yield subject.error(str(failure), "journalctl -u gandiva on the controller's host")
        return
    if status.version != __version__:
        yield subject.warning(
            f"the controller is of version {status.version}, this command of {__version__}",
            "install the same version everywhere, and systemctl restart gandiva",
        )
    else:
        yield subject.ok(f"answers, version {status.version}, policy {status.policy}")
    for problem in status.problems[:MAX_PROBLEMS]:
        change = "gandiva status shows whether it is still so"
        yield Subject(url, "controller").warning(clean(problem), change)
    if (more := len(status.problems) - MAX_PROBLEMS) > 0:
        yield Subject(url, "controller").warning(f"and {more} more", "gandiva status names them")
    behind = time.time() - status.time
    if abs(behind) > 1.0 + deadline_seconds:
        yield Subject(url, "clock").warning(
            f"the controller's clock differs from this host's by {abs(behind):.0f} s",
            "start an NTP client on the two hosts",
        )


def _status(client: ApiClient, deadline_seconds: float) -> StatusMessage:
    """The controller's status; one that has just started gets time for its first observation."""
    until = time.monotonic() + min(deadline_seconds, STARTING_SECONDS)
    while True:
        try:
            return client.status()
        except ApiRefused as failure:
            if failure.status != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() >= until:
                raise
            time.sleep(0.2)


def judge_journal(path: Path) -> Iterator[Finding]:
    """Whether it can be read and is consistent. Its absence is no error: the first start creates it."""
    subject = Subject(str(path), "journal")
    size_bytes = None
    try:
        # Not `exists`: whether that raises PermissionError depends on the version of Python.
        with contextlib.suppress(FileNotFoundError):
            size_bytes = path.stat().st_size
        damaged = sorted(path.parent.glob(f"{path.name}.damaged-*"))
    except OSError as failure:
        yield subject.warning(f"cannot be examined: {failure.strerror}", "run this check as root")
        return
    if damaged:
        yield subject.warning(
            f"{len(damaged)} damaged ones were set aside, the last as {damaged[-1].name}",
            "check the disk (dmesg, smartctl), then remove them; reports lack their content",
        )
    if size_bytes is None:
        yield subject.ok("is not there yet; the first start of the controller makes it")
        return
    small = size_bytes <= VERIFIED_BYTES
    try:
        if not small:
            JournalReader(path).events(limit=1)
        problems = verify(path).problems if small else ()
    except PermissionError:
        yield subject.warning("may not be read by you", "run this check as root")
    except JournalError as failure:
        yield subject.error(str(failure), f"gandiva journal verify {path} says more")
    except OSError as failure:
        yield subject.error(f"cannot be read: {failure.strerror}", "check the disk (dmesg, smartctl)")
    else:
        for problem in problems[:5]:
            yield subject.error(problem, "stop the controller and move the file away: it makes a new one")
        if not problems:
            whole = "whole" if small else "can be read (large: gandiva journal verify)"
            yield subject.ok(f"{whole}, {size_bytes / 1e6:.1f} MB")
