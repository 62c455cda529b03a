# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests for metrics: `GET /metrics`, measured at that moment, and `GET /`, which leads there.

No client can keep another one waiting: each connection has a thread and a deadline, and there are few of them. A client
that is slow to ask, or to read, makes room for a new one.
"""

from __future__ import annotations

import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

from hook.base import system
from hook.base.errors import HookError
from hook.base.explain import refused, unforeseen
from hook.stages import failures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_MOST_CONNECTIONS = 16
_PATIENCE = 30.0  # seconds for a connection in all; Prometheus itself waits for 10 by default
_TICK = 0.5  # seconds
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PAGE = '<!DOCTYPE html><title>resctrl-mon-hook</title><p><a href="metrics">Metrics</a>\n'


class _Stop(BaseException):
    """A signal to end has come. Not an Exception: the server survives those."""


def serve(address: tuple[str, int], measure: Callable[[], str], say: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT. `say` gets the address once it listens.

    `measure` returns the metrics; it is never called twice at once. Raises HookError if the address cannot be used.
    """

    def stop(*_: object) -> NoReturn:
        raise _Stop

    try:
        server = _Server(address, measure)
    except OSError as error:
        raise refused(f"cannot listen on {_name(address)}", error) from error
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        say(f"listening on http://{_name(server.server_address[:2])}/metrics\n")
        server.serve_forever(_TICK)
    except _Stop:
        pass


def _name(address: Any) -> str:  # noqa: ANN401  a socket's address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(ThreadingTCPServer):
    """Its connections are in order of their age. Those of which the request waits for its metrics are `served`."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], measure: Callable[[], str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._measure = measure
        self._measuring = threading.Lock()
        self._last: tuple[float, str] = (0.0, "")
        self._guard = threading.Lock()
        self._since: dict[socket.socket, float] = {}
        self._served: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def measure(self, connection: socket.socket) -> str:
        """Metrics that were measured after this call began; clients that wait share them."""
        began = system.monotonic()
        with self._guard:
            self._served.add(connection)
        try:
            with self._measuring:
                if self._last[0] <= began:
                    at = system.monotonic()
                    self._last = at, self._measure()
                return self._last[1]
        finally:
            with self._guard:
                self._served.discard(connection)

    def verify_request(self, request: Any, _client: object) -> bool:  # noqa: ANN401  as in socketserver
        """Whether a new connection is answered. The oldest one that neither asks nor reads makes room for it."""
        with self._guard:
            if len(self._since) >= _MOST_CONNECTIONS:
                idle = next((it for it in self._since if it not in self._served), None)
                if idle is None:
                    return False
                self._close(idle)
            self._since[request] = system.monotonic()
        return True

    def service_actions(self) -> None:
        """End what takes too long; called after each new connection, and every _TICK."""
        with self._guard:
            late = [it for it, since in self._since.items() if system.monotonic() - since > _PATIENCE]
            for connection in late:
                self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        """End a connection, whatever its thread waits for. The thread closes the descriptor."""
        del self._since[connection]
        _shut(connection)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Called when an answer is sent, or a connection refused."""
        with self._guard:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, _request: object, _client: object) -> None:
        """Ignore it: the client went away or was too slow. Defects are answered and reported in do_GET."""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended by itself


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "resctrl-mon-hook"
    sys_version = ""
    timeout = _PATIENCE  # for each read and write

    def do_GET(self) -> None:
        """Answer a request."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(*self._measure())
        elif path == "/":
            self._answer(200, "text/html; charset=utf-8", _PAGE)
        else:
            self._answer(404, "text/plain; charset=utf-8", "not found: the metrics are at /metrics\n")

    def _measure(self) -> tuple[int, str, str]:
        try:
            return 200, _TYPE, self.server.measure(self.connection)
        except Exception as error:  # noqa: BLE001  the next scrape may succeed; Prometheus shows that this one failed
            problem = str(error if isinstance(error, HookError) else unforeseen(error))
            failures.say(problem, to_syslog=False)
            return 500, "text/plain; charset=utf-8", problem + "\n"

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing: a client must not fill the log."""
