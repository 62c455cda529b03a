# SPDX-License-Identifier: Apache-2.0
"""A stand-in for /sys/fs/resctrl: a model of it behind a real FUSE mount.

For instance `with mounted(tmp_path, rmids=4) as resctrl: (resctrl.root / "mon_groups" /
"x").mkdir()`, after which `resctrl.events()` holds that mkdir, and `resctrl.control(do="settle")`
tells the machine behind it what to do.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.resctrlfs.events import Event, Seen, read_events
from tests.resctrlfs.places import detach, is_mounted

__all__ = ["Event", "Mounted", "Seen", "mounted"]

DEADLINE = 300.0
"""Seconds for each of: being ready, answering a request, ending."""
REPOSITORY = Path(__file__).resolve().parents[2]


class Mounted:
    """A server process and its mount.

    `root` is what a program takes for /sys/fs/resctrl; `log` is the event log.
    """

    def __init__(self, directory: Path, **knobs: object) -> None:
        """`directory` exists and is the test's own.

        Knobs: the fields of tests.resctrlfs.model.Knobs.
        """
        self.root = directory / "resctrl"
        self.log = directory / "resctrl-events.jsonl"
        self._socket = directory / "resctrl.sock"
        self.root.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.resctrlfs", *self._arguments(knobs)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            self._await_ready()
            self._flush()
        except BaseException:
            self.close()
            raise

    def _arguments(self, knobs: dict[str, object]) -> list[str]:
        words = [str(self.root), f"--control={self._socket}", f"--log={self.log}", "--until-eof"]
        for name, value in knobs.items():
            flag = name.replace("_", "-")
            words.append(
                f"--{flag if value else 'no-' + flag}"
                if isinstance(value, bool)
                else f"--{flag}={value}"
            )
        return words

    def _await_ready(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], DEADLINE)
        if not readable or stdout.readline() != b"ready\n":
            raise RuntimeError(
                f"resctrlfs did not mount {self.root}; exit status {self.process.poll()}"
            )

    def _flush(self) -> None:
        """Have the kernel learn from a first close that the server takes no flushes,
        so that it sends no more of them.

        One from an execve, which closes what the parent had open, could wait for ever:
        the server looks at all processes in /proc, and /proc/PID/stat of that one waits
        until its execve is over.
        """
        os.close(os.open(self.root / "tasks", os.O_RDONLY))

    def events(self) -> list[Event]:
        """What happened so far, oldest first."""
        return read_events(self.log)

    def control(self, **request: object) -> Any:  # noqa: ANN401  (JSON: the request decides)
        """control(do="inject", op="mkdir", error="ENOSPC"): see tests.resctrlfs.__main__.

        Errors: RuntimeError.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE)
            # By way of the directory's descriptor: a test's path can be longer than
            # a socket's address may be.
            directory = os.open(self._socket.parent, os.O_PATH)
            try:
                connection.connect(f"/proc/self/fd/{directory}/{self._socket.name}")
            finally:
                os.close(directory)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("r", encoding="utf-8") as stream:
                answer: dict[str, Any] = json.loads(stream.readline())
        if not answer["ok"]:
            raise RuntimeError(f"{request}: {answer['error']}")
        return answer["result"]

    def groups(self) -> dict[str, dict[str, Any]]:
        """Every group by path ("/", "/mon_groups/x", ...): closid, rmid, tasks."""
        return {group["path"]: group for group in self.control(do="state")["groups"]}

    def mon_groups(self) -> dict[str, list[int]]:
        """The mon_groups of the root ctrl_group by name, with their tasks."""
        groups = self.groups().items()
        return {
            path[len("/mon_groups/") :]: group["tasks"]
            for path, group in groups
            if path.startswith("/mon_groups/")
        }

    def close(self) -> None:
        """Unmount and end the server, whatever state it is in. Can be called twice."""
        # Libfuse misses a signal that comes just before it begins to wait for a request.
        for _ in range(int(DEADLINE)):
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
                break
        else:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        while is_mounted(self.root):
            detach(self.root)


@contextmanager
def mounted(directory: Path, **knobs: object) -> Iterator[Mounted]:
    resctrl = Mounted(directory, **knobs)
    try:
        yield resctrl
    finally:
        resctrl.close()
