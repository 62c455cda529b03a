# SPDX-License-Identifier: Apache-2.0
"""The shipped file on a real terminal (a pty) of 80 and of 200 columns, on nodes with 1, 30 and 400 pods.

The node is made of plain files, so that it can have any number of pods.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from hook.report import format_count
from tests.kernel.inside import REAL_ROOT
from tests.support.hook import DEADLINE, shipped
from tests.unit.nodes import NodeFiles

pytestmark = pytest.mark.skipif(REAL_ROOT is not None or os.geteuid() != 0, reason="needs root, and no resctrl")
COLOURS = re.compile(r"\x1b\[\d*m")
NUMBER = r"(?:>=)?(?:\d[\d.]*(?:[kMGTPE]i?|Ki)?\*?|[-?])"
DEPLOYMENTS = ("web", "cart", "checkout-service-with-quite-a-long-name", "postgres-operator")
NAMESPACES = ("shop", "kube-system", "observability-and-monitoring")


def _hear_interrupts() -> None:
    """As what a terminal runs does, also where a shell started the tests in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class PtyProgram:
    """A program on a terminal of this size, with stdin on it, too."""

    def __init__(self, command: list[str], columns: int, rows: int, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        variables = {"TERM": "xterm", **environment}
        more = {"env": variables, "start_new_session": True, "preexec_fn": _hear_interrupts}
        self._process = subprocess.Popen(command, **streams, **more)  # type: ignore[call-overload]
        self._theirs = theirs
        self.text = ""

    def read(self, condition: Callable[[str], bool]) -> str:
        """Read until what it has printed is as it should be; returns that."""
        deadline = time.monotonic() + DEADLINE
        while not condition(self.text):
            assert time.monotonic() < deadline, self.text
            if select.select([self._ours], [], [], 1)[0]:
                self.text += os.read(self._ours, 1 << 16).decode()
            else:
                assert self._process.poll() is None, self.text
        return self.text

    def finish(self) -> int:
        """Read to the end; returns the exit status."""
        deadline = time.monotonic() + DEADLINE
        while self._process.poll() is None or select.select([self._ours], [], [], 0)[0]:
            assert time.monotonic() < deadline
            if select.select([self._ours], [], [], 0.05)[0]:
                self.text += os.read(self._ours, 1 << 16).decode()
        self.text = self.text.replace("\r\n", "\n")
        return int(self._process.returncode)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._theirs)
        os.close(self._ours)


@pytest.fixture
def terminals() -> Iterator[list[PtyProgram]]:
    opened: list[PtyProgram] = []
    yield opened
    for it in opened:
        it.close()


@pytest.fixture(scope="module", params=[1, 30, 400])
def pods(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, NodeFiles]:
    """A node with so many pods; from two on, some are over, linger, lack a group, or have two."""
    number: int = request.param
    node, dice = NodeFiles(tmp_path_factory.mktemp("node")), Random(1)
    for at in range(number):
        key = f"{dice.getrandbits(32):08x}-0000-4000-8000-{at:012x}"
        pod = f"{dice.choice(DEPLOYMENTS)}-{dice.getrandbits(36):09x}-{dice.getrandbits(20):05x}"
        about: dict[str, Any] = {"kind": "pod", "pod_namespace": dice.choice(NAMESPACES), "pod_name": pod}
        if at % 10 == 3:
            node.completed(key, **about)
            continue
        used = {"mon_PERF_PKG_00/core_energy": f"{dice.expovariate(0.001):.6f}"}
        used |= {"mon_L3_00/mbm_total_bytes": str(int(dice.expovariate(1e-10)))}
        groups: list[dict[str, Any]] = []
        for ctrl_group in ("/", "gold") if at % 10 == 5 else ("/",):
            path = node.make("oci-" + key, ctrl_group, used)
            groups.append({"path": path, "ctrl_group": ctrl_group, "begin": dict.fromkeys(used, "0")})
        members = {f"{dice.getrandbits(256):064x}": node.alive(groups[0]["path"], name="app")}
        if at % 10 == 7:
            about, members = {**about, "lingering_since": 1.0, "lingering_until": 1e9}, {}
        node.record(key, **about, groups=groups, members=members)
    for at in range(number - 1):
        node.fail(f"{dice.getrandbits(256):064x}", namespace="shop", pod=f"batch-{at}", name="app")
    return number, node


def run(node: NodeFiles, *arguments: str) -> list[str]:
    return [str(shipped()), arguments[0], *node.places, *arguments[1:]]


def plain(text: str) -> list[str]:
    return COLOURS.sub("", text).replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("columns", [80, 200])
def test_each_line_of_list_fits_and_ends_in_numbers(
    pods: tuple[int, NodeFiles], terminals: list[PtyProgram], columns: int
) -> None:
    number, node = pods
    terminals.append(terminal := PtyProgram(run(node, "list"), columns, 24))
    assert terminal.finish() == 0
    lines = plain(terminal.text)
    assert max(map(len, lines)) <= columns
    head = next(at for at, line in enumerate(lines) if line.startswith("NAME"))
    assert lines[head].split()[-2:] == ["ENERGY(J)", "TRAFFIC(B)"]
    rows = lines[head + 1 : head + 1 + number]
    assert all(re.search(rf" +{NUMBER} +{NUMBER}$", row) for row in rows), rows
    states = [re.search(r"  (live|lingering|completed) ", row) for row in rows]
    found = [match[1] for match in states if match]
    assert found == sorted(found, key=["live", "lingering", "completed"].index)
    assert len(found) == number
    unmonitored = [line for line in lines if "no_rmids" in line]
    assert len(unmonitored) == (number > 1)
    assert len({row.split()[1] for row in rows}) == number  # no two look alike


@pytest.mark.parametrize("columns", [80, 200])
def test_top_prints_tables_that_fit_its_terminal_until_it_is_interrupted(
    pods: tuple[int, NodeFiles], terminals: list[PtyProgram], columns: int
) -> None:
    number, node = pods
    terminals.append(terminal := PtyProgram(run(node, "top", "--interval=0.1", "--sort=name"), columns, 24))
    terminal.read(lambda text: text.count("no pod ") > 2)
    os.kill(terminal._process.pid, signal.SIGINT)
    assert terminal.finish() == 0
    live = number - sum(at % 10 == 3 for at in range(number))
    shown = min(live, 15)
    of_all = f"{shown} of {live} keys" if shown < live else format_count(live, "key")
    for table in re.split(r"\n(?=\d{4}-)", "\n".join(plain(terminal.text)))[:2]:
        lines = table.splitlines()
        assert max(map(len, lines)) <= columns
        assert (lines[0].endswith(of_all), lines[3][:5], lines[4][:7]) == (True, "node ", "no pod ")
        names = [line.split()[0] for line in lines[5 : 5 + shown]]
        whole = [name for name in names if "..." not in name]
        assert whole == sorted(whole)
