# SPDX-License-Identifier: Apache-2.0
"""Answers HTTP requests, GET and HEAD: `/metrics`, measured within the last second, `/`, which links to it, and
`/-/healthy`, which measures nothing.

The request's Accept header decides between Prometheus' text format and OpenMetrics, Accept-Encoding whether the answer
is compressed (RFC 9110, section 12). Each variant of a measurement is made once, and only if it is asked for.

One thread serves all connections, a task each, and closes some when there are too many. Another thread measures, so
that other requests need not wait for that.

A connection sends its request, waits for the answer, and receives it. If there are too many, one that receives nothing
of its answer is closed first, then the oldest one without a request, since a scraper sends its request at once. One
that waits for its answer is never closed; if all wait, new ones stay in the kernel's queue. If one address has too many
of them, one of its own is closed: one without a request, or that receives nothing, or the new one.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from io import BytesIO

from hook import report, system
from hook.errors import HookError
from hook.explain import system_error, unforeseen_error
from hook.show import prometheus

Reading = Callable[[bool], str]
"""Formats a measurement: as OpenMetrics, without the end of that, or else in Prometheus' text format."""
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_LINK = b'<!DOCTYPE html><title>resctrl-mon-hook</title><p><a href="metrics">Metrics</a>\n'
METHODS = "GET, HEAD"
_GZIP = 31  # wbits of zlib for a stream with gzip's head
_FASTEST = 1  # level of zlib: a tenth of the text, in a third of the time of its default
REASONS = ("too_many", "too_slow")
"""The reasons for which a connection is cut off: there are too many, or its time is over."""
_SHARED = 1.0  # seconds for which one measurement answers further requests
_MOST = 512
_MOST_OF_ONE = 64  # connections of one address
_PATIENCE = 30.0  # seconds for a whole connection; Prometheus itself waits for 10 by default
_STALLED = 0.5  # seconds without progress, after which a connection with an answer may be closed to make room
_TICK = 0.25  # seconds
_LONGEST_REQUEST = 8 << 10
_QUEUE = 4096  # the kernel's own limit, net.core.somaxconn, is the same by default
_IN_THE_KERNEL = 64 << 10  # bytes of an answer that the kernel holds for a client; it doubles this number
_PIECE = 16 << 10  # bytes that count as progress
_ON_THE_WAY = {4, 9, 11}  # FIN_WAIT1, LAST_ACK, CLOSING (tcp_states.h): the client's kernel lacks a part


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP: its status, the type of its content, its content, and further headers."""

    status: int
    kind: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """What a client prefers of the metrics: as OpenMetrics, compressed."""

    is_open: bool = False
    is_gzip: bool = False


PAGES = {
    "/": Answer(200, "text/html; charset=utf-8", _LINK),
    "/-/healthy": Answer(200, _TEXT, b"healthy\n"),
}
"""The answers that never change, by path."""
_NOT_FOUND = Answer(404, _TEXT, b"not found: the metrics are at /metrics\n")
_NOT_ALLOWED = Answer(405, _TEXT, f"only {METHODS}\n".encode(), {"Allow": METHODS})


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
    """Serves what `measure` returns. `dropped`: the number of connections cut off, by reason."""

    def __init__(self, address: tuple[str, int], measure: Callable[[], Reading]) -> None:
        self.dropped = dict.fromkeys(REASONS, 0)
        self._measure = measure
        self._turn: asyncio.Lock  # held by the task that measures, if the last measurement is too old
        self._worker = ThreadPoolExecutor(1)
        self._reading: Reading | str = ""  # a text: why the measurement failed
        self._read_at = float("-inf")
        self._answers: dict[Variant, Answer] = {}  # of this reading
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
                await asyncio.sleep(0)  # a task that was cut off before it began would not close its connection
                await self._make_room_for(connection)
                await asyncio.sleep(0)  # let all others read their requests before the next connection comes

    # --- The set of connections

    async def _make_room_for(self, newest: Connection) -> None:
        """Cut off other connections until this one has room, or it; wait while none may be cut off."""
        while newest in self._all:
            others = [it for it in self._all if it is not newest]
            own = [it for it in others if it.host == newest.host]
            if len(own) >= _MOST_OF_ONE:
                dispensable = [*(it for it in own if it.asks), *_find_stalled(own), newest]
            elif len(others) < self._most:
                return
            else:
                asking: dict[str, list[Connection]] = {}
                for it in others:
                    if it.asks:
                        asking.setdefault(it.host, []).append(it)
                dispensable = [*_find_stalled(others), *max(asking.values(), key=len, default=[])]
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
            request.answer(await self._find_answer(request))
        connection.took_at = system.monotonic()
        for part in (memoryview(request.head.getvalue()), memoryview(request.body)):
            for at in range(0, len(part), _PIECE):
                await loop.sock_sendall(client, part[at : at + _PIECE])
                connection.took_at = system.monotonic()
        client.shutdown(socket.SHUT_WR)
        # If we closed before the client's kernel has the whole answer, our kernel would keep the rest for a while, for
        # any number of clients that do not read.
        while client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _ON_THE_WAY:
            await asyncio.sleep(_TICK)

    async def _find_answer(self, request: _Request) -> Answer:
        path = request.path.partition("?")[0]
        if path != "/metrics" and path not in PAGES:
            return _NOT_FOUND
        if request.command not in METHODS.split(", "):
            return _NOT_ALLOWED
        return await self._read(request.choose_variant()) if path == "/metrics" else PAGES[path]

    async def _read(self, variant: Variant) -> Answer:
        """The measurement of the last second. One connection starts a new one; all that wait meanwhile share it."""
        since = system.monotonic()
        run = asyncio.get_running_loop().run_in_executor
        async with self._turn:
            if self._read_at < since - _SHARED:
                now = system.monotonic()
                self._reading, self._answers = await run(self._worker, self._measure_all), {}
                self._read_at = now
            if variant not in self._answers:
                self._answers[variant] = await run(self._worker, self._format, self._reading, variant)
            return self._answers[variant]

    def _measure_all(self) -> Reading | str:
        try:
            return self._measure()
        except Exception as error:  # noqa: BLE001  the next one may succeed, and Prometheus shows this failure
            problem = str(error if isinstance(error, HookError) else unforeseen_error(error))
            report.say(problem, to_syslog=False)
            return f"{problem}\n"

    def _format(self, reading: Reading | str, variant: Variant) -> Answer:
        if isinstance(reading, str):
            return Answer(500, _TEXT, reading.encode("utf-8", "replace"))
        end = prometheus.format_text([prometheus.count_dropped(self.dropped)], is_open=variant.is_open)
        end += prometheus.END_OF_OPEN_METRICS if variant.is_open else ""
        body, headers = (reading(variant.is_open) + end).encode("utf-8", "replace"), {"Vary": "Accept, Accept-Encoding"}
        if variant.is_gzip:
            packer = zlib.compressobj(_FASTEST, wbits=_GZIP)
            body, headers = packer.compress(body) + packer.flush(), {**headers, "Content-Encoding": "gzip"}
        return Answer(200, _OPEN_METRICS if variant.is_open else _METRICS, body, headers)


def serve(address: tuple[str, int], measure: Callable[[], Reading], say: Callable[[str], None]) -> None:
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
    """A complete request and its answer, of which http.server writes the `head`, and all of it if it refuses a request.

    `is_valid`: it accepts the request, and the caller has to set the answer.
    """

    server_version = "resctrl-mon-hook"
    sys_version = ""
    is_valid = False
    body = b""

    def __init__(self, request: bytes) -> None:
        self.rfile = BytesIO(request)
        self.wfile = self.head = BytesIO()
        self.handle_one_request()

    def do_GET(self) -> None:
        self.is_valid = True

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_GET  # noqa: N815

    def choose_variant(self) -> Variant:
        """The variant that its headers prefer; a client that names none gets plain text."""
        accepted, encodings = (_rate(self.headers.get_all(it, [])) for it in ("Accept", "Accept-Encoding"))
        text = next((accepted[name] for name in _TEXTS if name in accepted), 0.0)
        packed = next((encodings[name] for name in ("gzip", "x-gzip", "*") if name in encodings), 0.0)
        is_open = accepted.get("application/openmetrics-text", 0.0) > text
        return Variant(is_open, is_gzip=packed > 0 and packed >= encodings.get("identity", 0.0))

    def answer(self, answer: Answer) -> None:
        """Set the answer, without copying the body, which connections share."""
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.body = b"" if self.command == "HEAD" else answer.body

    def log_message(self, *_arguments: object) -> None:
        """Log no request: a client must not fill the log."""


# --- What a client prefers

_TEXTS = ("text/plain", "text/*", "*/*")
"""The media ranges that mean the text format, the most specific first."""
_VERSIONS = {"application/openmetrics-text": "1.0.0"}
"""The version of a format, if it is not that of the text format."""


def _rate(headers: list[str]) -> dict[str, float]:
    """The quality of each name that a client accepts in our version, or without one: 0 is "never"."""
    found: dict[str, float] = {}
    for item in ",".join(headers).split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        pairs = {key.strip(): value.strip().strip('"') for key, _, value in (it.partition("=") for it in parameters)}
        quality = pairs.get("q", "1")
        if pairs.get("version") in (None, _VERSIONS.get(name, "0.0.4")):
            found[name] = max(found.get(name, 0.0), float(quality) if _QUALITY.fullmatch(quality) else 0.0)
    return found


_QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?", re.ASCII)
