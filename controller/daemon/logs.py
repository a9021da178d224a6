# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's log: one line per message for people, or one JSON object per line for machines.

A message about a job, a node or a file names it: `log.error("job %s: …", job_id)`. In the JSON format the
field `job` comes from the format string, never from the text of a value, which users may have chosen. Where
the format string cannot name it, `extra={"node": name}` does."""

import json
import logging
import logging.handlers
import re
import sys
from collections.abc import Mapping

from controller.reports.text import clean
from controller.settings.schema import LogSettings

FIELDS = ("job", "node", "file")
"""Subjects of messages; keys of `extra` and of the JSON objects."""

_NAMES = {"job": "job", "node": "node", "journal": "file", "file": "file"}
_PLACE = re.compile(r"(?:\b(job|node|journal|file) )?%[-0-9.]*[sdrgf]")

_AS_TEXT = "[%(asctime)s.%(msecs)03d] %(level)s%(message)s", "%Y-%m-%dT%H:%M:%S"

DEBUG_FLAGS: Mapping[str, str] = {
    "cluster": "controller.cluster",
    "nodes": "controller.nodes",
    "executor": "controller.act",
    "policy": "controller.policies",
    "journal": "controller.journal",
    "api": "controller.api",
}
"""Values of `log.debug`, with the logger that each sets to level debug."""


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "subsystem": _subsystem(record.name),
            "message": record.getMessage(),
        }
        for field, about in _subjects(record).items():
            entry[field] = about if isinstance(about, int) else str(about)
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        # ASCII: text from users may have control characters, or lone surrogates that no file can take.
        return json.dumps(entry)


def _subsystem(logger: str) -> str:
    """The name of the flag of `log.debug` for a logger, where it has one."""
    for flag, name in DEBUG_FLAGS.items():
        if f"{logger}.".startswith(f"{name}."):
            return flag + logger.removeprefix(name)
    return logger.removeprefix("controller.")


def _subjects(record: logging.LogRecord) -> dict[str, object]:
    found: dict[str, object] = {}
    if isinstance(record.msg, str) and isinstance(record.args, tuple):
        for match, value in zip(_PLACE.finditer(record.msg), record.args, strict=False):
            field = _NAMES.get(match[1] or "")
            if field is not None:
                found.setdefault(field, value)
    for field in FIELDS:
        about = getattr(record, field, None)
        if about is not None:
            found[field] = about
    return found


class _TextLines(logging.Formatter):
    """As slurmctld writes, with `_AS_TEXT`: `[2026-11-21T10:00:00.123] error: message`."""

    def format(self, record: logging.LogRecord) -> str:
        record.level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        # Text from users must not imitate a line of the log or control a terminal, and may have lone
        # surrogates, which no file can take.
        return "\n    ".join(clean(line) for line in super().format(record).split("\n"))


def configure(settings: LogSettings) -> None:
    """Set the log up, or set it up anew: SIGHUP opens the file again."""
    handler: logging.Handler
    if settings.file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = logging.handlers.WatchedFileHandler(settings.file, encoding="utf-8")
    handler.setFormatter(_JsonLines() if settings.format == "json" else _TextLines(*_AS_TEXT))
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)
    for flag, name in DEBUG_FLAGS.items():
        logging.getLogger(name).setLevel(logging.DEBUG if flag in settings.debug else logging.NOTSET)
    # Libraries that log every connection.
    for name in ("paramiko", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
