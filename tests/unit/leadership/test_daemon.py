# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's start and its signals."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from controller.daemon import daemon
from controller.errors import SettingsError
from controller.settings.loading import load_settings


@pytest.fixture
def log_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("log_as_before")
def test_a_log_that_cannot_be_written_is_said_while_there_is_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the background nobody would hear of it: the command ended well, and no daemon would be there."""
    settings = tmp_path / "gandiva.toml"
    settings.write_text(f'[log]\nfile = "{tmp_path}/none/gandiva.log"\n')
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("in the background already"))
    with pytest.raises(SettingsError, match=r"log\.file: cannot write .*none/gandiva\.log"):
        daemon.run(settings, foreground=False)


@pytest.mark.usefixtures("log_as_before")
@pytest.mark.parametrize("stopping", [False, True])
async def test_settings_are_not_reloaded_while_the_jobs_are_released(tmp_path: Path, stopping: bool) -> None:
    """Another policy would suspend and place jobs again while the daemon goes."""
    path = tmp_path / "gandiva.toml"
    path.write_text("")
    made = daemon.Daemon(path, load_settings(path))
    made._controller = controller = MagicMock()
    path.write_text('[policy]\nname = "fifo"\n')
    if stopping:
        made._stop.set()
    made._reload()
    assert controller.use_settings.called is not stopping
