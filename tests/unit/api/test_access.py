# SPDX-License-Identifier: GPL-2.0-or-later
"""Who sees jobs: with `api.private_data` only callers that have the token."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.access import ENVIRONMENT, Access, client_token, read_token
from controller.api.answers import Answers
from controller.api.client import ApiClient, ApiRefused
from controller.api.live import Health
from controller.api.server import ApiServer
from controller.checks.controller import judge_api
from controller.cli.main import main
from controller.daemon import daemon
from controller.errors import SettingsError
from controller.journal import JobFilter, JournalReader
from controller.settings.loading import parse_settings

from . import scene

TOKEN = "0123456789abcdef-secret"
USERS = ("alice", "bob", "carol", "dave")
PAGES = ("/v1/gpus", "/v1/jobs", "/v1/jobs?user=alice", "/v1/timeline", "/v1/explain/101")


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    scene.write_journal(tmp_path / "j")
    live = scene.live_state()
    trouble = Health("gandiva", 0, problems=("job 101 of alice cannot be suspended",))
    live.publish(scene.cycle(), trouble)
    return Answers(live, JournalReader(tmp_path / "j"), access=Access(TOKEN))


@pytest.fixture
def server(answers: Answers) -> Iterator[ApiServer]:
    api = ApiServer("127.0.0.1:0", answers)
    api.start()
    yield api
    api.stop()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o640)
    return path


def ask(server: ApiServer, target: str, authorization: str = "", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, target, headers={"Authorization": authorization} if authorization else {})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


def names(text: str) -> list[str]:
    # Not the digits of a time: 1795875.101
    return [name for name in (*USERS, "101", "103") if re.search(rf"(?<![\d.]){name}(?![\d.])", text)]


def test_the_scene_has_something_to_hide(server: ApiServer) -> None:
    _, body = ask(server, "/v1/jobs", f"Bearer {TOKEN}")
    assert set(names(body)) >= {"alice", "101"}


@pytest.mark.parametrize("target", PAGES)
def test_without_the_token_no_job_is_shown(server: ApiServer, target: str) -> None:
    status, body = ask(server, target)
    assert status == 403 and names(body) == [] and "api.private_data" in body and ENVIRONMENT in body
    assert ask(server, target, method="HEAD")[0] == 403
    assert ask(server, target, f"Bearer {TOKEN}")[0] == 200


def test_without_the_token_there_are_figures(server: ApiServer) -> None:
    status, body = ask(server, "/v1/status")
    figures = json.loads(body)
    assert status == 200 and names(body) == []
    assert figures["jobs_by_phase"] == {"running": 2, "suspended": 1, "starting": 1, "queued": 1}
    assert figures["events"] == [] and not figures["healthy"]
    assert figures["problems"] == ["1 of them, for callers with the controller's token: they may name jobs"]
    for target in ("/metrics", "/healthz"):
        status, body = ask(server, target)
        assert status == 200 and not any(user in body for user in USERS)


def test_healthz_tells_strangers_no_reasons(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_stale_seconds", -1.0)
    assert answers.get("/healthz", {}).status == 503
    assert b"alice" not in answers.get("/healthz", {}).body
    assert b"alice" in answers.get("/healthz", {}, f"Bearer {TOKEN}").body


@pytest.mark.parametrize("given", ["Bearer wrong", "Basic Og==", "Bearer ", "x" * 5000, "Bearer \xff"])
def test_a_wrong_token_is_told_as_such(server: ApiServer, given: str) -> None:
    for target in ("/v1/jobs", "/v1/status"):
        status, body = ask(server, target, given)
        assert status == 401 and "api.token_file" in body and names(body) == []


def test_the_token_is_in_no_log(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(server, "/v1/jobs", f"Bearer {TOKEN}")
        ask(server, "/v1/jobs", f"Bearer {TOKEN}x")
    assert "/v1/jobs" in caplog.text and TOKEN not in caplog.text
    assert TOKEN not in repr(Access(TOKEN))


def test_the_client_sends_it(server: ApiServer) -> None:
    url = f"http://127.0.0.1:{server.port}"
    assert [job.job_id for job in ApiClient(url, token=TOKEN).jobs(JobFilter(job_ids=(101,))).jobs] == [101]
    with pytest.raises(ApiRefused, match=r"api\.private_data"):
        ApiClient(url).explain(101)


def test_commands_take_it_from_the_settings_or_the_environment(
    server: ApiServer, token_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url = f"http://127.0.0.1:{server.port}"
    config = tmp_path / "gandiva.toml"
    config.write_text(f'[api]\nurl = "{url}"\nprivate_data = true\ntoken_file = "{token_file}"\n')
    assert main(["explain", "--config", str(config), "101"]) == 0
    assert "101" in capsys.readouterr().out
    assert main(["report", "--url", url]) == 1, "the settings' token goes nowhere else"
    assert ENVIRONMENT in capsys.readouterr().err
    monkeypatch.setenv(ENVIRONMENT, str(token_file))
    assert main(["report", "--url", url]) == 0
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "none"))
    assert main(["report", "--url", url]) == 1
    shown = capsys.readouterr()
    assert f"cannot read the token file {tmp_path / 'none'}" in shown.err


def test_a_user_who_may_not_read_it_asks_without(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_token(token_file) == TOKEN
    assert client_token(None) is None and client_token(token_file.parent / "none") is None
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert client_token(token_file) is None


def test_the_check_asks_for_what_its_user_may_see(server: ApiServer) -> None:
    url = f"http://127.0.0.1:{server.port}"
    (_, without), (_, told) = (list(judge_api(url, 5.0, token))[:2] for token in (None, TOKEN))
    assert "for callers with the controller's token" in without.found and "alice" in told.found
    assert not any("cannot be suspended is not known" in f.found for f in judge_api(url, 5.0))


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (TOKEN, 0o644, "others may read or change"),
        (TOKEN, 0o660, "others may read or change"),
        (TOKEN, 0o602, "others may read or change"),
        ("short", 0o600, "16 to 256 characters"),
        ("", 0o600, "16 to 256 characters"),
        ("x" * 257, 0o600, "16 to 256 characters"),
        (TOKEN + "\nmore", 0o600, "16 to 256 characters"),
        (TOKEN + "ü", 0o600, "16 to 256 characters"),
    ],
)
def test_a_bad_token_file_is_refused(tmp_path: Path, text: str, mode: int, message: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(SettingsError, match=message) as refused:
        read_token(path)
    assert str(path) in str(refused.value) and TOKEN not in str(refused.value)


def test_no_file_and_no_regular_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SettingsError, match="cannot read the token file"):
            read_token(path)
    with pytest.raises(SettingsError):
        read_token(Path("/dev/zero"))


def test_hiding_jobs_needs_a_token() -> None:
    with pytest.raises(SettingsError, match="needs a token_file"):
        parse_settings("[api]\nprivate_data = true\n")
    assert not parse_settings("").api.private_data


def test_the_daemon_asks_for_it_with_private_data_only(token_file: Path) -> None:
    lines = f'[api]\ntoken_file = "{token_file}"\nprivate_data = '
    assert daemon._token(parse_settings(lines + "true")) == TOKEN
    assert daemon._token(parse_settings(lines + "false")) is None
    token_file.chmod(0o644)
    with pytest.raises(SettingsError, match="others may read"):
        daemon._token(parse_settings(lines + "true"))


def test_by_default_everybody_sees_all(tmp_path: Path) -> None:
    scene.write_journal(tmp_path / "open")
    open_to_all = Answers(scene.live_state(), JournalReader(tmp_path / "open"))
    sent: list[Any] = [open_to_all.get("/v1/jobs", {}), open_to_all.get("/v1/jobs", {}, "Bearer whatever")]
    assert [answer.status for answer in sent] == [200, 200]
