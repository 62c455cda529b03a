# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests for metrics: `GET /metrics`, measured within the last second, and `GET /`, which leads there.

One thread measures, so that it keeps no connection waiting that asks for something else.
"""

from __future__ import annotations

import signal
import socket
import threading
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler
from io import BytesIO

from hook.base import system
from hook.base.errors import HookError
from hook.base.explain import refused, unforeseen
from hook.observe import prometheus
from hook.observe.connections import Connections
from hook.stages import failures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from hook.observe.connections import Connection

_SHARED = 1.0  # seconds for which a reading answers further requests
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_PAGE = b'<!DOCTYPE html><title>resctrl-mon-hook</title><p><a href="metrics">Metrics</a>\n'


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
        say(f"listening on http://{_name(server.address)}/metrics\n")
        server.connections.run()
    except _Stop:
        pass


def _name(address: Any) -> str:  # noqa: ANN401  a socket's address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class _Reading:
    """What is answered, and when its measurement began."""

    began: float
    status: int
    kind: str
    body: bytes


class _Server:
    def __init__(self, address: tuple[str, int], measure: Callable[[], str]) -> None:
        listener = _bind(address)
        self.address = listener.getsockname()[:2]
        self.connections = Connections(listener, self._take)
        self._measure = measure
        self._last: _Reading | None = None
        self._is_measuring = False
        self._orders = threading.Semaphore(0)
        threading.Thread(target=self._work, daemon=True).start()

    def _take(self, connection: Connection) -> None:
        """Answer a request, or note that it waits for a reading, and since when."""
        request = _Request(connection.request)
        if request.wants_metrics:
            self.connections.waiting[connection] = request, system.monotonic()
            self._answer_waiting()
        else:
            self.connections.reply(connection, *request.get_answer())

    def _answer_waiting(self) -> None:
        """Answer those for which the last reading is new enough, and order one for the others."""
        last, waiting = self._last, self.connections.waiting
        for connection, (request, since) in [*waiting.items()]:
            if last is not None and last.began >= since - _SHARED:
                request.answer(last.status, last.kind, last.body)
                self.connections.reply(connection, *request.get_answer())
        if waiting and not self._is_measuring:
            self._is_measuring = True
            self._orders.release()

    def _work(self) -> None:
        """Measure whenever that is ordered; in a thread of its own."""
        while True:
            self._orders.acquire()
            self.connections.call(partial(self._share, self._read()))

    def _share(self, reading: _Reading) -> None:
        self._last, self._is_measuring = reading, False
        self._answer_waiting()

    def _read(self) -> _Reading:
        began = system.monotonic()
        try:
            text = self._measure() + prometheus.format_text([prometheus.count_dropped(self.connections.dropped)])
            return _Reading(began, 200, _METRICS, text.encode("utf-8", "replace"))
        except Exception as error:  # noqa: BLE001  the next one may succeed; Prometheus shows that this one failed
            problem = str(error if isinstance(error, HookError) else unforeseen(error))
            failures.say(problem, to_syslog=False)
            return _Reading(began, 500, _TEXT, f"{problem}\n".encode("utf-8", "replace"))


def _bind(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


class _Request(BaseHTTPRequestHandler):
    """A request that has come, and its answer; the one for metrics is given later."""

    server_version = "resctrl-mon-hook"
    sys_version = ""
    wants_metrics = False
    _body = b""

    def __init__(self, request: bytes) -> None:
        self.rfile = BytesIO(request)
        self.wfile = self._head = BytesIO()
        self.handle_one_request()

    def do_GET(self) -> None:
        """Answer a request."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self.wants_metrics = True
        elif path == "/":
            self.answer(200, "text/html; charset=utf-8", _PAGE)
        else:
            self.answer(404, _TEXT, b"not found: the metrics are at /metrics\n")

    def answer(self, status: int, kind: str, body: bytes) -> None:
        """Set the answer. The body is not copied."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._body = body

    def get_answer(self) -> tuple[bytes, bytes]:
        """The answer, in two parts: what http.server wrote, and the body."""
        return self._head.getvalue(), self._body

    def log_message(self, *_arguments: object) -> None:
        """Log nothing: a client must not fill the log."""
