# SPDX-License-Identifier: GPL-2.0-or-later
"""SIGHUP: the settings are read again. Settings with a mistake in them change nothing."""

from __future__ import annotations

import logging
from pathlib import Path

from controller.daemon import logs
from controller.errors import GandivaError
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.loading import load_settings
from controller.settings.schema import Settings, needs_restart

log = logging.getLogger(__name__)


def reload(path: Path, old: Settings) -> tuple[Settings, Policy] | None:
    """The settings now and their policy; the log is set up anew. None: they cannot be used, the log says
    why."""
    try:
        new = load_settings(path)
        policy = make_policy(new.policy)
        logs.configure(new.log)
    except (GandivaError, OSError) as error:
        log.error(
            "settings not reloaded, the old ones stay in force: %s; correct them and reload again",
            error,
            extra={"file": path},
        )
        return None
    for key in needs_restart(old, new):
        log.warning("%s has changed, which takes effect at the next start only", key)
    return new, policy
