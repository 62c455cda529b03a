# SPDX-License-Identifier: Apache-2.0
"""`metrics --listen`: whatever clients do, the next one is answered."""

from __future__ import annotations

import errno
import gzip
import http.client
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from hook import report, system
from hook.errors import HookError, Reason
from hook.show import server
from hook.show.prometheus import Family, Former
from hook.words import explain
from tests.support.waiting import wait
from tests.unit.documents import ROOT

DEADLINE = 300
LOCAL = ("127.0.0.1", 0)
ASK = b"GET /metrics HTTP/1.0\r\n\r\n"
SCRAPES = 20
OPENED: list[socket.socket] = []
"""The clients of the server that runs."""


def make_x(value: float, meaning: str = "a number") -> list[Family]:
    """A measurement: one number."""
    return [Family("x", meaning, {(): value})]


class Running(server.Server):
    """A server in a thread of its own."""

    def wait_until(self, number: int, *, asked: bool = False) -> None:
        """Wait until there are so many connections, or so many that wait for a measurement."""

        def count() -> int:
            with self.lock:
                return sum(
                    not asked or not (each.asks or each.active_at < float("inf"))
                    for each in self.connections.values()
                )

        wait(lambda: count() == number)


@contextmanager
def serving(
    measure: Callable[[], list[Family]] = lambda: make_x(1), address: tuple[str, int] = LOCAL
) -> Iterator[Running]:
    with Running(address, lambda _former: measure()) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running
        finally:
            while OPENED:
                OPENED.pop().close()
            running.shutdown()
            thread.join(DEADLINE)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which goes on only when a test says so."""
    now = [1000.0]
    monkeypatch.setattr(system, "monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets limits of the server, by their names without the underscore.

    No test is too slow, unless it says so.
    """

    def limit(**values: float) -> None:
        for name, value in values.items():
            monkeypatch.setattr(server, f"_{name}", value)

    limit(PATIENCE=DEADLINE)
    return limit


def connect(
    to: Running, source: str = "127.0.0.1", data: bytes = b"", ahead: int | None = None
) -> socket.socket:
    """A connection from this address that sends this;
    its kernel takes `ahead` bytes before they are read.
    """
    client = socket.socket()
    OPENED.append(client)
    client.settimeout(DEADLINE)
    if ahead is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ahead)
    client.bind((source, 0))
    # It may be cut off by the time that connect() ends.
    with suppress(ConnectionResetError, BrokenPipeError):
        client.connect(("127.0.0.1", to.server_port))
    send(client, data)
    return client


def send_request(
    to: Running, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """The answer, and its content. `headers`: with `_` for `-`."""
    with closing(
        http.client.HTTPConnection(str(to.server_address[0]), to.server_port, timeout=DEADLINE)
    ) as connection:
        connection.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        answer = connection.getresponse()
        return answer, answer.read()


def get(to: Running, path: str = "/metrics", method: str = "GET") -> tuple[int, str | None, str]:
    answer, content = send_request(to, path, method)
    return answer.status, answer.getheader("Content-Type"), content.decode()


def read_all(client: socket.socket) -> bytes:
    """What comes until the end; of an answer that was cut off, ConnectionResetError."""
    answer = b""
    while data := client.recv(1 << 20):
        answer += data
    return answer


def is_cut_off(client: socket.socket) -> bool:
    """Wait for the end of a connection that sent nothing else."""
    try:
        return client.recv(9) == b""
    except TimeoutError:
        raise
    except OSError:
        return True


def send(client: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # client was closed to make room
        client.sendall(data)


def read_number(client: socket.socket) -> bytes:
    """The measured number in an answer."""
    (line,) = [line for line in read_all(client).splitlines() if line.startswith(b"x ")]
    return line[2:]


class Measure:
    """Counts how often it is called; each call waits until the test lets it go on."""

    def __init__(self) -> None:
        self.calls, self.begun, self.go_on = 0, threading.Event(), threading.Event()

    def __call__(self) -> list[Family]:
        self.calls += 1
        self.begun.set()
        assert self.go_on.wait(DEADLINE)
        return make_x(self.calls)


# --- What is answered


def test_a_measurement_answers_the_requests_of_the_next_second(clock: list[float]) -> None:
    numbers = iter(range(9))
    with serving(lambda: make_x(next(numbers))) as running:
        ages = []
        for _ in range(4):
            status, kind, text = get(running, "/metrics?a=b")
            assert (status, kind) == (200, PLAIN)
            assert "resctrl_mon_endpoint_dropped_connections_total{" in text
            ages += re.findall("^x (.*)", text, re.MULTILINE)
            clock[0] += 0.4
    assert ages == ["0", "0", "0", "1"]


def test_a_measurement_gets_what_was_exported_before_and_how_old_that_is(
    clock: list[float],
) -> None:
    formers = list[Former]()

    def measure(former: Former) -> list[Family]:
        formers.append(former)
        if len(formers) == 2:
            raise OSError
        return make_x(5)

    with Running(LOCAL, measure) as running:
        for _ in range(3):
            running.read(is_open=False, is_gzip=False)
            clock[0] += 7
    samples = {("x", ()): 5}
    assert [(each.age, each.samples) for each in formers] == [
        (float("inf"), {}),
        (7.0, samples),
        (14.0, samples),
    ], "a measurement that failed exported nothing"


def test_other_paths_and_methods_are_refused_and_head_has_the_head_of_get() -> None:
    with serving() as running:
        for path in (
            "/",
            "/metrics/",
            "/etc/passwd",
            "/../metrics",
            "*",
            "metrics",
            "http://x",
            "http:/metrics",
        ):
            assert get(running, path)[0] == 404
        assert [get(running, method=method)[0] for method in ("POST", "OPTIONS", "FROB")] == [
            501
        ] * 3
        for path in ("/metrics", "/-/healthy", "/nothing"):
            (got, content), (only, nothing) = (
                send_request(running, path, method, Accept_Encoding="gzip")
                for method in ("GET", "HEAD")
            )
            first, second = (
                [line for line in answer.getheaders() if line[0] != "Date"]
                for answer in (got, only)
            )
            assert (only.status, nothing, first) == (got.status, b"", second)
            assert only.getheader("Content-Length") == str(len(content))


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET http://node:9753/metrics HTTP/1.1\r\nHost: node\r\n\r\n",
        b"GET HTTPS://node/metrics?a=b HTTP/1.0\r\n\r\n",
        b"GET http://[::1]:9753/metrics HTTP/1.1\r\n\r\n",
        b"GET http://[::1/metrics HTTP/1.1\r\n\r\n",
        b"GET //metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics#x HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.0\n\n",
        b"GET /metrics HTTP/1.1\nhost: node\naccept: text/plain\n\n",
        b"GET /metrics HTTP/1.1\nhost: node\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: node\r\n\n",
        b"\r\n\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
    ],
)
def test_every_form_of_a_request_has_the_metrics(
    request_line: bytes, limits: Callable[..., None]
) -> None:
    """RFC 9112, sections 2.2 and 3.2.2.

    The connection stays open: the end of a request is seen in it.
    """
    limits(PATIENCE=20)
    with serving() as running:
        answer = read_all(connect(running, data=request_line))
        assert (answer.split()[1:2], b"\nx 1\n" in answer) == ([b"200"], True)


def test_health_is_answered_while_a_measurement_hangs() -> None:
    measure = Measure()
    with serving(measure) as running:
        waits = connect(running, data=ASK)
        assert measure.begun.wait(DEADLINE)
        assert get(running, "/-/healthy")[::2] == (200, "healthy\n")
        measure.go_on.set()
        assert read_number(waits) == b"1"
    assert measure.calls == 1


OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
PREFERRED = {
    "": PLAIN,
    "*/*": PLAIN,
    "text/html": PLAIN,
    "application/openmetrics-text": OPEN,
    "application/openmetrics-text;version=0.0.1": PLAIN,
    'Application/OpenMetrics-Text; Version="1.0.0" ; Q=0.5, */*;q=0.4': OPEN,
    "application/openmetrics-text;q=0.5, text/plain": PLAIN,
    "application/openmetrics-text;q=0.5, text/plain;q=0.2, */*": OPEN,
    "application/openmetrics-text;q=0, */*;q=0": PLAIN,
    "application/openmetrics-text;q=nan": PLAIN,
    "application/openmetrics-text;q=9e9, text/plain;q=0.1": PLAIN,
    ",;,=;q=;q": PLAIN,
    # Prometheus 2.42, and 3.5
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1": OPEN,
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2": OPEN,
}
COMPRESSED = ("gzip", "GZIP ; Q=0.001", "gzip, identity;q=0.5")
WHOLE = ("", "*;q=0", "gzip;q=0, *", "gzip;q=0.0", "identity", "br, zstd", "gzip;q=2")


def test_format_and_compression_are_those_that_the_client_asks_for() -> None:
    meaning = "x" * 1000
    with serving(lambda: make_x(1, meaning)) as running:
        for accept, kind in PREFERRED.items():
            answer, content = send_request(
                running, "/metrics", **({"Accept": accept} if accept else {})
            )
            assert answer.getheader("Content-Type") == kind, accept
            assert answer.getheader("Vary") == "Accept, Accept-Encoding"
            assert content.endswith(b"# EOF\n") is (kind == OPEN)
        for accepted in (*COMPRESSED, *WHOLE):
            answer, content = send_request(running, "/metrics", Accept_Encoding=accepted)
            is_packed = accepted in COMPRESSED
            assert answer.getheader("Content-Encoding") == ("gzip" if is_packed else None), accepted
            assert (len(content) < len(meaning)) is is_packed
            assert meaning in (gzip.decompress(content) if is_packed else content).decode()


def test_an_ipv6_address_is_served() -> None:
    try:
        with serving(address=("::1", 0)) as running:
            assert get(running)[0] == 200
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


NOT_ROOTS = (
    "the run directory /r is not ours alone: its owner is uid 7, its mode 0755; hint: run it as "
    "root; remove"
)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (HookError(Reason.IO, "not root's", path="/r", owner=7, mode=0o755), NOT_ROOTS),
        (
            HookError(Reason.IO, "the run directory is unreadable"),
            "the run directory is unreadable",
        ),
        (
            PermissionError(13, "Permission denied", "/r"),
            "a file could not be read or written; tried: Permission den",
        ),
        (ValueError("a defect"), "unforeseen ValueError: a defect; tried: the hook itself at "),
    ],
)
def test_a_failed_measurement_is_answered_and_reported(
    error: Exception, sentence: str, capfd: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    """Once a second: a flood of requests does not fill the log."""
    answers = iter([error, None])

    def measure() -> list[Family]:
        if (problem := next(answers)) is not None:
            raise problem
        return make_x(1)

    with serving(measure) as running:
        for _ in range(2):
            status, _, text = get(running)
            assert (status, text.startswith(sentence)) == (500, True), text
        clock[0] += 2
        assert get(running)[0] == 200
    logged = capfd.readouterr().err
    assert (logged.count("\n"), logged.startswith(f"resctrl-mon-hook: {sentence}")) == (1, True), (
        logged
    )


def test_requests_that_wait_share_a_measurement(clock: list[float]) -> None:
    """A flood of them costs the node no more than two at a time;
    what they get is at most a second old.
    """
    measure = Measure()
    with serving(measure) as running:
        clients = [connect(running, data=ASK)]
        assert measure.begun.wait(DEADLINE)
        clock[0] += 2
        clients += [connect(running, data=ASK) for _ in range(5)]
        running.wait_until(len(clients), asked=True)
        measure.go_on.set()
        assert sorted(read_number(client) for client in clients) == [b"1"] + [b"2"] * 5


def test_a_measurement_that_does_not_end_holds_no_request_for_ever(
    limits: Callable[..., None],
) -> None:
    limits(PATIENCE=0.3)
    measure = Measure()
    with serving(measure) as running:
        clients = [connect(running, data=ASK) for _ in range(5)]
        assert all(is_cut_off(client) for client in clients)
        wait(
            lambda: (
                sum("process_request_thread" in thread.name for thread in threading.enumerate())
                <= 1
            )
        )
        measure.go_on.set()


def test_a_request_may_come_byte_by_byte_and_of_one_that_is_too_long_the_beginning_counts() -> None:
    begin = ASK[:-2] + b"A: "
    with serving() as running:
        slow = connect(running)
        for byte in ASK:
            send(slow, bytes([byte]))
        assert read_number(slow) == b"1"
        assert (
            read_number(
                connect(running, data=begin + b"b" * (server._LONGEST_REQUEST - len(begin)))
            )
            == b"1"
        )


def test_a_broken_request_or_a_defect_harms_no_other(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    requests = {
        "empty": b"\r\n\r\n",
        "zeros": b"\0" * 70000,
        "long line": b"GET " + b"/" * 70000 + b" HTTP/1.0\r\n\r\n",
        "a version to come": b"GET /metrics HTTP/9.9\r\n\r\n",
        "many headers": b"GET /metrics HTTP/1.0\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
        "half": b"GET /metrics",
        "no text": b"\xff\xfe\r\n\r\n",
    }
    with serving() as running:
        for text in requests.values():
            # Reset, with the rest unread.
            with connect(running, data=text) as broken, suppress(OSError):
                broken.shutdown(socket.SHUT_WR)
                read_all(broken)
            assert get(running)[0] == 200
        assert capfd.readouterr().err == "", "clients do not fill the log"
        monkeypatch.setattr(server, "_NOT_FOUND", None)
        for _ in range(2):
            with pytest.raises(http.client.RemoteDisconnected):
                get(running, "/")
        monkeypatch.undo()
        assert get(running)[0] == 200
    logged = capfd.readouterr().err
    assert (logged.count("\n"), "unforeseen AttributeError" in logged) == (1, True), (
        "a defect: once a minute"
    )


@pytest.fixture
def without_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has no further thread start, as with EAGAIN of a pids limit,
    or EPERM of a filter of system calls.
    """

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", fail)


def test_without_threads_every_request_is_answered_and_the_log_says_once_what_is_wrong(
    without_threads: Callable[[], None],
    limits: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Slow clients keep the others waiting for a moment only,
    even if a measurement takes longer than that.
    """
    limits(PATIENCE_ALONE=0.1)
    meaning = "x" * (1 << 20)

    def measure() -> list[Family]:
        (connection,) = running.connections.values()
        connection.ends_at = 0.0
        return make_x(1, meaning)

    with serving(measure) as running:
        without_threads()
        slow = [
            connect(running),
            connect(running, data=ASK[:9]),
            connect(running, data=ASK, ahead=4096),
        ]
        wait(lambda: running.dropped["too_slow"] == len(slow))
        limits(PATIENCE_ALONE=DEADLINE)
        assert (get(running)[0], meaning in get(running)[2], get(running, "/nothing")[0]) == (
            200,
            True,
            404,
        )
        assert running.dropped == {"too_many": 0, "too_slow": len(slow)}
        assert all(is_cut_off(client) for client in slow[:2])
    logged = capfd.readouterr().err
    assert (logged.count("\n"), "no thread can be started" in logged, "--pids-limit" in logged) == (
        1,
        True,
        True,
    )


def test_a_connection_that_cannot_be_accepted_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """socketserver tries again: the next try may succeed."""
    logged = list[str]()

    def refuse(_listening: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(report, "write_line", lambda text, **_: logged.append(text))
    with Running(LOCAL, lambda _former: make_x(1)) as running:
        monkeypatch.setattr(socket.socket, "accept", refuse)
        for _ in range(3):
            with pytest.raises(OSError, match="buffer"):
                running.get_request()
    assert [line.rpartition(": ")[2] for line in logged] == ["ENOBUFS"]


def test_an_address_that_is_taken_is_an_error_with_its_name() -> None:
    with serving() as running:
        port = running.server_port
        with pytest.raises(HookError) as caught:
            server.serve(("127.0.0.1", port), lambda _former: make_x(1), lambda _text: None)
        assert re.search(
            rf"cannot listen on 127\.0\.0\.1:{port}.*EADDRINUSE", str(explain(caught.value))
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_measures(number: int) -> None:
    code = """if True:
        import os, sys, threading
        from hook.show import server
        def measure(former):
            print("measures", flush=True)
            threading.Event().wait()
        server.serve(("127.0.0.1", 0), measure, sys.stdout.write)
        os._exit(0)  # as the program ends
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-uc", code], cwd=ROOT, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            send(client, ASK)
            assert process.stdout.readline() == "measures\n"
            process.send_signal(number)
            assert process.wait(DEADLINE) == 0


# --- Who makes room


class Slow:
    """Clients that are slow to ask or to read, and come again at once when they are cut off."""

    def __init__(self, running: Running, way: str, sources: list[str]) -> None:
        self._server, self._way = running, way
        self._clients = {
            number: (source, self._begin(source)) for number, source in enumerate(sources)
        }

    def _begin(self, source: str) -> socket.socket:
        sends = {"asks": b"G", "sends half": ASK[:9], "reads": ASK, "reads nothing": ASK}
        client = connect(self._server, source, sends.get(self._way, b""), ahead=4096)
        client.setblocking(False)
        return client

    def go_on(self) -> None:
        """Let each of them do the little that it does."""
        for number, (source, client) in self._clients.items():
            try:
                if self._way == "asks":
                    client.send(b"G")
                is_over = self._way != "reads nothing" and client.recv(1) == b""
            except BlockingIOError:
                is_over = False
            except OSError:
                is_over = True
            if is_over:
                client.close()
                self._clients[number] = source, self._begin(source)


WAYS = ("sends nothing", "sends half", "asks", "reads", "reads nothing")
SOURCES = {"one": ["127.0.0.1"] * 16, "many": [f"127.0.1.{number}" for number in range(2, 18)]}


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "limit", [server._MOST, 8], ids=["as shipped", "more than there is room for"]
)
def test_slow_clients_keep_no_scraper_waiting(
    way: str, sources: str, limit: int, limits: Callable[..., None]
) -> None:
    limits(MOST=limit)
    meaning = "x" * (1 << 20)
    with serving(lambda: make_x(1, meaning)) as running:
        slow = Slow(running, way, SOURCES[sources])
        for _ in range(SCRAPES):
            slow.go_on()
            status, _, text = get(running)
            assert (status, meaning in text) == (200, True)
            assert len(running.connections) <= limit


@pytest.mark.slow
def test_connections_that_send_nothing_keep_no_scraper_waiting() -> None:
    """2,500 of them, of which as many are open at a time as the server
    and this process may have.
    """
    number = iter(range(2_500))
    clients = deque[socket.socket](maxlen=256)

    def flood() -> None:
        for _ in number:
            if len(clients) == clients.maxlen:
                clients[0].close()
            clients.append(connect(running))
            OPENED.pop()

    with serving() as running:
        thread = threading.Thread(target=flood)
        thread.start()
        answers = [get(running)[0] for _ in range(SCRAPES)]
        thread.join(DEADLINE)
        answers += [get(running)[0] for _ in range(SCRAPES)]
        assert answers == [200] * 2 * SCRAPES
        assert next(number, None) is None
        OPENED.extend(clients)


def test_the_oldest_of_an_address_makes_room_for_its_next_one(limits: Callable[..., None]) -> None:
    limits(MOST_OF_ONE=2)
    with serving() as running:
        other = connect(running, "127.0.0.3")
        clients = [connect(running, "127.0.0.2") for _ in range(5)]
        wait(lambda: running.dropped == {"too_many": 3, "too_slow": 0})
        assert 'connections_total{reason="too_many"} 3' in get(running)[2], (
            "the server's own counter"
        )
        assert all(is_cut_off(client) for client in clients[:3])
        for client in (other, *clients[3:]):
            send(client, ASK)
            assert read_number(client) == b"1"


def test_who_waits_for_a_measurement_is_not_cut_off_and_takes_no_place_of_other_addresses(
    limits: Callable[..., None],
) -> None:
    """Neither for connections that ask nothing, nor for more requests than there is room for."""
    limits(MOST=4, MOST_OF_ONE=2)
    measure = Measure()
    with serving(measure) as running:
        greedy = [connect(running, "127.0.0.2", ASK) for _ in range(2)]
        assert measure.begun.wait(DEADLINE)
        running.wait_until(2, asked=True)
        assert all(is_cut_off(connect(running, "127.0.0.2", data)) for data in (ASK, b""))
        idle = [connect(running, f"127.0.0.{number}") for number in range(3, 9)]
        assert all(is_cut_off(client) for client in idle[:4])
        others = [connect(running, f"127.0.0.{number}", ASK) for number in (9, 10)]
        running.wait_until(4, asked=True)
        others.append(connect(running, "127.0.0.11", ASK))  # which waits in the kernel
        measure.go_on.set()
        assert {read_number(client) for client in (*greedy, *others)} <= {b"1", b"2", b"3"}


def test_an_answer_that_is_not_read_keeps_its_place() -> None:
    """What waits in our kernel is bounded by the number of connections,
    even if their clients say that they end.
    """
    meaning = "x" * 30_000
    with serving(lambda: make_x(1, meaning)) as running:
        slow = connect(running, data=ASK, ahead=4096)
        slow.shutdown(socket.SHUT_WR)
        assert get(running)[0] == 200
        running.wait_until(1)
        assert [connection.client.getpeername() for connection in running.connections.values()] == [
            slow.getsockname()
        ]
        assert meaning.encode() in read_all(slow)
        running.wait_until(0)
    assert running.dropped == {"too_many": 0, "too_slow": 0}


def test_a_connection_ends_at_its_deadline(limits: Callable[..., None]) -> None:
    """However busily it sends its request, byte by byte."""
    limits(PATIENCE=0.3)
    with serving() as running:
        slow = connect(running)
        slow.settimeout(0.01)
        while True:
            send(slow, b"G")
            with suppress(TimeoutError):
                assert is_cut_off(slow)
                break
        assert running.dropped == {"too_many": 0, "too_slow": 1}


def test_half_of_the_descriptors_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """To measure with."""
    monkeypatch.setattr(resource, "getrlimit", lambda of: {resource.RLIMIT_NOFILE: (64, 4096)}[of])
    with serving() as running:
        for number in range(2, 50):
            connect(running, f"127.0.0.{number}")
        assert get(running)[0] == 200
        assert len(running.connections) <= 32
