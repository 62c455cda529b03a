# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests, GET and HEAD: `/metrics`, measured within the last second, and `/-/healthy`, which measures
nothing.

Each connection has a thread, and a deadline as a whole. If there are too many connections, one is cut off: of those
that do not read their answer or have not sent a whole request, the one that has been idle for longest, since a scraper
sends its request at once. If one address has too many of them, this is one of that address, else the new one. A scrape
that waits for its answer or receives it is never cut off: if all do, new connections wait in the kernel's queue.
"""

from __future__ import annotations

import gzip
import os
import re
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from socketserver import TCPServer
from typing import NamedTuple

from hook import report, system
from hook.errors import HookError, as_hook_error
from hook.report import explain
from hook.show import prometheus

Reading = Callable[[bool], str]
"""Formats a measurement: as OpenMetrics, without the end of that, or else in Prometheus' text format."""
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
REASONS = ("too_many", "too_slow")
"""The reasons for which a connection is cut off: there are too many, or its time is over."""
_SHARED = 1.0  # seconds for which one measurement answers further requests
_MOST = 512
_MOST_OF_ONE = 64  # connections of one address
_PATIENCE = 30.0  # seconds for a whole connection; Prometheus itself waits for 10 by default
_STALLED = 0.5  # seconds without progress, after which a connection with an answer may be cut off to make room
_TICK = 0.25  # seconds
_LONGEST_REQUEST = 8 << 10
_IN_THE_KERNEL = 64 << 10  # bytes of an answer that the kernel holds for a client; it doubles this number
_PIECE = 16 << 10  # bytes that count as progress
_ON_THE_WAY = {4, 9, 11}  # FIN_WAIT1, LAST_ACK, CLOSING (tcp_states.h): the client's kernel lacks a part


class Answer(NamedTuple):
    """An answer of HTTP."""

    status: int
    kind: str  # of its content
    body: bytes
    headers: dict[str, str]


_HEALTHY = Answer(200, _TEXT, b"healthy\n", {})
_NOT_FOUND = Answer(404, _TEXT, b"not found: the metrics are at /metrics\n", {})


@dataclass(eq=False)
class Connection:
    """A client whose connection is open."""

    client: socket.socket
    host: str
    ends_at: float = field(default_factory=lambda: system.monotonic() + _PATIENCE)
    asks: bool = True  # its request is not complete
    active_at: float = field(default_factory=system.monotonic)  # when it began, or the client last took a piece

    def is_idle(self) -> bool:
        """Return whether it may be cut off to make room: its client sends nothing, or does not read."""
        if not self.asks:
            return self.active_at < system.monotonic() - _STALLED
        try:
            return not self.client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return True


class Server(ThreadingHTTPServer):
    """Serves what `measure` returns, and shares it between the requests of a second."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 4096  # the kernel's own limit, net.core.somaxconn, is the same by default

    def __init__(self, address: tuple[str, int], measure: Callable[[], Reading]) -> None:
        self.dropped = dict.fromkeys(REASONS, 0)
        self.connections: dict[socket.socket, Connection] = {}  # the oldest first
        self.change = threading.Condition()  # held to change the connections, and what they ask
        self._most = min(_MOST, os.sysconf("SC_OPEN_MAX") // 2)
        self._measure = measure
        self._turn = threading.Lock()  # held to measure
        self._reading: Reading | str = ""  # a text says why the measurement failed
        self._read_at = float("-inf")
        self._answers: dict[tuple[bool, bool], Answer] = {}  # of this reading
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind a socket whose connections have small buffers. HTTPServer would also ask DNS for our name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_THE_KERNEL)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LONGEST_REQUEST)
        TCPServer.server_bind(self)
        self.server_port = self.socket.getsockname()[1]

    # --- The set of connections

    def verify_request(self, request: socket.socket, client_address: tuple[str, int]) -> bool:  # type: ignore[override]
        """Cut off other connections until this one has room; wait while none may be cut off.

        Returns False if this one is cut off itself.
        """
        host = client_address[0]
        with self.change:
            while True:
                own = [connection for connection in self.connections.values() if connection.host == host]
                is_greedy = len(own) >= _MOST_OF_ONE
                if not is_greedy and len(self.connections) < self._most:
                    self.connections[request] = Connection(request, host)
                    return True
                idle = [client for client in (own if is_greedy else self.connections.values()) if client.is_idle()]
                if idle:
                    self._cut_off(min(idle, key=lambda client: client.active_at), "too_many")
                elif is_greedy and not any(client.asks for client in own):
                    self._cut_off(Connection(request, host), "too_many")
                    return False
                else:
                    self.change.wait(_TICK)
                    self.service_actions()

    def service_actions(self) -> None:
        """Cut off the connections whose time is over."""
        with self.change:
            now = system.monotonic()
            for connection in [*self.connections.values()]:
                if connection.ends_at < now:
                    self._cut_off(connection, "too_slow")

    def _cut_off(self, connection: Connection, reason: str) -> None:
        """End a connection at once: its thread wakes up, and the kernel drops its unsent data (a reset)."""
        self.dropped[reason] += 1
        self.connections.pop(connection.client, None)
        with suppress(OSError):  # the client has ended it
            connection.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.client.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """Close a connection."""
        with self.change:
            self.connections.pop(request, None)
            request.close()
            self.change.notify_all()

    def handle_error(self, *_arguments: object) -> None:
        """Ignore an error: the client is gone, or confused http.server. The others go on."""

    # --- Measurements

    def read(self, variant: tuple[bool, bool]) -> Answer:
        """Return the measurement of the last second. One request starts a new one, which all that wait share."""
        since = system.monotonic()
        if not self._turn.acquire(timeout=_PATIENCE):
            raise TimeoutError
        try:
            if self._read_at < since - _SHARED:
                now = system.monotonic()
                self._reading, self._answers = self._measure_all(), {}
                self._read_at = now
            if variant not in self._answers:
                self._answers[variant] = self._format(self._reading, *variant)
            return self._answers[variant]
        finally:
            self._turn.release()

    def _measure_all(self) -> Reading | str:
        try:
            return self._measure()
        except Exception as error:  # noqa: BLE001  the next one may succeed, and Prometheus shows this failure
            problem = str(error if isinstance(error, HookError) else explain(error))
            report.say(problem, to_syslog=False)
            return f"{problem}\n"

    def _format(self, reading: Reading | str, is_open: bool, is_gzip: bool) -> Answer:
        if isinstance(reading, str):
            return Answer(500, _TEXT, reading.encode("utf-8", "replace"), {})
        end = prometheus.format_text([prometheus.count_dropped(self.dropped)], is_open=is_open)
        text = reading(is_open) + end + prometheus.END_OF_OPEN_METRICS * is_open
        body, headers = text.encode("utf-8", "replace"), {"Vary": "Accept, Accept-Encoding"}
        if is_gzip:  # a tenth of the text, at a third of the time of the default level
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        return Answer(200, _OPEN_METRICS if is_open else _METRICS, body, headers)


class _Handler(BaseHTTPRequestHandler):
    """Reads a request and answers it."""

    server: Server
    server_version = "resctrl-mon-hook"
    sys_version = ""

    def handle(self) -> None:
        """Read a request up to its empty line, or the beginning of one that is too long, and answer it."""
        connection, request = self.server.connections[self.request], b""
        while connection.asks:
            self.request.recv(1, socket.MSG_PEEK)  # waits; the rest is one step for those that look for room
            with self.server.change:
                if not (data := self.request.recv(_LONGEST_REQUEST - len(request))):
                    return
                request += data
                if b"\n\r\n" in request or b"\n\n" in request or len(request) >= _LONGEST_REQUEST:
                    connection.asks = False
                    connection.active_at = float("inf")  # it is not idle while it waits for its answer
        self.rfile = BytesIO(request)
        self.handle_one_request()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(self.server.read(self._choose_variant()))
        else:
            self._answer(_HEALTHY if path == "/-/healthy" else _NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815

    def _choose_variant(self) -> tuple[bool, bool]:
        """Choose what the headers prefer: OpenMetrics, gzip (RFC 9110, section 12). Plain text is the default."""
        accepted, encodings = (_rate(self.headers.get_all(name, [])) for name in ("Accept", "Accept-Encoding"))
        is_open = accepted.get("application/openmetrics-text", 0.0) > accepted.get("text/plain", 0.0)
        return is_open, encodings.get("gzip", 0.0) > 0

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        connection = self.server.connections[self.request]
        connection.active_at = system.monotonic()
        self.end_headers()
        body = memoryview(b"" if self.command == "HEAD" else answer.body)
        for at in range(0, len(body), _PIECE):
            self.wfile.write(body[at : at + _PIECE])
            connection.active_at = system.monotonic()
        self.request.shutdown(socket.SHUT_WR)
        # If we closed before the client's kernel has the whole answer, our kernel would keep the rest for a while, for
        # any number of clients that do not read.
        while self.request in self.server.connections:
            if self.request.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] not in _ON_THE_WAY:
                break
            system.sleep(_TICK)

    def log_message(self, *_arguments: object) -> None:
        """Log no request: a client must not fill the log."""


def serve(address: tuple[str, int], measure: Callable[[], Reading], say: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; `say` gets the address once it listens.

    `measure` returns the metrics; calls of it never overlap. Raises HookError if the address cannot be used.
    """
    try:
        server = Server(address, measure)
    except OSError as error:
        raise as_hook_error(f"cannot listen on {_name(address)}", error) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    say(f"listening on http://{_name((address[0], server.server_port))}/metrics\n")
    with suppress(KeyboardInterrupt):
        server.serve_forever(_TICK)


def _name(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- What a client prefers

_VERSIONS = ("", "0.0.4", "1.0.0")  # of the text format and of OpenMetrics, or any
_QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?", re.ASCII)


def _rate(headers: list[str]) -> dict[str, float]:
    """Return the quality of each name that a client accepts in our version, or without one; 0 is "never"."""
    found: dict[str, float] = {}
    for item in ",".join(headers).lower().replace(" ", "").split(","):
        name, *parameters = item.split(";")
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        quality = given.get("q", "1")
        if given.get("version", "").strip('"') in _VERSIONS:
            found[name] = max(found.get(name, 0.0), float(quality) if _QUALITY.fullmatch(quality) else 0.0)
    return found
