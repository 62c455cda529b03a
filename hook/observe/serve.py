# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests for metrics: `GET /metrics`, measured within the last second, and `GET /`, which links to it.

One thread serves all connections, a task each, and closes some when there are too many. Another thread measures, so
that other requests need not wait for that.

A connection sends its request, waits for the answer, and receives it. If there are too many, one that receives nothing
of its answer is closed first, then the oldest one without a request, since a scraper sends its request at once. One
that waits for its answer is never closed; if all wait, new ones stay in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from io import BytesIO

from hook.base import system
from hook.base.errors import HookError
from hook.base.explain import system_error, unforeseen_error
from hook.observe import prometheus
from hook.stages import report

Answer = tuple[int, str, bytes]
"""The HTTP status, the type of the content, and the content."""
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_LINK = b'<!DOCTYPE html><title>resctrl-mon-hook</title><p><a href="metrics">Metrics</a>\n'
PAGES: dict[str, Answer] = {"/": (200, "text/html; charset=utf-8", _LINK)}
"""The answers that never change, by path."""
_NOT_FOUND = 404, _TEXT, b"not found: the metrics are at /metrics\n"
REASONS = ("too_many", "too_slow")
"""The reasons for which a connection is cut off: there are too many, or its time is over."""
_SHARED = 1.0  # seconds for which one measurement answers further requests
_MOST = 512
_MOST_ASKING = 64  # connections without a request, of one address
_PATIENCE = 30.0  # seconds for a whole connection; Prometheus itself waits for 10 by default
_STALLED = 0.5  # seconds without progress, after which a connection with an answer may be closed to make room
_TICK = 0.25  # seconds
_LONGEST_REQUEST = 8 << 10
_QUEUE = 4096  # the kernel's own limit, net.core.somaxconn, is the same by default
_IN_THE_KERNEL = 64 << 10  # bytes of an answer that the kernel holds for a client; it doubles this number
_PIECE = 16 << 10  # bytes that count as progress
_ON_THE_WAY = {4, 9, 11}  # FIN_WAIT1, LAST_ACK, CLOSING (tcp_states.h): the client's kernel lacks a part


@dataclass(eq=False)
class Connection:
    """A client, and the task that serves it. `asks`: its request is not complete.

    `took_at`: the time of the last progress of its answer, or of the answer's start.
    """

    client: socket.socket
    host: str
    task: asyncio.Task[None] = field(init=False)
    asks: bool = True
    took_at: float = float("inf")

    def has_sent(self) -> bool:
        """Whether the kernel has a part of its request that its task will read next."""
        try:
            return self.asks and bool(self.client.recv(1, socket.MSG_PEEK))
        except OSError:
            return False


class Server:
    """Serves the text that `measure` returns. `dropped`: the number of connections cut off, by reason."""

    def __init__(self, address: tuple[str, int], measure: Callable[[], str]) -> None:
        self.dropped = dict.fromkeys(REASONS, 0)
        self._measure = measure
        self._turn: asyncio.Lock  # held by the task that measures, if the last measurement is too old
        self._worker = ThreadPoolExecutor(1)
        self._reading: Answer = _NOT_FOUND
        self._read_at = float("-inf")
        self._listener = _listen(address)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._most = min(_MOST, os.sysconf("SC_OPEN_MAX") // 2)
        self._all: dict[Connection, None] = {}  # the oldest first

    async def run(self) -> None:
        """Serve until this is cancelled."""
        loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        with self._listener:
            while True:
                try:
                    client, address = await loop.sock_accept(self._listener)
                except ConnectionError:
                    continue
                except OSError:  # no descriptor or no memory is left: another try at once would fail, too
                    await asyncio.sleep(_TICK)
                    continue
                connection = Connection(client, address[0])
                self._all[connection] = None
                connection.task = loop.create_task(self._serve(connection))
                await self._make_room_for(connection)
                await asyncio.sleep(0)  # let all others read their requests before the next connection comes

    # --- The set of connections

    async def _make_room_for(self, newest: Connection) -> None:
        """Cut off other connections until this one has room; wait while none may be cut off."""
        while True:
            others = [it for it in self._all if it is not newest]
            asking: dict[str, list[Connection]] = {newest.host: []}
            for it in others:
                if it.asks:
                    asking.setdefault(it.host, []).append(it)
            dispensable = asking[newest.host]
            if len(dispensable) < _MOST_ASKING:
                if len(others) < self._most:
                    return
                dispensable = [*_find_stalled(others), *max(asking.values(), key=len)]
            if not dispensable:
                await asyncio.wait([it.task for it in others], timeout=_TICK, return_when=asyncio.FIRST_COMPLETED)
            elif dispensable[0].has_sent():
                await asyncio.sleep(0)
            else:
                self._cut_off(dispensable[0], "too_many")

    def _cut_off(self, connection: Connection, reason: str) -> None:
        """End a connection at once, and let the kernel drop its unsent data (a reset)."""
        if connection not in self._all:
            return  # it was just closed to make room, and its time is over as well
        self.dropped[reason] += 1
        connection.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.task.cancel()
        del self._all[connection]

    # --- One connection

    async def _serve(self, connection: Connection) -> None:
        deadline = asyncio.get_running_loop().call_later(_PATIENCE, self._cut_off, connection, "too_slow")
        try:
            # An exception: the client is gone, or confused http.server. The others go on.
            with suppress(Exception):
                await self._answer(connection)
        finally:
            deadline.cancel()
            self._all.pop(connection, None)
            connection.client.close()

    async def _answer(self, connection: Connection) -> None:
        loop, client = asyncio.get_running_loop(), connection.client
        request = _Request(await _receive(client))
        connection.asks = False
        if request.is_valid:
            path = request.path.partition("?")[0]
            request.answer(*(await self._read() if path == "/metrics" else PAGES.get(path, _NOT_FOUND)))
        connection.took_at = system.monotonic()
        for part in request.get_answer():
            for at in range(0, len(part), _PIECE):
                await loop.sock_sendall(client, part[at : at + _PIECE])
                connection.took_at = system.monotonic()
        client.shutdown(socket.SHUT_WR)
        # If we closed before the client's kernel has the whole answer, our kernel would keep the rest for a while, for
        # any number of clients that do not read.
        while client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _ON_THE_WAY:
            await asyncio.sleep(_TICK)

    async def _read(self) -> Answer:
        """The measurement of the last second. One connection starts a new one; all that wait meanwhile share it."""
        since = system.monotonic()
        async with self._turn:
            if self._read_at < since - _SHARED:
                now = system.monotonic()
                self._reading = await asyncio.get_running_loop().run_in_executor(self._worker, self._measure_all)
                self._read_at = now
        return self._reading

    def _measure_all(self) -> Answer:
        try:
            text = self._measure() + prometheus.format_text([prometheus.count_dropped(self.dropped)])
            return 200, _METRICS, text.encode("utf-8", "replace")
        except Exception as error:  # noqa: BLE001  the next one may succeed, and Prometheus shows this failure
            problem = str(error if isinstance(error, HookError) else unforeseen_error(error))
            report.say(problem, to_syslog=False)
            return 500, _TEXT, f"{problem}\n".encode("utf-8", "replace")


def serve(address: tuple[str, int], measure: Callable[[], str], say: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT. `say` gets the address once it listens.

    `measure` returns the metrics; calls of it never overlap. HookError: the address cannot be used.
    """
    try:
        server = Server(address, measure)
    except OSError as error:
        raise system_error(f"cannot listen on {_name(address)}", error) from error

    async def run() -> None:
        loop = asyncio.get_running_loop()
        serving = loop.create_task(server.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        say(f"listening on http://{_name(server.address)}/metrics\n")
        with suppress(asyncio.CancelledError):
            await serving

    asyncio.run(run())


def _name(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_THE_KERNEL)  # those of connections are the same
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LONGEST_REQUEST)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(_QUEUE)
    except BaseException:
        listener.close()
        raise
    return listener


def _find_stalled(connections: list[Connection]) -> list[Connection]:
    """The connections whose answers made no progress for _STALLED or longer, the slowest first."""
    last = system.monotonic() - _STALLED
    return sorted((it for it in connections if it.took_at < last), key=lambda it: it.took_at)


async def _receive(client: socket.socket) -> bytes:
    """Read a request up to its empty line, or the beginning of one that is too long.

    The bytes stay in the kernel until it has all of them, so that a cancelled task loses none.
    """
    loop, request = asyncio.get_running_loop(), b""
    while b"\n\r\n" not in request and b"\n\n" not in request and len(request) < _LONGEST_REQUEST:
        has_come = asyncio.Event()
        loop.add_reader(client, has_come.set)
        try:
            await has_come.wait()
        finally:
            loop.remove_reader(client)
        data = client.recv(_LONGEST_REQUEST - len(request))
        if not data:
            raise ConnectionResetError
        request += data
    return request


class _Request(BaseHTTPRequestHandler):
    """A complete request and its answer. `is_valid`: http.server accepts it, and the caller has to set the answer."""

    server_version = "resctrl-mon-hook"
    sys_version = ""
    is_valid = False
    _body = b""

    def __init__(self, request: bytes) -> None:
        self.rfile = BytesIO(request)
        self.wfile = self._head = BytesIO()
        self.handle_one_request()

    def do_GET(self) -> None:
        self.is_valid = True

    def answer(self, status: int, kind: str, body: bytes) -> None:
        """Set the answer, without copying the body, which connections share."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._body = body

    def get_answer(self) -> list[memoryview]:
        """The answer, in two parts: what http.server wrote, and the body."""
        return [memoryview(self._head.getvalue()), memoryview(self._body)]

    def log_message(self, *_arguments: object) -> None:
        """Log no request: a client must not fill the log."""
