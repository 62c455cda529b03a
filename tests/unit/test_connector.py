# SPDX-License-Identifier: Apache-2.0
"""The process connector: what is sent to the kernel, and how its messages are read. A socket pair plays the kernel."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from hook.base.errors import HookError
from hook.watch import connector
from hook.watch.connector import Connector, Lost
from tests.support import watching

NONE, FORK, EXEC, EXIT = 0, 1, 2, 0x80000000  # linux/cn_proc.h
Ends = tuple[socket.socket, socket.socket]
"""The kernel's end, and ours."""


def message(what: int, *data: int, ack: int = 0) -> bytes:
    """A struct nlmsghdr, a struct cn_msg and a struct proc_event, padded as the kernel does."""
    event = struct.pack("=IIQ", what, 1, 123456789) + struct.pack(f"={len(data)}I", *data)
    event = event.ljust(40, b"\0")
    body = struct.pack("=IIIIHH", 1, 1, 7, ack, len(event), 0) + event
    return struct.pack("=IHHII", 16 + len(body), 3, 0, 7, 0) + body


def answer(error: int = 0) -> bytes:
    return message(NONE, error, ack=os.getpid() + 1)


@pytest.fixture
def kernel() -> Iterator[Ends]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield theirs, ours


def subscribed(kernel: Ends) -> Connector:
    theirs, ours = kernel
    theirs.send(answer())
    made = Connector(ours)
    theirs.recv(4096), theirs.recv(4096)
    return made


def test_it_asks_for_all_events_and_after_the_answer_for_execs_alone(kernel: Ends) -> None:
    """Kernels before 6.6 know only the first, and say nothing to the second."""
    theirs, ours = kernel
    theirs.send(answer())
    Connector(ours)
    first, second = theirs.recv(4096), theirs.recv(4096)
    for sent, data in ((first, struct.pack("=I", 1)), (second, struct.pack("=II", 1, EXEC))):
        length, kind, _flags, _seq, _pid = struct.unpack_from("=IHHII", sent)
        idx, val, _seq, ack, size, _ = struct.unpack_from("=IIIIHH", sent, 16)
        assert (length, kind, idx, val, ack, size) == (len(sent), 3, 1, 1, os.getpid(), len(data))
        assert sent[36:] == data


def test_events_and_answers_to_others_before_the_answer_are_passed_over(kernel: Ends) -> None:
    theirs, ours = kernel
    for it in (message(FORK, 1, 1, 2, 2), message(NONE, errno.EPERM, ack=1), message(EXEC, 5, 5), answer()):
        theirs.send(it)
    Connector(ours)


def test_a_refusal_names_the_capability(kernel: Ends) -> None:
    theirs, ours = kernel
    theirs.send(answer(errno.EPERM))
    with pytest.raises(HookError, match="CAP_NET_ADMIN"):
        Connector(ours)


def test_a_kernel_that_does_not_answer_lacks_proc_events(kernel: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "_PATIENCE", 0)
    with pytest.raises(HookError, match="CONFIG_PROC_EVENTS"):
        Connector(kernel[1])


def test_an_exec_is_the_pid_of_its_process(kernel: Ends) -> None:
    made = subscribed(kernel)
    kernel[0].send(message(EXEC, 8, 7))
    assert made.receive() == 7


@pytest.mark.parametrize(
    "sent",
    [message(FORK, 1, 1, 2, 2), message(EXIT, 1, 1, 0, 17), answer(), message(EXEC, 8, 7)[:59], b"x", b"x" * 4096],
)
def test_what_is_no_exec_is_passed_over(kernel: Ends, sent: bytes) -> None:
    """On kernels where the filter could not be had, and for whatever root may send to us."""
    made = subscribed(kernel)
    kernel[0].send(sent)
    assert made.receive() is None
    assert made.receive(0.01) is None, "nothing for a while"


class ScriptedSocket:
    """Has these messages and errors, in this order, and then nothing. The call of the name `fails` is refused."""

    def __init__(self, *script: bytes | int, fails: str = "", number: int = 0) -> None:
        self.script = list(script)
        self.fails, self.number = fails, number

    def __call__(self, *_arguments: object) -> ScriptedSocket:
        self._do("socket")
        return self

    def _do(self, call: str) -> None:
        if call == self.fails:
            raise OSError(self.number, os.strerror(self.number))

    def fileno(self) -> int:
        return 1 << 20  # of no file: nothing waits for it

    def setsockopt(self, _level: int, option: int, _value: object) -> None:
        self._do(f"setsockopt {option}")

    def bind(self, _address: object) -> None:
        self._do("bind")

    def send(self, _data: bytes) -> None:
        self._do("send")

    def recv(self, _size: int, flags: int) -> bytes:
        if not self.script:
            assert flags == socket.MSG_DONTWAIT, "it waits, and says only then that it is empty"
            raise BlockingIOError(errno.EAGAIN, "nothing")
        it = self.script.pop(0)
        if isinstance(it, int):
            raise OSError(it, os.strerror(it))
        return it

    def close(self) -> None:
        """Close it."""


@pytest.mark.parametrize(
    "script", [[answer(), errno.ENOBUFS, message(EXEC, 8, 7)], [errno.ENOBUFS, answer(), message(EXEC, 8, 7)]]
)
def test_execs_were_lost_until_a_buffer_that_was_full_is_empty(script: list[bytes | int]) -> None:
    made = Connector(ScriptedSocket(*script))  # type: ignore[arg-type]
    assert receive_until_lost(made) == {7}


@pytest.mark.skipif(os.geteuid() != 0 or watching.missing() is not None, reason="needs root, and the connector")
def test_the_kernel_drops_what_comes_before_a_full_buffer_is_empty_and_sends_what_comes_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is said of the kernel, by the kernel."""
    monkeypatch.setattr(connector, "_BUFFER", 4096)
    made = connector.subscribe()
    for _ in range(50):
        start_program()
    assert made.receive() is None, "the buffer was full"
    assert made.receive() is not None, "there is room again"
    dropped = start_program()
    assert dropped not in receive_until_lost(made)
    later = start_program()
    while made.receive() != later:
        pass
    made._kernel.close()


def receive_until_lost(made: Connector) -> set[int]:
    """The pids of the execs that there are, before it says that others were lost."""
    received = set()
    try:
        while True:
            received.add(made.receive())
    except Lost:
        return {pid for pid in received if pid is not None}


def start_program() -> int:
    """Do an exec, and wait for its end; returns its pid."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    return pid


def test_a_broken_socket_is_an_error() -> None:
    made = Connector(ScriptedSocket(answer(), errno.EBADF))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Bad file descriptor"):
        made.receive()


@pytest.mark.parametrize(
    ("call", "number", "problem"),
    [
        ("socket", errno.EPROTONOSUPPORT, "CONFIG_CONNECTOR"),
        ("socket", errno.EAFNOSUPPORT, "CONFIG_CONNECTOR"),
        ("socket", errno.EMFILE, "EMFILE"),
        ("setsockopt 33", errno.EPERM, "CAP_NET_ADMIN"),
        ("setsockopt 26", errno.ENOMEM, "ENOMEM"),
        ("bind", errno.EPERM, "CAP_NET_ADMIN"),
        ("send", errno.ECONNREFUSED, "not the host's network namespace"),
        ("send", errno.ENOMEM, "ENOMEM"),
    ],
)
def test_a_refusal_says_what_is_missing(call: str, number: int, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", ScriptedSocket(fails=call, number=number))
    with pytest.raises(HookError, match=problem):
        connector.subscribe()
