# SPDX-License-Identifier: GPL-2.0-or-later
"""The API on a UNIX socket."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api import server as server_module
from controller.api.answers import Answers
from controller.api.client import ApiClient, ApiUnavailable
from controller.api.server import ApiServer
from controller.api.unix_socket import UnixConnection
from controller.errors import GandivaError
from controller.journal import JobFilter, JournalReader

from . import scene


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setattr(server_module, "POLL_SECONDS", 0.02)
    scene.write_journal(tmp_path / "j")
    return Answers(scene.live_state(), JournalReader(tmp_path / "j"))


@pytest.fixture
def path() -> Iterator[Path]:
    """Short, other than pytest's own folders."""

    with tempfile.TemporaryDirectory(prefix="g") as folder:
        yield Path(folder) / "a b?#%"


@pytest.fixture
def client(answers: Answers, path: Path) -> Iterator[ApiClient]:
    """Of a server there."""
    api = ApiServer(f"unix:{path}", answers)
    api.start()
    yield ApiClient(f"unix:{path}")
    api.stop()


def test_it_answers_as_over_tcp(client: ApiClient, path: Path) -> None:
    assert client.status().ticks == 3600
    assert [job.job_id for job in client.jobs(JobFilter(users=("carol",))).jobs] == [103, 104]
    connection = UnixConnection(str(path), 60)
    connection.request("HEAD", "/healthz")
    response = connection.getresponse()
    assert (response.status, response.getheader("Content-Length"), response.read()) == (200, "3", b"")
    connection.close()


def test_only_its_user_can_connect_from_the_first_moment(
    answers: Answers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    activate = ApiServer.server_activate

    def activated(server: ApiServer) -> None:
        modes.append(path.stat().st_mode)
        activate(server)

    monkeypatch.setattr(ApiServer, "server_activate", activated)
    before = os.umask(0)
    try:
        ApiServer(f"unix:{path}", answers).stop()
    finally:
        os.umask(before)
    assert [(stat.S_ISSOCK(mode), stat.S_IMODE(mode)) for mode in modes] == [(True, 0o600)]


def test_the_file_goes_with_the_server(answers: Answers, path: Path) -> None:
    first = ApiServer(f"unix:{path}", answers)
    first.start()
    assert path.is_socket()
    first.stop()
    assert not path.exists()
    first.stop()


def test_another_file_in_its_place_stays(answers: Answers, path: Path) -> None:
    first = ApiServer(f"unix:{path}", answers)
    path.unlink()
    second = ApiServer(f"unix:{path}", answers)
    first.stop()
    assert path.is_socket()
    second.stop()
    assert not path.exists()


def test_what_a_dead_server_left_is_replaced(answers: Answers, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    api = ApiServer(f"unix:{path}", answers)
    api.start()
    assert ApiClient(f"unix:{path}").status().ticks == 3600
    api.stop()


def test_a_living_server_keeps_its_place(client: ApiClient, answers: Answers, path: Path) -> None:
    with pytest.raises(GandivaError, match=r"cannot listen on unix:.*: another server answers there$"):
        ApiServer(f"unix:{path}", answers)
    assert client.status().ticks == 3600


def test_so_does_one_that_is_too_busy_to_answer(answers: Answers, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(GandivaError, match="another server answers there"):
            ApiServer(f"unix:{path}", answers)
        with pytest.raises(ApiUnavailable, match=r"no answer .* is its host overloaded\?$"):
            ApiClient(f"unix:{path}").status()
    assert path.is_socket()


def test_a_file_that_is_no_socket_stays(answers: Answers, path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(GandivaError, match="Address already in use"):
        ApiServer(f"unix:{path}", answers)
    assert path.read_text() == "mine"


def test_a_path_that_is_too_long_and_a_folder_that_is_not_there(answers: Answers, path: Path) -> None:
    longest = path.with_name("s" * (107 - len(str(path.parent)) - 1))
    ApiServer(f"unix:{longest}", answers).stop()
    with pytest.raises(GandivaError, match=r"cannot listen on unix:/.*ss: .*has at most 107 bytes$"):
        ApiServer(f"unix:{longest}s", answers)
    with pytest.raises(GandivaError, match=r"No such file or directory$"):
        ApiServer(f"unix:{path}/none", answers)


def test_clients_that_keep_it_waiting_give_their_places_up(
    client: ApiClient, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places are one user's: more of them than of one address of TCP."""
    monkeypatch.setattr(server_module, "MAX_CLIENTS", 5)
    monkeypatch.setattr(server_module, "MAX_CLIENTS_OF_ADDRESS", 2)
    held = []
    for _ in range(5):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].settimeout(60)
        held[-1].connect(str(path))
    try:
        assert client.status().ticks == 3600
        assert held[0].recv(1) == b"", "the oldest was cut off"
        for sock in held[1:]:
            sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.0 200")
    finally:
        for sock in held:
            sock.close()


def test_nobody_answers(path: Path) -> None:
    with pytest.raises(ApiUnavailable) as none:
        ApiClient(f"unix:{path}", check="is there one?").status()
    assert str(none.value) == (
        f"cannot reach the Gandiva controller at unix:{path} (No such file or directory): is there one?"
    )


def test_a_server_that_never_answers_and_one_that_is_not_http(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        begin = time.monotonic()
        with pytest.raises(ApiUnavailable, match=r"within 0\.2 s"):
            ApiClient(f"unix:{path}", deadline_seconds=0.2).status()
        assert time.monotonic() - begin < 4
        sock.accept()[0].close()

        def respond() -> None:
            peer, _ = sock.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=respond)
        thread.start()
        with pytest.raises(ApiUnavailable, match="not an HTTP answer"):
            ApiClient(f"unix:{path}").status()
        thread.join()
