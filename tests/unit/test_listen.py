# SPDX-License-Identifier: Apache-2.0
"""`metrics --listen`: whatever clients do, the next one is answered."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from hook.base.errors import HookError
from hook.base.reasons import Reason
from hook.observe import listen

DEADLINE = 300
LOCAL = ("127.0.0.1", 0)


@contextmanager
def serving(measure: Callable[[], str], address: tuple[str, int] = LOCAL) -> Iterator[listen._Server]:
    server = listen._Server(address, measure)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE)


def connect(server: listen._Server) -> socket.socket:
    host, port = server.server_address[:2]
    return socket.create_connection((str(host), port), timeout=DEADLINE)


def get(server: listen._Server, path: str = "/metrics", method: str = "GET") -> tuple[int, str | None, str]:
    host, port = server.server_address[:2]
    with closing(http.client.HTTPConnection(str(host), port, timeout=DEADLINE)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()


def test_metrics_are_measured_at_each_request() -> None:
    numbers = iter(range(9))
    with serving(lambda: f"x {next(numbers)}\n") as server:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        assert [get(server), get(server, "/metrics?a=b")] == [(200, kind, "x 0\n"), (200, kind, "x 1\n")]


def test_nothing_else_is_served() -> None:
    with serving(lambda: "x 1\n") as server:
        status, _, page = get(server, "/")
        assert (status, 'href="metrics"' in page) == (200, True)
        for path in ("/metrics/", "/etc/passwd", "/../metrics", "*"):
            assert get(server, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "HEAD", "TRACE"):
            assert get(server, method=method)[0] == 501


def test_an_ipv6_address_is_served() -> None:
    try:
        with serving(lambda: "x 1\n", ("::1", 0)) as server:
            assert get(server)[0] == 200
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


@pytest.mark.parametrize("error", [HookError(Reason.IO, "the run directory is unreadable"), ValueError("a defect")])
def test_a_failed_measurement_is_answered_and_reported(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    answers = iter([error, None])

    def measure() -> str:
        if (problem := next(answers)) is not None:
            raise problem
        return "x 1\n"

    with serving(measure) as server:
        status, _, text = get(server)
        assert (status, str(error.args[-1]) in text) == (500, True)
        assert get(server)[0] == 200
    assert capfd.readouterr().err.count("\n") == 1


def test_idle_clients_make_room() -> None:
    """Each of them sends a part of a request and then nothing."""
    with serving(lambda: "x 1\n") as server:
        idle = [connect(server) for _ in range(5 * listen._MOST_CONNECTIONS)]
        for it in idle:
            _send(it, b"GET /metr")
        assert get(server)[0] == 200
        assert len(server._since) <= listen._MOST_CONNECTIONS
        assert idle[0].recv(9) == b"", "the oldest one was closed"
        for it in idle:
            it.close()


def _send(it: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # it was closed to make room
        it.sendall(data)


def test_clients_that_do_not_read_make_room() -> None:
    with serving(lambda: "x" * (32 << 20)) as server:
        deaf = [connect(server) for _ in range(2 * listen._MOST_CONNECTIONS)]
        for it in deaf:
            _send(it, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert get(server, "/")[0] == 200
        for it in deaf:
            it.close()


def test_a_connection_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busily it sends its request, byte by byte."""
    monkeypatch.setattr(listen, "_PATIENCE", 0.0)
    with serving(lambda: "x 1\n") as server, connect(server) as slow:
        assert slow.recv(9) == b""


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n",
        b"\0" * 70000,
        b"GET " + b"/" * 70000 + b" HTTP/1.0\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
        b"GET /metrics",
        b"\xff\xfe\r\n\r\n",
    ],
    ids=["empty", "zeros", "long line", "a version to come", "many headers", "half", "no text"],
)
def test_a_broken_request_harms_no_other(request_: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(lambda: "x 1\n") as server:
        with connect(server) as broken:
            _send(broken, request_)
            with suppress(OSError):  # reset, with the rest of the request unread
                broken.shutdown(socket.SHUT_WR)
                while broken.recv(65536):
                    pass
        assert get(server)[0] == 200
    assert capfd.readouterr().err == ""


def test_requests_that_wait_share_a_measurement() -> None:
    """A flood of them costs the node no more than two at a time; none gets what was measured before it came."""
    calls, begun, go_on = [0], threading.Event(), threading.Event()

    def measure() -> str:
        calls[0] += 1
        begun.set()
        assert go_on.wait(DEADLINE)
        return f"x {calls[0]}\n"

    with serving(measure) as server:
        answers: list[str] = []
        threads = [threading.Thread(target=lambda: answers.append(get(server)[2])) for _ in range(6)]
        threads[0].start()
        assert begun.wait(DEADLINE)
        for it in threads[1:]:
            it.start()
        while len(server._served) < len(threads):  # nothing tells when a request is read
            threading.Event().wait(0.001)
        go_on.set()
        for it in threads:
            it.join(DEADLINE)
    assert sorted(answers) == ["x 1\n"] + ["x 2\n"] * 5


def test_an_address_that_is_taken_is_an_error_with_its_name() -> None:
    with serving(lambda: "") as server:
        port = server.server_address[1]
        with pytest.raises(HookError, match=rf"cannot listen on 127\.0\.0\.1:{port}.*EADDRINUSE"):
            listen.serve(("127.0.0.1", port), lambda: "", lambda _text: None)
