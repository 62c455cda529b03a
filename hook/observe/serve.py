# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests for metrics: `GET /metrics`, measured within the last second, and `GET /`, which leads there.

One thread serves all connections, and decides which of them makes room when there are too many; another one measures,
so that it keeps no connection waiting that asks for something else.

A connection asks, waits for its answer, and takes it. No call here waits for a client. One that takes nothing of its
answer makes room for a newer one, or else the oldest one that has not asked yet: a scraper asks at once. One that waits
never makes room; if all wait, new ones stay in the kernel's queue.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from io import BytesIO

from hook.base import system
from hook.base.errors import HookError
from hook.base.explain import system_error, unforeseen_error
from hook.observe import prometheus
from hook.stages import report

_SHARED = 1.0  # seconds for which a reading answers further requests
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_PAGE = b'<!DOCTYPE html><title>resctrl-mon-hook</title><p><a href="metrics">Metrics</a>\n'
REASONS = ("too_many", "too_slow")
"""Why a connection is cut off: it makes room, or its time is over."""
_MOST = 512
_MOST_ASKING = 64  # of one address
_PATIENCE = 30.0  # seconds for a connection in all; Prometheus itself waits for 10 by default
_STALLED = 0.5  # seconds without progress, after which a connection that takes its answer may make room
_TICK = 0.25  # seconds
_AT_ONCE = 16  # accepted before others have their turn: they are read several times before so many newer ones come
_LONGEST_REQUEST = 8 << 10
_QUEUE = 4096  # the kernel's own limit, net.core.somaxconn, is the same by default
_IN_THE_KERNEL = 64 << 10  # bytes of an answer that wait there for a client; the kernel doubles it
_ON_THE_WAY = {4, 9, 11}  # FIN_WAIT1, LAST_ACK, CLOSING (tcp_states.h): the client's kernel has not got all yet


class Connection:
    """A client. `request`: what it has sent; `answer`: what it has not taken yet."""

    def __init__(self, client: socket.socket, host: str) -> None:
        self.client = client
        self.host = host
        self.since = system.monotonic()
        self.request = b""
        self.answer: list[memoryview] = []


class Server:
    """Serves what `measure` returns. `dropped`: how many connections were cut off, by reason.

    `waiting`: the connections that wait for a reading, with their requests and since when.
    """

    def __init__(self, address: tuple[str, int], measure: Callable[[], str]) -> None:
        self.dropped = dict.fromkeys(REASONS, 0)
        self.waiting: dict[Connection, tuple[_Request, float]] = {}
        self._measure = measure
        self._last: tuple[float, tuple[int, str, bytes]] | None = None  # when it was begun, and what is answered
        self._is_measuring = False
        self._orders = threading.Semaphore(0)
        self._listener = listener = _bind(address)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._most = min(_MOST, os.sysconf("SC_OPEN_MAX") // 2)
        self._all: dict[Connection, None] = {}  # the oldest first, as in those below
        self._asking: dict[str, dict[Connection, None]] = {}  # by address
        self._answering: dict[Connection, float] = {}  # when it last took something
        self._selector = selectors.DefaultSelector()
        self._listens = False
        self._deaf_until = self._swept_at = 0.0
        self._calls: deque[Callable[[], None]] = deque()
        self._bell, self._woken = socket.socketpair()
        self._bell.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._run_calls)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_THE_KERNEL)  # those of connections are the same
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LONGEST_REQUEST)
        listener.setblocking(False)
        listener.listen(_QUEUE)
        threading.Thread(target=self._work, daemon=True).start()

    def run(self) -> None:
        """Serve until a call raises."""
        while True:
            self._listen_if_there_is_room()
            for key, _ in self._selector.select(_TICK if self._all or not self._listens else None):
                key.data()
            self._sweep()

    def call(self, function: Callable[[], None]) -> None:
        """Have `run` call a function; for other threads."""
        self._calls.append(function)
        try:
            self._bell.send(b"\0")
        except BlockingIOError:
            pass  # it has rung often enough

    def _run_calls(self) -> None:
        self._woken.recv(_LONGEST_REQUEST)
        while self._calls:
            self._calls.popleft()()

    def close(self) -> None:
        """Close everything."""
        for connection in [*self._all]:
            self._close(connection)
        for it in (self._selector, self._listener, self._bell, self._woken):
            it.close()

    # --- What is answered

    def _take(self, connection: Connection) -> None:
        """Answer a request, or note that it waits for a reading, and since when."""
        request = _Request(connection.request)
        if request.wants_metrics:
            self.waiting[connection] = request, system.monotonic()
            self._answer_waiting()
        else:
            self._reply(connection, request)

    def _answer_waiting(self) -> None:
        """Answer those for which the last reading is new enough, and order one for the others."""
        for connection, (request, since) in [*self.waiting.items()]:
            if self._last is not None and self._last[0] >= since - _SHARED:
                request.answer(*self._last[1])
                del self.waiting[connection]
                self._reply(connection, request)
        if self.waiting and not self._is_measuring:
            self._is_measuring = True
            self._orders.release()

    def _work(self) -> None:
        """Measure whenever that is ordered; in a thread of its own."""
        while True:
            self._orders.acquire()
            began = system.monotonic()
            self.call(partial(self._share, began, self._read()))

    def _share(self, began: float, answer: tuple[int, str, bytes]) -> None:
        self._last, self._is_measuring = (began, answer), False
        self._answer_waiting()

    def _read(self) -> tuple[int, str, bytes]:
        try:
            text = self._measure() + prometheus.format_text([prometheus.count_dropped(self.dropped)])
            return 200, _METRICS, text.encode("utf-8", "replace")
        except Exception as error:  # noqa: BLE001  the next one may succeed; Prometheus shows that this one failed
            problem = str(error if isinstance(error, HookError) else unforeseen_error(error))
            report.say(problem, to_syslog=False)
            return 500, _TEXT, f"{problem}\n".encode("utf-8", "replace")

    def _reply(self, connection: Connection, request: _Request) -> None:
        """Begin to send an answer. Its body is not copied: connections can share it."""
        connection.answer = [memoryview(part) for part in request.get_answer() if part]
        self._answering[connection] = system.monotonic()
        self._watch(connection, selectors.EVENT_WRITE)

    # --- Which connections there are

    def _listen_if_there_is_room(self) -> None:
        wanted = system.monotonic() >= self._deaf_until and self._has_room()
        if wanted and not self._listens:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        elif self._listens and not wanted:
            self._selector.unregister(self._listener)
        self._listens = wanted

    def _has_room(self) -> bool:
        """Whether there is room for one more, or a connection that makes room: not all wait, or take their answers."""
        return len(self.waiting) + len(self._answering) < self._most or self._find_stalled() is not None

    def _find_stalled(self) -> Connection | None:
        """The connection that has taken nothing of its answer for longest, if that is too long."""
        slowest = next(iter(self._answering), None)
        is_stalled = slowest is not None and system.monotonic() - self._answering[slowest] > _STALLED
        return slowest if is_stalled else None

    def _find_dispensable(self) -> Connection | None:
        """The connection that makes room when there are too many: a stalled one, or of the address that has most."""
        crowd = max(self._asking.values(), key=len, default={})
        return self._find_stalled() or next(iter(crowd), None)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._has_room():
                return
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # no descriptor or no memory is left: to try again at once would only cost time
                self._deaf_until = system.monotonic() + _TICK
                return
            self._admit(Connection(client, address[0]))

    def _admit(self, connection: Connection) -> None:
        """Add a connection; another one makes room if the address, or all together, have too many."""
        others = self._asking.get(connection.host, {})
        if len(others) >= _MOST_ASKING:
            self._make_room(next(iter(others)))
        while len(self._all) >= self._most and (dispensable := self._find_dispensable()) is not None:
            self._make_room(dispensable)
        connection.client.setblocking(False)
        self._all[connection] = None
        self._asking.setdefault(connection.host, {})[connection] = None
        self._watch(connection, selectors.EVENT_READ)

    def _make_room(self, connection: Connection) -> None:
        """Cut off a connection, unless its request has come by now: then there is one too many for a while."""
        if connection not in self._answering:
            self._serve(connection)
            if connection not in self._asking.get(connection.host, {}):
                return
        self._cut_off(connection, "too_many")

    def _sweep(self) -> None:
        """End what takes too long, and what has taken its answer."""
        now = system.monotonic()
        if now - self._swept_at < _TICK:
            return
        self._swept_at = now
        for connection in [it for it in self._answering if not it.answer]:
            self._close_if_taken(connection)
        for connection in [it for it in self._all if now - it.since > _PATIENCE]:
            self._cut_off(connection, "too_slow")

    def _cut_off(self, connection: Connection, reason: str) -> None:
        """End a connection at once; the kernel forgets it, too, with all that was on its way."""
        self.dropped[reason] += 1
        connection.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._stop_asking(connection)
        for those in (self._all, self.waiting, self._answering):
            those.pop(connection, None)
        connection.client.close()

    # --- What one connection does

    def _watch(self, connection: Connection, events: int) -> None:
        self._selector.register(connection.client, events, partial(self._serve, connection))

    def _unwatch(self, connection: Connection) -> None:
        try:
            self._selector.unregister(connection.client)
        except KeyError:
            pass  # it waits

    def _serve(self, connection: Connection) -> None:
        """Receive or send what is possible at once."""
        if connection not in self._all:
            return  # it has just made room
        try:
            if connection.answer:
                self._send(connection)
            elif connection in self._answering:  # the client has closed it, or its half of it
                self._unwatch(connection)
                self._close_if_taken(connection)
            else:
                self._receive(connection)
        except BlockingIOError:
            pass
        except Exception:  # noqa: BLE001  the client is gone, or sent what http.server does not foresee: others go on
            self._close(connection)

    def _receive(self, connection: Connection) -> None:
        data = connection.client.recv(_LONGEST_REQUEST - len(connection.request))
        if not data:
            self._close(connection)
            return
        connection.request += data
        is_complete = b"\n\r\n" in connection.request or b"\n\n" in connection.request
        if is_complete or len(connection.request) == _LONGEST_REQUEST:
            self._stop_asking(connection)
            self._take(connection)

    def _stop_asking(self, connection: Connection) -> None:
        self._unwatch(connection)
        of_address = self._asking.get(connection.host, {})
        of_address.pop(connection, None)
        if not of_address:
            self._asking.pop(connection.host, None)

    def _send(self, connection: Connection) -> None:
        while connection.answer:
            sent = connection.client.send(connection.answer[0])
            del self._answering[connection]
            self._answering[connection] = system.monotonic()
            rest = connection.answer[0][sent:]
            connection.answer[:1] = [rest] if rest else []
        connection.client.shutdown(socket.SHUT_WR)
        self._unwatch(connection)
        self._watch(connection, selectors.EVENT_READ)
        self._close_if_taken(connection)

    def _close_if_taken(self, connection: Connection) -> None:
        """Close a connection of which the client's kernel has the whole answer.

        Closed earlier, the rest would stay in our kernel for a while, for as many clients as come, and do not read.
        """
        if connection.client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] not in _ON_THE_WAY:
            self._close(connection)


class _Stop(BaseException):
    """A signal to end has come. Not an Exception: the server survives those."""


def serve(address: tuple[str, int], measure: Callable[[], str], say: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT. `say` gets the address once it listens.

    `measure` returns the metrics; it is never called twice at once. Raises HookError if the address cannot be used.
    """

    def stop(*_: object) -> None:
        raise _Stop

    try:
        server = Server(address, measure)
    except OSError as error:
        raise system_error(f"cannot listen on {_name(address)}", error) from error
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        say(f"listening on http://{_name(server.address)}/metrics\n")
        server.run()
    except _Stop:
        pass


def _name(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
