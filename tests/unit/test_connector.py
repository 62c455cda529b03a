# SPDX-License-Identifier: Apache-2.0
"""The process connector: what is sent to the kernel, and how its messages are read."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct

import pytest

from hook.errors import HookError
from hook.watch import connector
from hook.watch.connector import Connector, Lost
from hook.words import explain

NONE, FORK, EXEC, EXIT = 0, 1, 2, 0x80000000  # linux/cn_proc.h


def message(what: int, *data: int, ack: int = 0) -> bytes:
    """A struct nlmsghdr, a struct cn_msg and a struct proc_event, padded as the kernel does."""
    event = struct.pack("=IIQ", what, 1, 123456789) + struct.pack(f"={len(data)}I", *data)
    event = event.ljust(40, b"\0")
    body = struct.pack("=IIIIHH", 1, 1, 7, ack, len(event), 0) + event
    return struct.pack("=IHHII", 16 + len(body), 3, 0, 7, 0) + body


def answer(error: int = 0) -> bytes:
    return message(NONE, error, ack=os.getpid() + 1)


class ScriptedSocket:
    """Has these messages and errors, in this order, and then nothing.

    The call of the name `fails` is refused.
    """

    def __init__(self, *script: bytes | int, fails: str = "", number: int = 0) -> None:
        self.script = list(script)
        self.sent: list[bytes] = []
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

    def send(self, data: bytes) -> None:
        self._do("send")
        self.sent.append(data)

    def recv(self, _size: int, flags: int) -> bytes:
        if not self.script:
            assert flags == socket.MSG_DONTWAIT, "it waits, and says only then that it is empty"
            raise BlockingIOError(errno.EAGAIN, "nothing")
        sent = self.script.pop(0)
        if isinstance(sent, int):
            raise OSError(sent, os.strerror(sent))
        return sent

    def close(self) -> None:
        """Close it."""


def subscribed(*script: bytes | int) -> Connector:
    """A subscription that is answered, and has this then."""
    return Connector(ScriptedSocket(answer(), *script))  # type: ignore[arg-type]


def test_it_asks_for_all_events() -> None:
    kernel = ScriptedSocket(answer())
    Connector(kernel)  # type: ignore[arg-type]
    (sent,) = kernel.sent
    length, kind, _flags, _seq, _pid = struct.unpack_from("=IHHII", sent)
    idx, val, _seq, ack, size, _ = struct.unpack_from("=IIIIHH", sent, 16)
    assert (length, kind, idx, val, ack, size) == (len(sent), 3, 1, 1, os.getpid(), 4)
    assert sent[36:] == struct.pack("=I", 1)


def test_events_and_answers_to_others_before_the_answer_are_passed_over() -> None:
    others = (message(FORK, 1, 1, 2, 2), message(NONE, errno.EPERM, ack=1), message(EXEC, 5, 5))
    assert Connector(ScriptedSocket(*others, answer())).receive() is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "problem"),
    [([answer(errno.EPERM)], "CAP_NET_ADMIN"), ([], "CONFIG_PROC_EVENTS")],
    ids=["no", "silent"],
)
def test_a_kernel_that_refuses_or_does_not_answer_lacks_what_is_named(
    monkeypatch: pytest.MonkeyPatch, script: list[bytes], problem: str
) -> None:
    monkeypatch.setattr(connector, "_PATIENCE", 1 if script else 0)
    monkeypatch.setattr(socket, "socket", ScriptedSocket(*script))
    with pytest.raises(HookError) as caught:
        connector.subscribe()
    assert re.search(problem, str(explain(caught.value)))


@pytest.mark.parametrize(
    ("sent", "pid"),
    [
        (message(EXEC, 8, 7), 7),  # of its process, and not of the thread
        *(
            (sent, None)
            for sent in (
                message(FORK, 1, 1, 2, 2),
                message(EXIT, 1, 1, 0, 17),
                answer(),
                b"x",
                b"x" * 4096,
            )
        ),
        (message(EXEC, 8, 7)[:59], None),
    ],
)
def test_an_exec_is_the_pid_of_its_process_and_all_else_is_passed_over(
    sent: bytes, pid: int | None
) -> None:
    """On kernels where the filter could not be had, and for whatever root may send to us."""
    made = subscribed(sent)
    assert made.receive() == pid
    assert made.receive(0.01) is None, "nothing for a while"


def test_execs_were_lost_and_are_reported_once_the_full_buffer_is_empty() -> None:
    made = subscribed(errno.ENOBUFS, message(EXEC, 8, 7), message(EXEC, 9, 9))
    with pytest.raises(Lost):
        made.receive()
    assert made.receive() is None


def test_a_broken_socket_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        subscribed(errno.EBADF).receive()


@pytest.mark.parametrize(
    ("call", "number", "problem"),
    [
        ("socket", errno.EPROTONOSUPPORT, "CONFIG_CONNECTOR"),
        ("socket", errno.EAFNOSUPPORT, "CONFIG_CONNECTOR"),
        ("socket", errno.EMFILE, "EMFILE"),
        ("setsockopt 26", errno.ENOMEM, "ENOMEM"),
        ("bind", errno.EPERM, "CAP_NET_ADMIN"),
        ("send", errno.ENOMEM, "ENOMEM"),
    ],
)
def test_a_refusal_says_what_is_missing(
    call: str, number: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", ScriptedSocket(fails=call, number=number))
    with pytest.raises(HookError) as caught:
        connector.subscribe()
    assert re.search(problem, str(explain(caught.value)))
