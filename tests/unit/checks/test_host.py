# SPDX-License-Identifier: GPL-2.0-or-later
"""Permissions, journal, API, the examination as a whole, and how it is printed."""

from __future__ import annotations

import json
import logging
import os
import pwd
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller import __version__
from controller.api.client import ApiClient, ApiRefused
from controller.api.messages import StatusMessage
from controller.checks import gather
from controller.checks.controller import judge_api, judge_journal
from controller.checks.files import Account, is_controllers, judge_client, judge_permissions
from controller.checks.finding import Finding, Level, Subject, as_json, table
from controller.cli.main import main
from controller.errors import ClusterUnavailable
from controller.journal import Journal
from controller.reports.text import width
from controller.settings.schema import Settings

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """That other users may enter. Each run of pytest closes the folders of all."""
    with tempfile.TemporaryDirectory(prefix="gandiva-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def site(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Settings, Path]:
    """Settings, key, known_hosts and journal folder in order, for an account that is nobody special."""
    etc, lib = open_folder / "etc", open_folder / "lib"
    for folder in (etc, lib):
        folder.mkdir(mode=0o755)
    for name, mode in (("gandiva.toml", 0o644), ("key", 0o600), ("known_hosts", 0o644)):
        (etc / name).write_text("x\n")
        (etc / name).chmod(mode)
    status = lib.stat()
    account = Account("gandiva", status.st_uid or 4242, frozenset({status.st_gid or 4242}))
    monkeypatch.setattr(Account, "find", classmethod(lambda _cls, _name: account))
    if status.st_uid == 0:
        # Run by root: the files are given to somebody whose rights are not root's.
        for path in (lib, etc / "key"):
            os.chown(path, 4242, 4242)
    settings = Settings.model_validate(
        {
            "nodes": {"ssh_key": str(etc / "key"), "known_hosts": str(etc / "known_hosts")},
            "journal": {"path": str(lib / "journal.sqlite")},
        }
    )
    return settings, etc / "gandiva.toml"


def bad(findings: Any) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def permissions(site: tuple[Settings, Path]) -> list[Finding]:
    return list(judge_permissions(site[0], site[1], "gandiva", "ctl"))


def test_permissions_in_order(site: tuple[Settings, Path]) -> None:
    assert bad(permissions(site)) == []


@pytest.mark.parametrize(
    ("which", "mode", "level", "change"),
    [
        ("key", 0o644, "error", "chmod 600"),
        ("key", 0o640, "error", "chmod 600"),
        ("key", 0o000, "error", "chown gandiva"),
        ("known_hosts", 0o666, "error", "chmod go-w"),
        ("toml", 0o600, "warning", "chmod 644"),
        ("toml", 0o666, "error", "chmod go-w"),
        ("lib", 0o555, "error", "install -d -o gandiva -m 750"),
        ("lib", 0o777, "error", "chmod o-w"),
    ],
)
def test_one_wrong_mode_is_one_finding(
    site: tuple[Settings, Path], which: str, mode: int, level: str, change: str
) -> None:
    settings, toml = site
    path = {
        "key": settings.nodes.ssh_key,
        "known_hosts": settings.nodes.known_hosts,
        "toml": toml,
        "lib": settings.journal.path.parent,
    }[which]
    if which == "toml" and toml.stat().st_uid == 0:
        os.chown(toml, 4242, 4242)
    path.chmod(mode)
    try:
        (finding,) = bad(permissions(site))
    finally:
        path.chmod(0o755)
    assert finding.level.value == level and finding.where == str(path)
    assert change in finding.change, finding


def test_a_policy_that_others_can_write_is_named(site: tuple[Settings, Path]) -> None:
    settings, toml = site
    file = toml.parent / "mine.py"
    file.write_text("class Mine:\n    def plan(self, snapshot, memory): ...\n")
    file.chmod(0o644)
    policy = settings.policy.model_copy(update={"name": f"{file}:Mine"})
    settings = settings.model_copy(update={"policy": policy})
    assert bad(permissions((settings, toml))) == []
    file.chmod(0o646)
    (finding,) = bad(permissions((settings, toml)))
    assert (finding.level, finding.check, finding.change) == (Level.ERROR, "policy", f"chmod go-w {file}")


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (0o640, ""),
        (0o600, ""),
        (0o644, "others may use it"),
        (0o660, "others may use it"),
    ],
)
def test_the_token_of_the_api_is_for_few(site: tuple[Settings, Path], mode: int, text: str) -> None:
    settings, toml = site
    token = toml.parent / "token"
    token.write_text("x" * 32)
    os.chown(token, settings.nodes.ssh_key.stat().st_uid, -1)
    token.chmod(mode)
    api = settings.api.model_copy(update={"token_file": token})
    found = bad(permissions((settings.model_copy(update={"api": api}), toml)))
    assert [(f.where, f.check) for f in found] == ([(str(token), "API token")] if text else [])
    assert not text or (text in found[0].found and f"chmod 640 {token}" in found[0].change)


def test_what_is_not_there_is_told_with_the_command_that_makes_it(site: tuple[Settings, Path]) -> None:
    settings, _ = site
    settings.nodes.ssh_key.unlink()
    settings.nodes.known_hosts.write_text("")
    key, hosts = bad(permissions(site))
    assert key.change.endswith(f"ssh-keygen -t ed25519 -N '' -f {settings.nodes.ssh_key}")
    assert hosts.found == "is empty" and "ssh-keyscan" in hosts.change


def led_by(settings: Settings, leader: str) -> Settings:
    cluster = settings.cluster.model_copy(update={"controller_host": leader})
    return settings.model_copy(update={"cluster": cluster})


def test_whose_host_it_is(site: tuple[Settings, Path]) -> None:
    settings, _ = site
    assert is_controllers(led_by(settings, "other.invalid"), "login"), "it has the key: it is to take over"
    settings.nodes.ssh_key.unlink()
    for leader, its in (("localhost", True), ("login.hpc", True), ("127.0.0.1", True), ("192.0.2.1", False)):
        assert is_controllers(led_by(settings, leader), "login") is its, leader
    assert not is_controllers(led_by(settings, "no-such-host.invalid"), "login")


def test_a_login_node_needs_readable_settings_only(site: tuple[Settings, Path]) -> None:
    settings, toml = site
    settings.nodes.ssh_key.unlink()
    settings.nodes.known_hosts.unlink()
    found = list(judge_client(led_by(settings, "ctl"), toml, "login"))
    assert bad(found) == [] and "is on ctl" in found[-1].found
    toml.chmod(0o640)
    (finding,) = bad(judge_client(led_by(settings, "ctl"), toml, "login"))
    assert finding.level is Level.WARNING and "chmod 644" in finding.change


def test_a_folder_on_the_way_that_may_not_be_entered(site: tuple[Settings, Path]) -> None:
    settings, _ = site
    etc = settings.nodes.ssh_key.parent
    if etc.stat().st_uid == os.getuid() != 0:
        pytest.skip("only root can have a folder of another's")
    etc.chmod(0o700)
    found = bad(permissions(site))
    assert {finding.check for finding in found} == {"settings", "SSH key", "known_hosts"}
    assert all(f"may not enter {etc}" in finding.found for finding in found)


def test_a_user_that_is_not_there() -> None:
    (finding,) = judge_permissions(Settings(), Path("/etc/x"), "nobody-of-this-name", "ctl")
    assert finding.level is Level.ERROR and "systemd-sysusers" in finding.change


# -- journal and API ----------------------------------------------------------------------------------


def test_journals(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    assert bad(judge_journal(path)) == []
    Journal(path).close()
    assert bad(judge_journal(path)) == []
    (tmp_path / "journal.sqlite.damaged-1").touch()
    (finding,) = bad(judge_journal(path))
    assert "set aside" in finding.found and finding.level is Level.WARNING
    (tmp_path / "journal.sqlite.damaged-1").unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE slices")
    assert {finding.level for finding in bad(judge_journal(path))} == {Level.ERROR}
    path.write_bytes(b"no database at all" * 1000)
    (finding,) = bad(judge_journal(path))
    assert finding.level is Level.ERROR


def test_no_controller_is_a_warning_and_something_else_on_its_port_an_error() -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        (finding,) = judge_api(url, 60.0)
        thread.join(60)
        assert finding.level is Level.ERROR and "not Gandiva's" in finding.found
    (finding,) = judge_api(url, 60.0)
    assert finding.level is Level.WARNING and "systemctl start gandiva" in finding.change


def test_a_controller_that_has_just_started_gets_time_for_its_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def status(client: ApiClient) -> StatusMessage:
        asked.append(client.url)
        if len(asked) < 3:
            refused = ApiRefused("has just started: try again")
            refused.status = 503
            raise refused
        return StatusMessage(time=time.time(), version=__version__, policy="gandiva", started=0.0)

    monkeypatch.setattr(ApiClient, "status", status)
    (finding,) = judge_api("http://ctl:6822", 5.0)
    assert finding.level is Level.OK and len(asked) == 3
    asked.clear()
    (finding,) = judge_api("http://ctl:6822", 0.0)
    assert finding.level is Level.ERROR and "try again" in finding.found


def test_problems_of_the_controller_are_named_but_not_hundreds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each job that cannot be suspended, for example."""
    problems = [f"job {number} of user eve keeps 1 GPU" for number in range(22)]
    status = StatusMessage(
        time=time.time(), version=__version__, policy="gandiva", started=0.0, problems=problems
    )
    monkeypatch.setattr(ApiClient, "status", lambda _client: status)
    _, first, *_, last = judge_api("http://ctl:6822", 5.0)
    assert (first.level, first.found) == (Level.WARNING, problems[0])
    assert last.found == "and 2 more"


# -- the whole ----------------------------------------------------------------------------------------


async def test_without_slurm_and_settings_the_rest_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_argv: str, what: str) -> str:
        raise ClusterUnavailable(f"{what}: cannot run scontrol")

    monkeypatch.setattr(gather, "run", silent)
    broken = tmp_path / "gandiva.toml"
    broken.write_text("[cluster]\nadapter = 'none'\n")
    found = await gather.examine(gather.Request(broken, user="nobody-of-this-name", deadline_seconds=60))
    errors = {finding.check: finding for finding in found if finding.level is Level.ERROR}
    assert {"settings", "slurmctld", "user"} <= set(errors)
    assert "cluster.adapter" in errors["settings"].found


async def test_deprecated_settings_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_argv: str, what: str) -> str:
        raise ClusterUnavailable(f"{what}: cannot run scontrol")

    monkeypatch.setattr(gather, "run", silent)
    old = tmp_path / "gandiva.toml"
    old.write_text("[policy.pack]\ntrial_seconds = 30\n")
    found = await gather.examine(gather.Request(old, user="nobody-of-this-name", deadline_seconds=60))
    (warning,) = [f for f in found if f.check == "settings" and f.level is Level.WARNING]
    assert "is deprecated" in warning.found and warning.change == f"edit {old}"
    assert "policy.pack.trial_seconds" in warning.found and "policy.trials.trial_seconds" in warning.found


@pytest.fixture
def slurm_with_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"name": "n1", "state": ["IDLE"], "gres": "gpu:a100_0:1,shard:a100_0:16", "version": "26.05.5"}

    async def slurm(*_argv: str, what: str) -> str:
        answers = {
            "reading the nodes": json.dumps({"nodes": [node]}),
            "reading the partitions": "PartitionName=gpu ExclusiveUser=YES Nodes=n1 State=UP\n",
        }
        return answers.get(what, "SLURM_VERSION = 26.05.5\n")

    monkeypatch.setattr(gather, "run", slurm)


@pytest.mark.usefixtures("slurm_with_a_node")
async def test_on_a_login_node_what_is_the_controllers_is_left_to_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(*_anything: object) -> dict[str, Any]:
        raise AssertionError("the agents are the controller's alone")

    monkeypatch.setattr(gather, "ask_agents", asked)
    monkeypatch.setattr("controller.checks.controller.judge_api", lambda *_: [])
    settings = tmp_path / "gandiva.toml"
    settings.write_text(f'[cluster]\ncontroller_host = "192.0.2.1"\n[nodes]\nssh_key = "{tmp_path}/none"\n')
    settings.chmod(0o644)
    found = await gather.examine(gather.Request(settings, user="nobody-of-this-name", deadline_seconds=60))
    checks = {finding.check for finding in found}
    assert {"controller", "GresTypes", "GRES", "state"} <= checks
    assert checks.isdisjoint({"user", "SSH key", "known_hosts", "journal", "agent", "agents"})
    assert [f.where for f in found if f.check == "settings" and f.level is not Level.OK] == []


async def test_nodes_that_a_site_has_not_taken_in_yet_are_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = "gpu:a100_0:1,shard:a100_0:16", "gpu:a100:4"
    gres = {"n1": ours, "n2": theirs, "n3": "gpu:a100_0:1"}

    async def slurm(*_argv: str, what: str) -> str:
        nodes = [
            {"name": name, "state": ["IDLE"], "gres": gres[name], "active_features": ["gandiva_a100"]}
            for name in gres
        ]
        return json.dumps({"nodes": nodes}) if what == "reading the nodes" else "SLURM_VERSION = 26.05.5\n"

    async def levels_of(*nodes: str) -> dict[str, set[str]]:
        found = await gather.examine(gather.Request(tmp_path / "none", deadline_seconds=60, nodes=nodes))
        return {name: {f.level.value for f in found if f.where == name} for name in gres}

    monkeypatch.setattr(gather, "run", slurm)
    assert await levels_of() == {"n1": {"ok"}, "n2": {"ok"}, "n3": {"ok", "error"}}, (
        "n3: shards were forgotten"
    )
    assert "error" in (await levels_of("n2"))["n2"], "asked for by name it is to be shared"
    gres.update(n1=theirs, n3=theirs)
    assert "error" in (await levels_of())["n2"], "where no node is shared, that is what was forgotten"


@pytest.mark.usefixtures("slurm_with_a_node")
async def test_without_settings_it_says_where_to_get_them_and_looks_at_slurm(tmp_path: Path) -> None:
    found = await gather.examine(gather.Request(tmp_path / "none.toml", deadline_seconds=60))
    (settings,) = [finding for finding in found if finding.check == "settings"]
    assert settings.level is Level.WARNING and "login nodes: copy that file" in settings.change
    checks = {finding.check for finding in found}
    assert {"GresTypes", "GRES"} <= checks
    assert checks.isdisjoint({"SSH key", "API", "journal", "agents", "agent"}), (
        "defaults say nothing of a site"
    )


async def test_what_hangs_is_a_finding_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio
    import threading

    release = threading.Event()

    async def hang(*_argv: str, what: str) -> str:
        await asyncio.sleep(120)
        return what

    def stuck(_path: Path) -> list[Finding]:
        release.wait(120)
        return []

    monkeypatch.setattr(gather, "run", hang)
    monkeypatch.setattr("controller.checks.controller.judge_journal", stuck)
    settings = tmp_path / "gandiva.toml"
    settings.write_text("")
    began = time.monotonic()
    found = await gather.examine(gather.Request(settings, deadline_seconds=0.3))
    took = time.monotonic() - began
    release.set()
    assert took < 60, "it waited for what hangs"
    said = {finding.check: finding.found for finding in found if finding.level is Level.ERROR}
    assert said["journal"] == "nothing known after 0.3 s"
    assert said["slurmctld"].endswith("scontrol did not answer within 0.3 s")


async def test_a_key_that_cannot_be_opened_in_time_is_a_finding_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that hangs; here it is a pipe that nobody writes to."""
    node = {"name": "n1", "state": ["IDLE"], "gres": "gpu:a100_0:1,shard:a100_0:16", "version": "26.05.5"}

    async def slurm(*_argv: str, what: str) -> str:
        return json.dumps({"nodes": [node]}) if what == "reading the nodes" else "SLURM_VERSION = 26.05.5\n"

    monkeypatch.setattr(gather, "run", slurm)
    key, settings = tmp_path / "key", tmp_path / "gandiva.toml"
    os.mkfifo(key)
    settings.write_text(f'[nodes]\nssh_key = "{key}"\n')
    found = await gather.examine(gather.Request(settings, deadline_seconds=0.5))
    os.close(os.open(key, os.O_WRONLY | os.O_NONBLOCK))  # lets the thread that waits for it go
    said = {finding.check: finding.found for finding in found}
    assert said["agents"].startswith(f"not asked: {key} or ") and said["agents"].endswith("no answer")
    assert "state" in said and "GRES" in said


@pytest.fixture
def levels() -> Iterator[None]:
    """The command silences these for its process."""
    loggers = [logging.getLogger(name) for name in ("paramiko", "controller", "asyncio")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("levels")
def test_the_command_exits_by_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def silent(*_argv: str, what: str) -> str:
        raise ClusterUnavailable(f"{what}: no")

    monkeypatch.setattr(gather, "run", silent)
    arguments = ["check", "--config", str(tmp_path / "none"), "--user", ME, "--deadline", "5"]
    assert main([*arguments, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == 2 and answer["errors"] >= 1
    assert main([*arguments, "-q"]) == 2
    assert "\nok " not in capsys.readouterr().out


def test_the_table_lines_up_and_folds_what_is_well() -> None:
    findings = [
        *(Subject(f"n{i}", "clock").ok("as this host's") for i in range(1, 501)),
        Subject("n7", "agent").error("cannot be reached: " + "word " * 30, "systemctl start sshd on n7"),
        Subject("slurm", "GresTypes").ok("gpu,shard\x1b[2J"),
    ]
    lines = list(table(findings, 80))
    assert len(lines) < 12 and all(width(line) <= 80 for line in lines)
    assert lines[1].startswith("ok     n1 and 499 more clock")
    column = lines[0].index("FOUND")
    assert all(line[column - 1] == " " and line[column] != " " for line in lines[1:-1])
    assert any("-> systemctl start sshd on n7" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert lines[-1] == "502 checks: 1 error"
    assert json.loads(as_json(findings))["findings"][500]["level"] == "error"
