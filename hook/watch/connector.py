# SPDX-License-Identifier: Apache-2.0
"""The kernel's process connector: a netlink socket that gets a message at each exec on the machine.

Source: Documentation/driver-api/connector.rst, include/uapi/linux/cn_proc.h and
drivers/connector/cn_proc.c of the kernel. A message is a struct nlmsghdr (16 bytes), a struct
cn_msg (20 bytes) and a struct proc_event, in the order of bytes of the machine.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
from contextlib import suppress

from hook import system
from hook.errors import HookError, Reason
from hook.rare import as_hook_error

_NETLINK_CONNECTOR = 11
_CN_IDX_PROC = _CN_VAL_PROC = 1
_PROC_CN_MCAST_LISTEN = 1
_PROC_EVENT_NONE, _PROC_EVENT_EXEC = 0, 2  # proc_event.what: an answer to us, and an exec
_NLMSG_DONE = 3
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33  # asm-generic/socket.h
_WHAT = struct.Struct("=36xI")
_ANSWER = struct.Struct("=28xI20xI")  # cn_msg.ack, event_data.ack.err
_EXEC = struct.Struct("=56xI")  # event_data.exec.process_tgid
_LONGEST = 4096
# Bytes, of which the kernel makes twice as many: 4,700 execs, and used only while we are behind.
_BUFFER = 2 << 20
_PATIENCE = 2.0  # seconds to wait for the kernel's answer, which it sends within our call
# Seconds after which receive returns without an event, unless its caller has less time.
_PAUSE = 1.0
_HINT = "reconcile moves in what exec brought in, once a minute, without watch"


class Lost(Exception):
    """The socket's buffer was full, and the kernel dropped events of execs."""


class Connector:
    """A subscription to the execs of the machine."""

    def __init__(self, kernel: socket.socket) -> None:
        """Ask for all events, and wait for the answer; the socket's filter drops all but execs.

        Raises OSError if the kernel refuses, HookError if it does not answer.
        """
        self._kernel = kernel
        self._poller = select.poll()
        self._poller.register(kernel, select.POLLIN)
        pid = system.process_id()
        message = struct.pack(
            "=IIIIHHI", _CN_IDX_PROC, _CN_VAL_PROC, 0, pid, 4, 0, _PROC_CN_MCAST_LISTEN
        )
        kernel.send(struct.pack("=IHHII", 16 + len(message), _NLMSG_DONE, 0, 0, 0) + message)
        self._await_answer(pid + 1)

    def receive(self, patience: float | None = None) -> int | None:
        """Wait at most `patience` seconds for the next exec, and return the pid of its process.

        Raises Lost, OSError.

        The sender of a message is not checked: other users cannot send to this socket,
        and the pid is only a hint where to look.
        """
        message = self._read(_PAUSE if patience is None else patience)
        return int(_EXEC.unpack_from(message)[0]) if _what(message) == _PROC_EVENT_EXEC else None

    def _read(self, patience: float) -> bytes:
        """Read the next message, or nothing if there was none in time.

        When the buffer is full, the kernel drops all events until it is empty, and reports only the
        first (netlink_overrun in net/netlink/af_netlink.c). So Lost is raised when this has emptied
        it: a caller that then looks at all containers misses none.
        """
        self._poller.poll(patience * 1000)
        try:
            return self._kernel.recv(_LONGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
        with suppress(BlockingIOError):
            while True:
                self._kernel.recv(_LONGEST, socket.MSG_DONTWAIT)
        raise Lost

    def _await_answer(self, ack: int) -> None:
        """Wait for the answer with this number, which the kernel sends to all listeners."""
        deadline = system.monotonic() + _PATIENCE
        while system.monotonic() < deadline:
            message = b""
            with suppress(Lost):  # before the subscription: nothing of ours
                message = self._read(_PATIENCE)
            if _what(message) != _PROC_EVENT_NONE:
                continue
            answered, number = _ANSWER.unpack_from(message)
            if answered == ack and number:
                raise OSError(number, os.strerror(number))
            if answered == ack:
                return
        problem = (
            "the kernel's process connector does not answer: this kernel has no CONFIG_PROC_EVENTS"
        )
        raise HookError(Reason.DENIED, problem, hint=_HINT)


_NO_CONNECTOR = ("the kernel has no process connector: this kernel has no CONFIG_CONNECTOR", _HINT)
_REFUSALS = {
    errno.EPROTONOSUPPORT: _NO_CONNECTOR,
    errno.EAFNOSUPPORT: _NO_CONNECTOR,
    errno.EPERM: (
        "not allowed to listen to the kernel's process connector: this needs root with "
        "CAP_NET_ADMIN",
        "run it as root on the host, or add the capability NET_ADMIN",
    ),
    errno.ECONNREFUSED: (
        "the kernel's process connector is out of reach: this is not the host's network namespace",
        "run it in the host's network namespace (hostNetwork: true; podman run --network=host)",
    ),
}


def subscribe() -> Connector:
    """Subscribe to the execs of this machine. Raises HookError if the kernel does not allow it."""
    try:
        kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
        kernel.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        _attach_filter(kernel)
        kernel.bind((0, _CN_IDX_PROC))
        return Connector(kernel)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise as_hook_error(
                "cannot subscribe to the kernel's process connector", error
            ) from error
        problem, hint = _REFUSALS[error.errno]
        raise HookError(Reason.DENIED, problem, hint=hint) from None


def _what(message: bytes) -> int | None:
    """Return the kind of a message's event, or None if it is none."""
    return int(_WHAT.unpack_from(message)[0]) if len(message) >= _EXEC.size else None


def _attach_filter(kernel: socket.socket) -> None:
    """Let only execs and answers reach the socket: a program of classic BPF.

    Source: socket(7), linux/filter.h.

    BPF loads a word in network order, whatever order the kernel wrote it in.
    """
    is_exec, is_answer = struct.unpack(
        "!II", struct.pack("=II", _PROC_EVENT_EXEC, _PROC_EVENT_NONE)
    )
    steps = [
        (0x20, 0, 0, 36),  # BPF_LD | BPF_W | BPF_ABS: proc_event.what
        (0x15, 1, 0, is_exec),  # BPF_JMP | BPF_JEQ | BPF_K: over one step if it is, else over none
        (0x15, 0, 1, is_answer),
        (0x06, 0, 0, 0xFFFFFFFF),  # BPF_RET | BPF_K: all of the message
        (0x06, 0, 0, 0),
    ]
    program = array.array("B", b"".join(struct.pack("=HBBI", *step) for step in steps))
    address, _size = program.buffer_info()
    kernel.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(steps), address))
