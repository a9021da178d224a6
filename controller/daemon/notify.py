# SPDX-License-Identifier: GPL-2.0-or-later
"""Notifies systemd of the daemon's state (`Type=notify`, sd_notify(3)); without systemd nothing happens."""

from __future__ import annotations

import os
import socket
import time


def notify(*assignments: str) -> bool:
    """Send assignments such as `READY=1` or `STATUS=…`. False: systemd does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    message = "\n".join(assignment.replace("\n", " ") for assignment in assignments)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            # The loop must not wait for systemd: a full socket buffer loses this message only.
            sock.setblocking(False)
            sock.sendto(message.encode(), address)
    except OSError:
        return False
    return True


def ready(status: str = "") -> bool:
    """The daemon works: after its start, and after a reload."""
    return notify("READY=1", *([f"STATUS={status}"] if status else []))


def reloading() -> bool:
    """A reload begins; `ready()` ends it."""
    return notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping() -> bool:
    """The daemon is stopping."""
    return notify("STOPPING=1")


def alive(status: str = "") -> bool:
    """One turn of the loop is done: feeds the watchdog."""
    return notify("WATCHDOG=1", *([f"STATUS={status}"] if status else []))
