# SPDX-License-Identifier: Apache-2.0
"""The event log: what was asked of the file system, by whom, and what /proc said of each pid at that moment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.resctrlfs.tasks import Tasks


@dataclass(frozen=True)
class Seen:
    """A task as /proc showed it before the write took effect. state None: there was no such task.

    exe is None where the link cannot be read (kernel threads, zombies); starttime is in clock ticks since boot.
    """

    pid: int
    comm: str | None = None
    exe: str | None = None
    cmdline: list[str] = field(default_factory=list)
    state: str | None = None
    starttime: int | None = None


@dataclass(frozen=True)
class Event:
    """One mkdir, rmdir, rename or write to a `tasks` file. `ns`: CLOCK_MONOTONIC when it was answered.

    `result`: "ok" or the errno's name. `writer_pid` is the thread that made the system call. `to`: rename's second
    path. `data`: what was written; `pids`: the tasks that it names, up to the first word that is no number.
    """

    op: str
    path: str
    result: str = ""
    ns: int = 0
    writer_pid: int = 0
    writer_comm: str | None = None
    to: str | None = None
    data: str | None = None
    pids: list[Seen] = field(default_factory=list)

    @classmethod
    def from_json(cls, line: str) -> Event:
        fields: dict[str, Any] = json.loads(line)
        fields["pids"] = [Seen(**seen) for seen in fields["pids"]]
        return cls(**fields)


def look(tasks: Tasks, pid: int) -> Seen:
    directory = Path(f"/proc/{pid}")
    stat = tasks.stat(pid)
    if stat is None:
        return Seen(pid)
    try:
        exe: str | None = os.readlink(directory / "exe")
    except OSError:
        exe = None
    try:
        words = (directory / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
    except OSError:
        words = []
    return Seen(pid, stat.comm, exe, words, stat.state, stat.starttime)


class EventLog:
    """Appends JSON lines; each is in the file before the system call that it is about returns."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, event: Event) -> None:
        os.write(self._fd, json.dumps(asdict(event)).encode() + b"\n")


def read_events(path: Path) -> list[Event]:
    return [Event.from_json(line) for line in path.read_text().splitlines()]
