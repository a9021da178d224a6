# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server: a thread of its own beside the loop, a thread per client, and bounds on everything.

A client can ask only with GET and HEAD, and gets one answer per connection. It has `REQUEST_SECONDS` to send
its request and `CONNECTION_SECONDS` for everything; then its connection is cut, however slowly it reads or
writes. At most `MAX_CLIENTS` are served at once, and `MAX_CLIENTS_OF_ADDRESS` of one address. When these are
taken, a new client gets the place of the oldest connection that keeps the server waiting: one of its own
address, or, when all places are taken, of the address that has most. A client that holds connections open
takes places from itself only. On a UNIX socket there is one user: all clients count as one address, which may
have all places."""

import logging
import os
import socket
import threading
import time as clock
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from controller import __version__
from controller.api import unix_socket
from controller.api.answers import Answer, Answers
from controller.errors import GandivaError

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
"""From the connection to the end of the request's headers."""
CONNECTION_SECONDS = 20.0
MAX_CLIENTS = 64
MAX_CLIENTS_OF_ADDRESS = 16
POLL_SECONDS = 0.25
"""How often overdue connections are looked for."""
MAX_QUERY_FIELDS = 100


@dataclass(slots=True)
class _Client:
    address: str
    cut_at: float
    answering: bool = False
    """Its request is being answered. Else the server waits for the client: to ask, or to take its answer."""


class ApiServer(ThreadingTCPServer):
    """Offers the API on `listen` (`host:port`; port 0 takes any free one) between `start` and `stop`; or on
    `unix:/path`, a file that is there as long as the server is. Not an `HTTPServer`: that looks the name of
    the host up, which can hang."""

    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, listen: str, answers: Answers) -> None:
        """Binds the port or the file. Raises GandivaError where that fails."""
        is_file = listen.startswith(unix_socket.PREFIX)
        self._path = Path(listen.removeprefix(unix_socket.PREFIX)) if is_file else None
        self._file: os.stat_result | None = None
        host, _, port = listen.rpartition(":")
        if self._path:
            self.address_family = socket.AF_UNIX
        elif ":" in host:
            self.address_family = socket.AF_INET6
        self.answers = answers
        self._clients: dict[socket.socket, _Client] = {}
        """In the order of their arrival."""
        self._clients_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        try:
            address: Any = str(self._path) if self._path else (host.strip("[]"), int(port))
            super().__init__(address, _Handler)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            where = "" if self._path else " (api.listen in the settings)"
            raise GandivaError(f"cannot listen on {listen}: {why}{where}") from error

    @property
    def port(self) -> int:
        """Of TCP."""
        return int(self.server_address[1])

    def start(self) -> None:
        options = {"poll_interval": POLL_SECONDS}
        self._thread = threading.Thread(target=self.serve_forever, kwargs=options, name="api", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; connections under way are cut."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join(timeout=5)
            self._thread = None
        self._cut(all_of_them=True)
        self.server_close()

    def server_bind(self) -> None:
        if self._path:
            unix_socket.prepare(self.socket, self._path)
        super().server_bind()
        if self._path:
            self._file = self._path.stat()

    def server_close(self) -> None:
        """Also removes the file of the socket, but not another one in its place."""
        with suppress(OSError):
            if self._path and self._file and os.path.samestat(self._file, self._path.stat()):
                self._path.unlink()
        super().server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """A client and its address, which on a UNIX socket is that of the server."""
        request, address = super().get_request()
        return request, (str(self._path), 0) if self._path else address

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._clients_lock:
            room = self._make_room(client_address[0])
            if room:
                self._clients[request] = _Client(client_address[0], clock.monotonic() + REQUEST_SECONDS)
        if room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _make_room(self, address: str) -> bool:
        """Whether one more client of this address can be served, where necessary in place of another one."""
        counts = Counter(client.address for client in self._clients.values())
        if counts[address] >= (MAX_CLIENTS if self._path else MAX_CLIENTS_OF_ADDRESS):
            crowded = address
        elif len(self._clients) >= MAX_CLIENTS:
            crowded = counts.most_common(1)[0][0]
        else:
            return True
        for sock, client in self._clients.items():
            if client.address == crowded and not client.answering:
                self._clients.pop(sock)
                _wake(sock)
                return True
        return False

    def mark(self, request: Any, *, answering: bool) -> None:
        """The client has asked, or its answer is made."""
        with self._clients_lock:
            client = self._clients.get(request)
            if client is not None:
                if answering:
                    client.cut_at += CONNECTION_SECONDS - REQUEST_SECONDS
                client.answering = answering

    def shutdown_request(self, request: Any) -> None:
        with self._clients_lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self._cut()

    def _cut(self, *, all_of_them: bool = False) -> None:
        """Cut the connections whose time is over."""
        now = clock.monotonic()
        with self._clients_lock:
            for sock, client in self._clients.items():
                if all_of_them or client.cut_at < now:
                    _wake(sock)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client closed its connection; `_Handler` catches everything else."""
        _log.debug("API client %s", client_address, exc_info=True)


def _wake(sock: socket.socket) -> None:
    """End the recv or send of its thread, which closes the socket itself."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        _log.debug("a client was gone before it could be cut off")


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer
    protocol_version = "HTTP/1.0"
    server_version = f"gandiva/{__version__}"
    sys_version = ""
    timeout = CONNECTION_SECONDS

    def do_GET(self) -> None:
        self.server.mark(self.connection, answering=True)
        answer = self._answer()
        self.server.mark(self.connection, answering=False)
        self._send(answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self) -> Answer:
        try:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        except ValueError:
            return Answer(HTTPStatus.BAD_REQUEST, b'{"error":"not a valid URL"}\n')
        try:
            return self.server.answers.get(parts.path, query, self.headers.get("Authorization", ""))
        except Exception:
            # A bug is an error for the client, and its traceback is in the log.
            _log.exception("API: cannot answer %.200r", self.path)
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b'{"error":"internal error, see the log"}\n')

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        if answer.status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("API %s %s", self.client_address[0], format % args)
