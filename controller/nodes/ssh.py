# SPDX-License-Identifier: GPL-2.0-or-later
"""Agents over SSH: one connection and one channel per node, through paramiko.

Keys only, host keys strictly checked against a file, no agent, no configuration of the user's. On the node
the key is bound to the forced command `gandiva-agent` (see `agent`).
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import paramiko
from paramiko.pkey import UnknownKeyType

from controller.model.measures import Measures
from controller.nodes.connection import Channel, Patience, TransportError
from controller.nodes.protocol import HelloArgs
from controller.nodes.remote import Guard, RemoteNodes
from controller.settings.base import split_address

MAX_STDERR_BYTES = 4096
KEEPALIVE_SECONDS = 15


class SshSettings(Protocol):
    """How agents are reached: the table [nodes] of the settings."""

    ssh_key: Path
    known_hosts: Path
    ssh_user: str
    ssh_port: int
    connect_deadline_seconds: float


class SshTransport:
    """Starts agents through sshd."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings

    def connect(self, node: str, address: str) -> Channel:
        """`address` is HOST, HOST:PORT or [IPV6]:PORT. Raises TransportError, saying what to look at."""
        try:
            host, port = split_address(address, self._settings.ssh_port)
        except ValueError:
            raise TransportError(f"{address!r} is no address: need HOST, HOST:PORT or [IPV6]:PORT") from None
        client = paramiko.SSHClient()
        try:
            return self._connect(client, node, address, host, port)
        except (TransportError, paramiko.SSHException, OSError, EOFError) as error:
            client.close()
            if isinstance(error, TransportError):
                raise
            said = str(error) or type(error).__name__
            if isinstance(error, paramiko.BadHostKeyException):
                said = f"host key differs from {self._settings.known_hosts}: {error}"
            elif isinstance(error, paramiko.AuthenticationException):
                said = f"{self._settings.ssh_user} is not let in with {self._settings.ssh_key}: {error}"
            raise TransportError(f"{address}: {said}") from error

    def _connect(self, client: paramiko.SSHClient, node: str, address: str, host: str, port: int) -> Channel:
        settings, seconds = self._settings, self._settings.connect_deadline_seconds
        client.load_host_keys(str(settings.known_hosts))
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        client.connect(
            host,
            port=port,
            username=settings.ssh_user,
            pkey=_load_key(settings.ssh_key),
            allow_agent=False,
            look_for_keys=False,
            timeout=seconds,
            banner_timeout=seconds,
            auth_timeout=seconds,
            channel_timeout=seconds,
        )
        transport = client.get_transport()
        if transport is None:
            raise paramiko.SSHException("the connection broke at once")
        transport.set_keepalive(KEEPALIVE_SECONDS)
        # A host that vanishes without a word: give up when nothing is acknowledged, not after 15 minutes.
        if isinstance(transport.sock, socket.socket):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, KEEPALIVE_SECONDS * 2000)
        channel = transport.open_session(timeout=seconds)
        # paramiko waits for the answer to this one for ever, unless the connection is closed under it.
        too_late = threading.Event()

        def give_up() -> None:
            too_late.set()
            client.close()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            channel.exec_command(f"gandiva-agent {node}")
        except (paramiko.SSHException, EOFError) as error:  # the latter where its reader sees the end first
            if not too_late.is_set():
                raise
            raise TransportError(f"{address}: sshd has not started the agent within {seconds:g} s") from error
        finally:
            timer.cancel()
        return _SshChannel(client, channel)


@contextlib.contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise TransportError(str(error) or type(error).__name__) from error


class _SshChannel:
    def __init__(self, client: paramiko.SSHClient, channel: paramiko.Channel) -> None:
        self._client = client
        self._channel = channel
        self._stderr = b""

    def read(self) -> bytes:
        with _broken():
            data = self._channel.recv(1 << 16)
            # Unread messages would fill the window and stop the agent.
            while self._channel.recv_stderr_ready():
                self._stderr = (self._stderr + self._channel.recv_stderr(1 << 16))[-MAX_STDERR_BYTES:]
        return data

    def write(self, data: bytes) -> None:
        with _broken():
            self._channel.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()
        with contextlib.suppress(Exception):
            self._client.close()

    def farewell(self) -> str:
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        text = f": {lines[-1][:200]}" if lines else ""
        if self._channel.exit_status_ready():
            return f"exit status {self._channel.recv_exit_status()}{text}"
        return text.removeprefix(": ")


def _load_key(path: Path) -> paramiko.PKey:
    # Loaded here: given a file name, paramiko tries every type of key in turn, and of several failures
    # reports the one that matters least.
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.SSHException, UnknownKeyType, OSError, ValueError) as error:
        raise TransportError(f"cannot use the key {path}: {error or type(error).__name__}") from error


def ssh_nodes(
    settings: SshSettings,
    measures: Measures | None = None,
    introduction: HelloArgs | None = None,
    guard: Guard | None = None,
) -> RemoteNodes:
    patience = Patience(connect_seconds=settings.connect_deadline_seconds + 5.0)
    return RemoteNodes(SshTransport(settings), patience, measures, introduction, guard)
