# SPDX-License-Identifier: Apache-2.0
"""The shipped file on a real terminal (a pty) of 80 columns, on a node with 30 pods,
which is made of plain files.

And at the ends of pipes that `history --follow` writes to.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.kernel.inside import REAL_ROOT
from tests.support.hook import DEADLINE, shipped
from tests.unit.lines import line, make
from tests.unit.nodes import NodeFiles

pytestmark = pytest.mark.skipif(
    REAL_ROOT is not None or os.geteuid() != 0, reason="needs root, and no resctrl"
)
NUMBER = r"(?:\d[\d.]*(?:[kMGTPE]i?|Ki)?|[-?])"
PODS, COLUMNS, LINES = 30, 80, 24


def run(
    node: NodeFiles,
    *words: str,
    columns: int = COLUMNS,
    until: Callable[[str], bool] = lambda _text: False,
) -> list[str]:
    """What a command prints on a terminal; it is interrupted once it has
    printed what `until` waits for.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    # As what a terminal runs does, it hears interrupts,
    # also where a shell started the tests in the background.
    command = ["env", "--default-signal=INT", str(shipped()), words[0], *node.places, *words[1:]]
    text, deadline = "", time.monotonic() + DEADLINE
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < deadline, text
            if select.select([ours], [], [], 0.05)[0]:
                text += os.read(ours, 1 << 16).decode()
            if until(text):
                process.send_signal(signal.SIGINT)
        assert process.returncode == 0
    os.close(ours)
    os.close(theirs)
    return text.replace("\r\n", "\n").splitlines()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> NodeFiles:
    node, dice = NodeFiles(tmp_path_factory.mktemp("node")), Random(1)
    for at in range(PODS):
        key = f"{dice.getrandbits(32):08x}-0000-4000-8000-{at:012x}"
        suffix = f"{dice.getrandbits(36):09x}-{dice.getrandbits(20):05x}"
        pod = f"checkout-service-with-quite-a-long-name-{suffix}"
        used = {"mon_PERF_PKG_00/core_energy": f"{dice.expovariate(0.001):.6f}"}
        path = node.make("oci-" + key, counters=used)
        groups = [{"path": path, "ctrl_group": "/", "begin": dict.fromkeys(used, "0")}]
        members = {f"{dice.getrandbits(256):064x}": node.alive(path, name="app")}
        node.record(
            key, kind="pod", pod_namespace="shop", pod_name=pod, groups=groups, members=members
        )
    return node


def test_each_line_of_list_fits_and_ends_in_numbers(node: NodeFiles) -> None:
    lines = run(node, "list")
    assert max(map(len, lines)) <= COLUMNS
    (head,) = [at for at, line in enumerate(lines) if line.startswith("NAME")]
    rows = lines[head + 1 : head + 1 + PODS]
    assert all(re.search(rf" +{NUMBER} +{NUMBER}$", row) for row in rows), rows
    assert len({row.split()[1] for row in rows}) == PODS, "no two look alike"


@pytest.mark.parametrize(("columns", "number"), [(COLUMNS, 15), (40, 12)])
def test_top_replaces_each_table_by_the_next_one_which_fits_its_terminal_until_it_is_interrupted(
    node: NodeFiles, columns: int, number: int
) -> None:
    lines = run(
        node, "top", "--interval=0.1", columns=columns, until=lambda text: text.count("no pod ") > 2
    )
    before, *tables = "\n".join(lines).split("\x1b[H\x1b[J")
    assert (before, len(tables) > 2) == ("", True)
    for table in tables[:2]:
        first, _, head, *rows = table.splitlines()
        assert first.endswith(f"{number} of 30 keys")
        assert (head[:4], rows[0][:5], rows[1][:7]) == ("NAME", "node ", "no pod ")
        assert max(map(len, [head, *rows])) <= columns
        assert sum(-(-len(line) // columns) or 1 for line in table.splitlines()) < LINES


# --- history --follow


def append(path: Path, *numbers: int) -> None:
    with path.open("ab") as stream:
        stream.write(b"".join(line(make(number, f"job-{number}")) for number in numbers))


def test_follow_prints_a_table_whose_head_comes_again_with_the_screen_until_it_is_interrupted(
    node: NodeFiles, tmp_path: Path
) -> None:
    file = tmp_path / "history.jsonl"
    append(file, 1)
    numbers = iter(range(2, 100))

    def add(text: str) -> bool:
        """Each row leads to the next one."""
        if not text or text.endswith("\n"):
            append(file, next(numbers))
        return text.count("NAME") == 3

    lines = run(
        node,
        "history",
        "--follow",
        f"--history={file}",
        until=lambda text: "NAME" in text and add(text),
    )
    heads = [at for at, text in enumerate(lines) if text.startswith("NAME ")]
    assert heads == [0, LINES - 1, 2 * (LINES - 1)]
    rows = [text.split()[0] for text in lines if not text.startswith("NAME ")]
    assert rows == [f"job-{number}" for number in range(2, 2 + len(rows))]
    assert len(set(map(len, lines))) == 1
    assert len(lines[0]) <= COLUMNS


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGPIPE])
def test_follow_ends_in_silence(node: NodeFiles, tmp_path: Path, end: signal.Signals) -> None:
    """For SIGPIPE the reader ends, while nothing is printed."""
    file = tmp_path / "history.jsonl"
    append(file, 1)
    words = ["history", "--follow", "--json", "--since=2026-11-17", f"--history={file}"]
    command = ["env", "--default-signal=INT", str(shipped()), words[0], *node.places, *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["name"] == "job-1"
        append(file, 2)
        assert json.loads(process.stdout.readline())["name"] == "job-2"
        if end == signal.SIGPIPE:
            process.stdout.close()
        else:
            process.send_signal(end)
        assert process.wait(DEADLINE) == 0
        assert process.stderr.read() == b""
