# SPDX-License-Identifier: Apache-2.0
"""`watch` and `view`, by the shipped file, beside a test."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.hook import DEADLINE, Hook, finish

Process = subprocess.Popen[bytes]


def missing() -> str | None:
    """Why watch cannot run here, as the kernel says it; None if it can."""
    try:
        names = Path("/proc/net/connector").read_text(encoding="ascii")
    except FileNotFoundError:
        names = ""
    return None if "cn_proc" in names else "this kernel has no process connector"


def start(hook: Hook, *wrapper: str, verb: str = "watch") -> Process:
    command = [*wrapper, *replace(hook, options=()).command(verb)]
    pipe = subprocess.PIPE
    # Unbuffered: of two lines that come at once the second one is still seen by select.
    return subprocess.Popen(
        command, bufsize=0, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={}
    )


def listen(process: Process) -> str:
    """Wait for its next line."""
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], DEADLINE)[0], "it says nothing"
    return process.stderr.readline().decode()


@contextmanager
def watching(hook: Hook) -> Iterator[Process]:
    """A watch that listens."""
    with serving(hook, "watch", "listening to execs") as process:
        yield process


@contextmanager
def serving(hook: Hook, verb: str, line: str) -> Iterator[Process]:
    """A service that has said this line, and ends with status 0 at SIGTERM."""
    process = start(hook, verb=verb)
    try:
        assert line in listen(process)
        yield process
        process.terminate()
        outcome = finish(process)
        assert outcome.status == 0, outcome
    finally:
        process.kill()
        process.communicate()
