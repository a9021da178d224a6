# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's log: one line per message for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time

from controller.settings.schema import LogSettings


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "subsystem": record.name.removeprefix("controller."),
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _TextLines(logging.Formatter):
    """As slurmctld writes: `[2026-11-21T10:00:00.123] error: message`."""

    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(level)s%(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{stamp}.{int(record.msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        record.level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        # A job name with a line break must not look like a line of ours.
        return super().format(record).replace("\n", "\n    ")


def configure(settings: LogSettings) -> None:
    """Set the log up, or set it up anew (SIGHUP: the file is opened again)."""
    handler: logging.Handler
    if settings.file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = logging.handlers.WatchedFileHandler(settings.file, encoding="utf-8")
    handler.setFormatter(_JsonLines() if settings.format == "json" else _TextLines())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    # Libraries that are chatty about every connection.
    for name in ("paramiko", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
