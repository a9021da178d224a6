# SPDX-License-Identifier: GPL-2.0-or-later
"""The SSH transport against a server in this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from controller.errors import NodeUnreachable
from controller.nodes.connection import Patience, TransportError
from controller.nodes.port import NodeSample
from controller.nodes.protocol import Answer, Request, encode
from controller.nodes.remote import RemoteNodes
from controller.nodes.ssh import SshTransport, ssh_nodes
from controller.settings.base import split_address
from controller.settings.schema import NodesSettings

from .test_connection import OBSERVED, hello

WAIT_SECONDS = 60.0


class Guard(paramiko.ServerInterface):
    """Lets one key in and notes the command."""

    def __init__(self, key: paramiko.PKey) -> None:
        self._key = key
        self.command: bytes = b""
        self.started = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = username == "root" and key == self._key
        return AUTH_SUCCESSFUL if good else AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.command = command
        self.started.set()
        self.goes_on.wait(2 * WAIT_SECONDS)
        return True


class Server(threading.Thread):
    """sshd with an agent that knows hello and observe."""

    def __init__(self, host_key: paramiko.PKey, user_key: paramiko.PKey) -> None:
        super().__init__(daemon=True)
        self._host_key = host_key
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.guard = Guard(user_key)
        self.transports: list[paramiko.Transport] = []
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self._host_key)
            self.transports.append(transport)
            try:
                transport.start_server(server=self.guard)
            except (paramiko.SSHException, EOFError, OSError):
                continue
            threading.Thread(target=self._serve, args=[transport], daemon=True).start()

    def _serve(self, transport: paramiko.Transport) -> None:
        channel = transport.accept(WAIT_SECONDS)
        if channel is None or not self.guard.started.wait(WAIT_SECONDS):
            return
        buffer = b""
        while data := channel.recv(65536):
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                request = Request.model_validate_json(line)
                result = hello("n1") if request.verb == "hello" else OBSERVED
                channel.sendall(encode(Answer(id=request.id, ok=True, result=result)))
        with suppress(EOFError):  # (the client may not wait for it)
            channel.send_exit_status(0)
            channel.close()

    def close(self) -> None:
        self._socket.close()
        for transport in self.transports:
            transport.close()


class Keys:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = paramiko.ECDSAKey.generate()
        self.host = paramiko.ECDSAKey.generate()
        self.user.write_private_key_file(str(folder / "key"))

    def settings(self, server: Server, known: paramiko.PKey | None) -> NodesSettings:
        hosts = paramiko.HostKeys()
        if known is not None:
            hosts.add(f"[127.0.0.1]:{server.port}", known.get_name(), known)
        hosts.save(str(self.folder / "known_hosts"))
        return NodesSettings(
            ssh_key=self.folder / "key",
            known_hosts=self.folder / "known_hosts",
            connect_deadline_seconds=WAIT_SECONDS,
        )


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def server(keys: Keys) -> Iterator[Server]:
    made = Server(keys.host, keys.user)
    yield made
    made.close()


def test_an_agent_is_started_and_spoken_to(keys: Keys, server: Server) -> None:
    async def scenario() -> None:
        nodes = RemoteNodes(
            SshTransport(keys.settings(server, keys.host)), Patience(first_backoff_seconds=0.01)
        )
        await nodes.set_nodes({"n1": f"127.0.0.1:{server.port}"})
        assert isinstance((await nodes.observe(WAIT_SECONDS))["n1"], NodeSample)
        assert server.guard.command == b"gandiva-agent n1"
        # One connection for everything.
        await nodes.observe(WAIT_SECONDS)
        assert len(server.transports) == 1
        # The host goes down: an error, and later a new connection.
        server.transports[0].close()
        for _ in range(500):
            if len(server.transports) > 1:
                break
            await nodes.observe(WAIT_SECONDS)
            await asyncio.sleep(0.02)
        assert isinstance((await nodes.observe(WAIT_SECONDS))["n1"], NodeSample)
        await nodes.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("said_by_paramiko", [None, EOFError()])
def test_a_server_that_starts_nothing_is_given_up(
    keys: Keys, server: Server, said_by_paramiko: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every try to reach such a node would leave a thread and a connection behind, for ever.

    `said_by_paramiko`: what its reader has met by then, which depends on the moment.
    """
    monkeypatch.setattr(paramiko.Transport, "get_exception", lambda _: said_by_paramiko)
    server.guard.goes_on.clear()
    settings = keys.settings(server, keys.host).model_copy(update={"connect_deadline_seconds": 3.0})
    said: list[str] = []

    def connect() -> None:
        try:
            SshTransport(settings).connect("n1", f"127.0.0.1:{server.port}")
        except TransportError as error:
            said.append(str(error))

    trying = threading.Thread(target=connect, daemon=True)
    trying.start()
    assert server.guard.started.wait(WAIT_SECONDS)
    trying.join(WAIT_SECONDS)
    server.guard.goes_on.set()
    assert said == [f"127.0.0.1:{server.port}: sshd has not started the agent within 3 s"]


@pytest.mark.parametrize("known", ["none", "another"])
def test_a_host_that_cannot_prove_itself_is_not_spoken_to(keys: Keys, server: Server, known: str) -> None:
    other = None if known == "none" else paramiko.ECDSAKey.generate()
    with pytest.raises(TransportError, match=r"known_hosts|host key|Server"):
        SshTransport(keys.settings(server, other)).connect("n1", f"127.0.0.1:{server.port}")
    assert not server.guard.started.is_set()


def test_a_key_that_is_not_let_in_is_named(keys: Keys, server: Server, tmp_path: Path) -> None:
    settings = keys.settings(server, keys.host)
    paramiko.ECDSAKey.generate().write_private_key_file(str(tmp_path / "wrong"))
    wrong = settings.model_copy(update={"ssh_key": tmp_path / "wrong"})
    with pytest.raises(TransportError, match="root is not let in with"):
        SshTransport(wrong).connect("n1", f"127.0.0.1:{server.port}")


@pytest.mark.parametrize("content", [None, "junk", ""])
def test_a_key_file_that_is_none_is_named(
    keys: Keys, server: Server, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "no-key"
    if content is not None:
        path.write_text(content)
    settings = keys.settings(server, keys.host)
    with pytest.raises(TransportError, match="cannot use the key"):
        SshTransport(settings.model_copy(update={"ssh_key": path})).connect("n1", f"127.0.0.1:{server.port}")


def test_nobody_there(keys: Keys, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    async def scenario() -> None:
        nodes = ssh_nodes(keys.settings(server, keys.host))
        await nodes.set_nodes({"n1": f"127.0.0.1:{port}"})
        answer = (await nodes.observe(WAIT_SECONDS))["n1"]
        assert isinstance(answer, NodeUnreachable)
        assert f"127.0.0.1:{port}" in answer.message
        await nodes.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("n1", ("n1", 22)),
        ("n1.example:2222", ("n1.example", 2222)),
        ("[fe80::1]:23", ("fe80::1", 23)),
        ("[::1]", ("::1", 22)),
    ],
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address, 22) == expected


@pytest.mark.parametrize("address", ["", "a b", "n1:", "n1:99999", "::1", "[::1", "n1:x"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(TransportError, match="is no address"):
        SshTransport(NodesSettings()).connect("n1", address)
