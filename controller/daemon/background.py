# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva daemon` as a process: its log, the way into the background, its exit status."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from controller.daemon import logs
from controller.daemon.daemon import Daemon
from controller.errors import GandivaError, SettingsError
from controller.policies.assemble import make_policy
from controller.settings.loading import load_settings
from controller.settings.schema import Settings

log = logging.getLogger(__name__)


def run(settings_path: Path, *, foreground: bool) -> int:
    """Run the daemon; returns its exit status. Without `foreground` it goes into the background first."""
    settings = load_settings(settings_path)
    try:
        # While there is a terminal that can show what is wrong with the log.
        logs.configure(settings.log)
    except OSError as error:
        raise SettingsError(f"log.file: cannot write {settings.log.file}: {error.strerror}") from error
    # A policy that cannot be made is an error now, not when this controller has to take over.
    make_policy(settings.policy)
    if not foreground:
        _to_background(settings)
    try:
        asyncio.run(Daemon(settings_path, settings).run())
    except GandivaError as error:
        log.critical("%s", error)
        return 1
    return 0


def _to_background(settings: Settings) -> None:
    if settings.log.file is None:
        raise SettingsError(
            "without -D the daemon needs log.file in the settings: it has no terminal to write to"
        )
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
