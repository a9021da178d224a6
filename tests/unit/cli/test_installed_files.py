# SPDX-License-Identifier: GPL-2.0-or-later
"""What is installed beside the program agrees with it."""

from __future__ import annotations

import configparser
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from controller.cli.main import build_parser
from controller.daemon.publishing import tell_systemd
from controller.settings.schema import Settings

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(CONFIGS / "systemd" / name)
    return parser


def test_the_unit_starts_what_there_is() -> None:
    service = unit("gandiva.service")["Service"]
    program, *arguments = service["ExecStart"].split()
    assert Path(program).name == "gandiva"
    args = build_parser().parse_args(arguments)
    assert args.command == "daemon" and args.foreground
    assert service["Type"] == "notify"


def test_the_unit_may_write_where_the_settings_say() -> None:
    service = unit("gandiva.service")["Service"]
    assert Settings().journal.path.parent == Path("/var/lib") / service["StateDirectory"]
    assert Settings().nodes.ssh_key.parent == Path("/etc") / service["ConfigurationDirectory"]
    assert service["ProtectSystem"] == "strict"


def test_the_user_of_the_unit_is_made() -> None:
    lines = (CONFIGS / "sysusers.d/gandiva.conf").read_text().splitlines()
    (user,) = [line.split() for line in lines if line.startswith("u ")]
    assert user[1] == unit("gandiva.service")["Service"]["User"]


def test_log_rotation_reloads_the_unit() -> None:
    text = (CONFIGS / "logrotate.d/gandiva").read_text()
    assert "systemctl reload gandiva.service" in text
    assert f"/var/log/{unit('gandiva.service')['Service']['LogsDirectory']}/" in text


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="systemd-tmpfiles is not installed")
def test_folders_are_made(tmp_path: Path) -> None:
    subprocess.run(
        ["systemd-tmpfiles", f"--root={tmp_path}", "--create", str(CONFIGS / "tmpfiles.d/gandiva.conf")],
        check=True,
        timeout=60,
    )
    assert (tmp_path / "run/gandiva").is_dir() and (tmp_path / "run/gpustat").is_dir()


# -- sd_notify ---------------------------------------------------------------------------------


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        assert tell_systemd("READY=1", "two\nlines")
        assert listener.recv(1000) == b"READY=1\nSTATUS=two lines"
        assert tell_systemd("STOPPING=1")
        assert listener.recv(1000) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/socket"])
def test_without_systemd_nothing_happens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not tell_systemd("READY=1")
