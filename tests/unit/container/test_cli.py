# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva-cluster controller`: settings that somebody edited are not overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container import render
from container.cli import main
from container.cluster import CONTROLLER_SETTINGS, MiniCluster
from container.execute import Completed

EDITED = "[policy.gandiva]\nslice_seconds = 3.0\n"
HOSTS = ("ctl", "login")


class Cluster(MiniCluster):
    """Its hosts are a dictionary of files."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[tuple[str, str], str | bytes] = {(h, CONTROLLER_SETTINGS): EDITED for h in HOSTS}
        self.did: list[str] = []
        self.running = False
        self.complaint = ""

    def exec(self, host: str, command: str | Sequence[str], **more: Any) -> Completed:
        if command == ["cat", CONTROLLER_SETTINGS]:
            return Completed(str(self.files.get((host, CONTROLLER_SETTINGS), "")), "", 0)
        if command[:3] == ["gandiva", "config", "check"]:
            assert more["stdin"] == b"new = 1\n"
            return Completed("", self.complaint, int(bool(self.complaint)))
        return Completed("", "", 0)

    def write_file(
        self, host: str, path: str, text: str | bytes, mode: int = 0o644, owner: str = "root"
    ) -> None:
        self.files[host, path] = text

    def service(self, host: str, name: str) -> Any:
        return SimpleNamespace(
            start=lambda: self.did.append("start"),
            stop=lambda: self.did.append("stop"),
            running=lambda: self.running,
        )

    @property
    def settings(self) -> set[str | bytes | None]:
        return {self.files.get((host, CONTROLLER_SETTINGS)) for host in HOSTS}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(MiniCluster, "attach", lambda _: made)
    (tmp_path / "new.toml").write_text("new = 1\n")
    monkeypatch.chdir(tmp_path)
    return made


@pytest.mark.parametrize(("action", "did"), [("start", ["start"]), ("restart", ["stop", "start"])])
def test_the_controller_goes_on_with_the_settings_that_are_there(
    cluster: Cluster, action: str, did: list[str]
) -> None:
    assert main(["controller", action]) == 0
    assert cluster.did == did and cluster.settings == {EDITED}


@pytest.mark.parametrize("overrides", [{}, {"loop": {"interval_seconds": 0.25}}])
def test_settings_that_a_caller_gives_replace_the_file(
    cluster: Cluster, overrides: Mapping[str, Any]
) -> None:
    cluster.start_controller(overrides)
    assert cluster.settings == {render.controller_toml(cluster.spec, overrides)}


def test_a_cluster_without_settings_gets_the_default(cluster: Cluster) -> None:
    cluster.files.clear()
    assert main(["controller", "start"]) == 0
    assert cluster.settings == {render.controller_toml(cluster.spec)}


def test_a_file_replaces_the_settings(cluster: Cluster) -> None:
    cluster.running = True
    assert main(["controller", "restart", "--settings", "new.toml"]) == 0
    assert cluster.did == ["stop", "start"] and cluster.settings == {b"new = 1\n"}


@pytest.mark.parametrize(
    ("words", "complaint", "said"),
    [
        (
            ["restart", "--settings", "new.toml"],
            "gandiva: /dev/stdin: new: no such key\n",
            "new.toml: new",
        ),
        (["restart", "--settings", "nowhere.toml"], "", "No such file or directory: 'nowhere.toml'"),
        (["start", "--settings", "new.toml"], "", "runs already"),
        (["stop", "--settings", "new.toml"], "", "not with stop"),
        (["log", "--settings", "new.toml"], "", "not with log"),
    ],
)
def test_one_clear_error_and_nothing_is_changed(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    complaint: str,
    said: str,
) -> None:
    cluster.running, cluster.complaint = True, complaint
    assert main(["controller", *words]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gandiva-cluster: ") and said in err and err.count("\n") == 1
    assert cluster.did == [] and cluster.settings == {EDITED}
