# SPDX-License-Identifier: Apache-2.0
"""The configurations of docs/fleet.md on Debian's rsyslog: a node that sends its lines,
and one that receives them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fetch import provision
from tests.support.waiting import wait
from tests.unit.documents import blocks, page

SENDS, RECEIVES, SEND_AGAIN = blocks(page("docs/fleet.md", "rsyslog"))
BEFORE = (
    'module(load="imuxsock" SysSock.Use="off")\nglobal(workDirectory="{work}" '
    'localHostname="node-7")\n'
)
"""Debian's rsyslog.conf loads this module, too, before it includes what is in rsyslog.d."""
STATES = "imfile-state:*"
LONG = 40_000
"""Bytes of a line of a pod with many containers."""


class Rsyslog:
    """A server with a configuration of the page."""

    def __init__(self, directory: Path, name: str, configuration: str) -> None:
        self.work = directory / name
        self.work.mkdir()
        self._file = directory / f"{name}.conf"
        self._file.write_text(BEFORE.format(work=self.work) + configuration, encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["rsyslogd", "-n", "-f", str(self._file), "-i", str(self.work / "pid")]
        environment = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"}
        self._process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Shipping:
    """A node's file of the history, two servers, and the file that the second one writes."""

    def __init__(self, directory: Path) -> None:
        log, received = directory / "log", directory / "received"
        log.mkdir()
        received.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        here = {
            "/var/log/resctrl-mon-hook": str(log),
            "/srv/bills": str(received),
            '"2514"': f'"{port}"',
        }
        here |= {"bills.example.com": "127.0.0.1", 'resumeInterval="10"': 'resumeInterval="1"'}
        assert all(place in SENDS + RECEIVES for place in here)
        sends, receives = SENDS, RECEIVES
        for place, other in here.items():
            sends, receives = sends.replace(place, other), receives.replace(place, other)
        self.node, self.receiver = (
            Rsyslog(directory, "node", sends),
            Rsyslog(directory, "receiver", receives),
        )
        self.file, self._received = log / "history.jsonl", received / "node-7.jsonl"
        self.written: list[bytes] = []

    def append(self, count: int, before: bytes = b"") -> None:
        """Append lines as hooks do; `before`: what the first of them begins with."""
        with self.file.open("ab", buffering=0) as file:
            for _ in range(count):
                number = len(self.written)
                line = json.dumps(
                    {"id": f"{number:016x}", "pod": "x" * (LONG if number % 50 == 0 else 300)}
                ).encode()
                self.written.append(line)
                file.write(before + line + b"\n")
                before = b""

    def tear(self) -> None:
        """Append what a kill leaves of a line."""
        with self.file.open("ab", buffering=0) as file:
            file.write(b'{"id": "torn')

    def rotate(self) -> None:
        self.file.rename(self.file.with_name("history.jsonl.1"))

    def received(self) -> list[bytes]:
        content = self._received.read_bytes() if self._received.exists() else b""
        return content.split(b"\n")[:-1]

    def await_all(self) -> None:
        """Wait until each line that was written has arrived; what else there is was torn."""
        wait(lambda: {*self.written} <= {*self.received()})
        others = {*self.received()} - {*self.written}
        assert others <= {b'{"id": "torn'}


@pytest.fixture
def shipping(tmp_path: Path) -> Iterator[Shipping]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if reasons := provision.install(provision.FLEET):
        pytest.skip("; ".join(reasons))
    servers = Shipping(tmp_path)
    try:
        yield servers
    finally:
        servers.node.kill()
        servers.receiver.kill()


def test_no_line_is_lost_over_rotations_torn_lines_and_a_receiver_that_is_down(
    shipping: Shipping,
) -> None:
    shipping.append(50)
    shipping.receiver.start()
    shipping.node.start()
    shipping.tear()
    shipping.append(100, before=b"\n")
    shipping.await_all()
    shipping.receiver.kill()
    shipping.append(1000)
    shipping.tear()
    shipping.rotate()
    shipping.append(100)
    shipping.receiver.start()
    shipping.await_all()
    shipping.rotate()
    shipping.append(100)
    shipping.await_all()
    shipping.node.kill()
    shipping.append(10)
    shipping.rotate()
    shipping.append(10)
    shipping.node.start()
    shipping.await_all()


def test_lines_on_their_way_at_a_kill_while_the_receiver_is_down_arrive_when_the_file_is_sent_again(
    shipping: Shipping,
) -> None:
    shipping.append(50)
    shipping.receiver.start()
    shipping.node.start()
    shipping.await_all()
    shipping.receiver.kill()
    shipping.append(100)
    (state,) = shipping.node.work.glob(STATES)
    wait(lambda: "history" in state.read_text("utf-8"))
    shipping.node.kill()
    (removed,) = re.findall(r"^rm /var/spool/rsyslog/(.*)$", SEND_AGAIN, re.MULTILINE)
    assert removed == STATES
    for state in shipping.node.work.glob(removed):
        state.unlink()
    shipping.receiver.start()
    shipping.node.start()
    shipping.await_all()
