# SPDX-License-Identifier: Apache-2.0
"""The event log: what was asked of the file system, by whom,
and what /proc had of each pid at that moment.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.resctrlfs.tasks import read_stat


@dataclass(frozen=True)
class Seen:
    """A task as /proc showed it before the write took effect.

    Of one that is not there only the pid is known.

    exe is None where the link cannot be read (kernel threads, zombies);
    starttime is in clock ticks since boot.
    """

    pid: int
    comm: str | None = None
    exe: str | None = None
    cmdline: list[str] = field(default_factory=list)
    starttime: int | None = None


@dataclass(frozen=True)
class Event:
    """One mkdir, rmdir or write to a `tasks` file.

    `result`: "ok" or the errno's name. `pids`: the task written.
    """

    op: str
    path: str
    result: str = ""
    pids: list[Seen] = field(default_factory=list)


def look(pid: int) -> Seen:
    directory = Path(f"/proc/{pid}")
    stat = read_stat(pid)
    if stat is None:
        return Seen(pid)
    try:
        exe: str | None = os.readlink(directory / "exe")
    except OSError:
        exe = None
    try:
        words = (
            (directory / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
        )
    except OSError:
        words = []
    return Seen(pid, stat.comm, exe, words, stat.starttime)


class EventLog:
    """Appends JSON lines; each is in the file before the system call that it is about returns."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    def append(self, event: Event) -> None:
        os.write(self._fd, json.dumps(asdict(event)).encode() + b"\n")


def read_events(path: Path) -> list[Event]:
    events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Event(**{**fields, "pids": [Seen(**process) for process in fields["pids"]]})
        for fields in events
    ]
