# SPDX-License-Identifier: GPL-2.0-or-later
"""Which clusters a test run takes for those of runs that were killed, and whose lock folder it believes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from container import cluster, engine
from container.containers import SPEC_LABEL
from container.errors import EngineError
from container.spec import ClusterSpec


def test_only_clusters_of_processes_that_are_gone_are_leftovers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [f"test-{ended.pid}", f"test-{ended.pid}-b", f"test-{os.getpid()}"]
    others = [f"test-{os.getppid()}", f"test-{os.getppid()}-b", "dev", "test-x", f"packages-{ended.pid}"]
    members = {
        name: [SimpleNamespace(labels={SPEC_LABEL: ClusterSpec(name=name).model_dump_json()})]
        for name in (*names, *others)
    }
    removed: list[str] = []
    monkeypatch.setattr(engine, "_STATE", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cluster, "clusters", lambda _client: members)
    monkeypatch.setattr(cluster.MiniCluster, "down", lambda self: removed.append(self.name))
    cluster.remove_leftovers(None, "test-")
    assert removed == names


def test_a_lock_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "gandiva-4711"
    folder.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(EngineError, match="gandiva-4711"), engine.exclusive("build"):
        pass
    folder.unlink()
    folder.mkdir()  # by whoever runs this, who is not 4711
    with pytest.raises(EngineError, match="gandiva-4711"), engine.exclusive("build"):
        pass
    assert list(folder.iterdir()) == [] == list((tmp_path / "elsewhere").iterdir())
