# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests, GET and HEAD: `/metrics`, measured within the last second,
and `/-/healthy`, which measures nothing.

Each connection has a thread, and a deadline as a whole. If there are too many connections, or too
many of one address, the oldest of them is cut off that has not sent a whole request, since a
scraper sends its request at once; if there is none, the oldest that has read nothing of its answer
for half a second. One that waits for a measurement or reads is never cut off: if all do, new ones
of a greedy address are, and others wait in the kernel's queue.

Where no thread can be started (a limit on processes, a filter of system calls), connections are
answered one after the other: a client has two seconds for its request, and two to read the answer.
"""

from __future__ import annotations

import errno
import gzip
import re
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from socketserver import TCPServer
from typing import NamedTuple

from hook import report, system
from hook.errors import HookError, Reason
from hook.rare import as_hook_error
from hook.show.prometheus import Family, Former, count_dropped, format_text, keep_former
from hook.words import explain

Measure = Callable[[Former], "list[Family]"]
"""Measures. No counter dips below the former samples."""
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
REASONS = ("too_many", "too_slow")
"""The reasons for which a connection is cut off: there are too many, or its time is over."""
_SHARED = 1.0  # seconds for which one measurement answers further requests
_MOST = 512
_MOST_OF_ONE = 64  # connections of one address
_PATIENCE = 30.0  # seconds for a whole connection; Prometheus itself waits for 10 by default
# Seconds for a client whose connection has no thread, for which all others wait.
_PATIENCE_ALONE = 2.0
_TICK, _SOON = 0.25, 0.01  # seconds
_MINUTE = 60.0
# Seconds without progress, after which a connection with an answer may be cut off to make room.
_STALLED = 0.5
_PIECE = 16 << 10  # bytes of an answer that count as progress
_LONGEST_REQUEST = 8 << 10
_IS_WHOLE = re.compile(rb"\n\r?\n")  # a line may end without a CR (RFC 9112, section 2.2)
# Of a request, with a host or without.
_TARGET = re.compile(r"(?:https?://[^/?#]*)?/+([^?#]*)", re.IGNORECASE)
# Bytes of an answer that the kernel holds for a client; it doubles this number.
_IN_THE_KERNEL = 64 << 10
_CLIENT_IS_GONE = {
    errno.ENOTCONN,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
}
_NO_THREAD = HookError(
    Reason.IO,
    "no thread can be started for a connection: connections are answered one after the other",
    hint=(
        "raise its limit on processes (TasksMax=, --pids-limit), or use a seccomp profile that "
        "knows clone3"
    ),
)
# FIN_WAIT1, LAST_ACK, CLOSING (tcp_states.h): the client's kernel lacks a part.
_ON_THE_WAY = {4, 9, 11}


class Answer(NamedTuple):
    """An answer of HTTP."""

    status: int
    kind: str  # of its content
    headers: dict[str, str]  # further ones
    body: bytes


_HEALTHY = Answer(200, _TEXT, {}, b"healthy\n")
_NOT_FOUND = Answer(404, _TEXT, {}, b"not found: the metrics are at /metrics\n")


@dataclass(eq=False)
class Connection:
    """A client whose connection is open."""

    client: socket.socket
    host: str
    ends_at: float
    asks: bool = True  # its request is not complete
    active_at: float = float("inf")  # when its client last took a piece of its answer
    has_thread: bool = True

    def drop_thread(self) -> None:
        """Give its client a short time from now on. Nothing but `limit_wait` cuts it off."""
        self.has_thread, self.ends_at = False, system.monotonic() + _PATIENCE_ALONE

    def limit_wait(self) -> None:
        """Let the next wait for the client end when its time is over. A thread is woken up."""
        if not self.has_thread:
            self.client.settimeout(max(_SOON, self.ends_at - system.monotonic()))

    def is_idle(self) -> bool:
        """Return whether it may be cut off: its client has sent no whole request,
        or does not read its answer.
        """
        if not self.asks:
            return self.active_at < system.monotonic() - _STALLED
        return not system.try_call(self.client.recv, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)


class Server(ThreadingHTTPServer):
    """Serves what `measure` returns, and shares it between the requests of a second."""

    block_on_close = False
    request_queue_size = 4096  # the kernel's own limit, net.core.somaxconn, is the same by default

    def __init__(self, address: tuple[str, int], measure: Measure) -> None:
        self.dropped = dict.fromkeys(REASONS, 0)
        self.connections: dict[socket.socket, Connection] = {}  # the oldest first
        self.lock = threading.Lock()  # held to change the connections, and to read what they ask
        self._most = min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._measure = measure
        self._turn = threading.Lock()  # held to measure
        self._families: list[Family] = []  # of the last measurement
        self._measured_at = float("-inf")  # when they were measured
        self._failed: Answer | None = None  # if a later one failed
        self._tried_at = float("-inf")  # when the last one began
        self._answers: dict[tuple[bool, bool], Answer] = {}  # with that measurement
        self._logged: dict[str, float] = {}  # when each problem was last logged
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind a socket whose connections have small buffers.

        HTTPServer would also ask DNS for our name.
        """
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_THE_KERNEL)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LONGEST_REQUEST)
        TCPServer.server_bind(self)
        self.server_port = self.socket.getsockname()[1]

    # --- The set of connections

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accept a connection. socketserver drops an OSError."""
        try:
            return super().get_request()
        except OSError as error:
            self._log(error)
            system.sleep(_SOON)  # it may fail again at once
            raise

    def verify_request(self, request: socket.socket, client_address: tuple[str, int]) -> bool:  # type: ignore[override]
        """Cut off other connections until this one has room; wait while none may be cut off.

        Returns False if this one is cut off itself.
        """
        new = Connection(request, client_address[0], system.monotonic() + _PATIENCE)
        while True:
            with self.lock:
                connections = [*self.connections.values()]
                of_host = [connection for connection in connections if connection.host == new.host]
                is_greedy = len(of_host) >= _MOST_OF_ONE
                if not is_greedy and len(connections) < self._most:
                    self.connections[request] = new
                    return True
                idle = [
                    rival for rival in (of_host if is_greedy else connections) if rival.is_idle()
                ]
                if idle:  # those without a request first
                    self._cut_off(max(idle, key=lambda rival: rival.asks), "too_many")
                elif is_greedy:
                    self._cut_off(new, "too_many")
                    return False
            if not idle:
                system.sleep(_SOON)
                self.service_actions()

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        """Answer a connection in a thread or, if none can be started, here."""
        try:
            super().process_request(request, client_address)
        except (RuntimeError, MemoryError):  # threading's word for EAGAIN, EPERM, ENOMEM
            self._log(_NO_THREAD)
            self.connections[request].drop_thread()
            self.process_request_thread(request, client_address)

    def service_actions(self) -> None:
        """Cut off the connections whose time is over."""
        with self.lock:
            for connection in [*self.connections.values()]:
                if connection.ends_at < system.monotonic():
                    self._cut_off(connection, "too_slow")

    def _cut_off(self, connection: Connection, reason: str) -> None:
        """End a connection at once: its thread wakes up,
        and the kernel drops its unsent data (a reset).
        """
        self.dropped[reason] += 1
        self.connections.pop(connection.client, None)
        with suppress(OSError):  # the client has ended it
            connection.client.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            connection.client.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """Close a connection; what an answer without a thread has not
        sent in its time is dropped.
        """
        self.service_actions()
        with self.lock:
            self.connections.pop(request, None)
            request.close()

    def handle_error(self, *_arguments: object) -> None:
        """Log an error, unless the client is gone or was cut off. The other connections go on."""
        self._log(sys.exc_info()[1])

    def _log(self, error: BaseException | None) -> None:
        """Log an error that is no client's doing, each kind once a minute:
        clients must not fill the log.
        """
        is_gone = isinstance(error, (ConnectionError, TimeoutError))
        if (
            error is None
            or is_gone
            or (isinstance(error, OSError) and error.errno in _CLIENT_IS_GONE)
        ):
            return
        kind = f"{type(error).__name__} {getattr(error, 'errno', None)}"
        if self._logged.get(kind, float("-inf")) <= system.monotonic() - _MINUTE:
            self._logged[kind] = system.monotonic()
            report.write_line(f"metrics --listen: {explain(error)}", to_syslog=False)

    # --- Measurements

    def read(self, is_open: bool, is_gzip: bool) -> Answer:
        """Answer with the measurement of the last second.

        One request starts a new one, which all that wait share.
        """
        since = system.monotonic()
        if not self._turn.acquire(timeout=_PATIENCE):
            raise TimeoutError
        try:
            if self._tried_at < since - _SHARED:
                self._measure_again()
            if (is_open, is_gzip) not in self._answers:
                self._answers[is_open, is_gzip] = self._failed or self._format(is_open, is_gzip)
            return self._answers[is_open, is_gzip]
        finally:
            self._turn.release()

    def _measure_again(self) -> None:
        now = system.monotonic()
        former = keep_former(self._families, now - self._measured_at)
        self._tried_at, self._answers = now, {}
        try:
            self._families, self._measured_at, self._failed = self._measure(former), now, None
        except Exception as error:  # noqa: BLE001  the next one may succeed, and Prometheus shows this failure
            problem = str(explain(error))
            report.write_line(problem, to_syslog=False)
            self._failed = Answer(500, _TEXT, {}, f"{problem}\n".encode("utf-8", "replace"))

    def _format(self, is_open: bool, is_gzip: bool) -> Answer:
        text = format_text([*self._families, count_dropped(self.dropped)], is_open=is_open)
        body, headers = text.encode("utf-8", "replace"), {"Vary": "Accept, Accept-Encoding"}
        if is_gzip:  # a tenth of the text, at a third of the time of the default level
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        return Answer(200, _OPEN_METRICS if is_open else _METRICS, headers, body)


class _Handler(BaseHTTPRequestHandler):
    """Reads a request and answers it."""

    server: Server
    _own: Connection
    server_version = "resctrl-mon-hook"
    sys_version = ""

    def handle(self) -> None:
        """Read a request up to its empty line, or the beginning of one that
        is too long, and answer it.
        """
        own, request = self.server.connections.get(self.request), b""
        if own is None:  # it was cut off before this began
            return
        self._own = own
        while self._own.asks:
            self._own.limit_wait()
            # Waits; the rest is one step for those that look for room.
            self.request.recv(1, socket.MSG_PEEK)
            with self.server.lock:
                if not (data := self.request.recv(_LONGEST_REQUEST - len(request))):
                    return
                # Empty lines before a request mean nothing.
                request = (request + data).lstrip(b"\r\n")
                if _IS_WHOLE.search(request) or len(request) >= _LONGEST_REQUEST:
                    self._own.asks = False
        self.rfile = BytesIO(request)
        self.handle_one_request()

    def do_GET(self) -> None:
        target = _TARGET.match(self.path)
        path = target[1] if target is not None else ""
        if path == "metrics":
            # What the client prefers (RFC 9110, section 12); plain text is the default.
            accepted, encodings = (
                _rate(self.headers.get_all(name, [])) for name in ("Accept", "Accept-Encoding")
            )
            is_open = accepted.get("application/openmetrics-text", 0.0) > accepted.get(
                "text/plain", 0.0
            )
            answer = self.server.read(is_open, encodings.get("gzip", 0.0) > 0)
        else:
            answer = _HEALTHY if path == "-/healthy" else _NOT_FOUND
        self.send_response(answer.status)
        for name, value in {
            "Content-Type": answer.kind,
            "Content-Length": len(answer.body),
            **answer.headers,
        }.items():
            self.send_header(name, str(value))
        self._own.active_at = system.monotonic()
        if not self._own.has_thread:
            self._own.drop_thread()  # the measurement has cost the client nothing
        self._own.limit_wait()
        self.end_headers()
        body = memoryview(b"" if self.command == "HEAD" else answer.body)
        for at in range(0, len(body), _PIECE):
            self._own.limit_wait()
            self.wfile.write(body[at : at + _PIECE])
            self._own.active_at = system.monotonic()
        self.request.shutdown(socket.SHUT_WR)
        # If we closed before the client's kernel has the whole answer, our kernel would keep the
        # rest for a while, for any number of clients that do not read.
        while self.request in self.server.connections:
            if (
                self.request.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
                not in _ON_THE_WAY
            ):
                break
            if not self._own.has_thread:
                self.server.service_actions()
            system.sleep(_TICK)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_arguments: object) -> None:
        """Log no request: a client must not fill the log."""


def serve(address: tuple[str, int], measure: Measure, say: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; `say` gets the address once it listens.

    Calls of `measure` never overlap. Raises HookError if the address cannot be used.
    """
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    try:
        server = Server(address, measure)
    except OSError as error:
        raise as_hook_error(f"cannot listen on {host}:{address[1]}", error) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    say(f"listening on http://{host}:{server.server_port}/metrics\n")
    with suppress(KeyboardInterrupt):
        server.serve_forever(_TICK)


# --- What a client prefers

_QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?", re.ASCII)


def _rate(headers: list[str]) -> dict[str, float]:
    """Return the quality of each name that a client accepts in our version,
    or without one; 0 is "never".
    """
    qualities: dict[str, float] = {}
    for item in ",".join(headers).lower().replace(" ", "").split(","):
        name, *parameters = item.split(";")
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        quality = given.get("q", "1")
        # Any, of the text format, of OpenMetrics.
        if given.get("version", "").strip('"') in ("", "0.0.4", "1.0.0"):
            rated = float(quality) if _QUALITY.fullmatch(quality) else 0.0
            qualities[name] = max(qualities.get(name, 0.0), rated)
    return qualities
