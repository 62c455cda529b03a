# SPDX-License-Identifier: Apache-2.0
"""What the model needs to know about tasks: from /proc, in the pid namespace of the server.

Terms are the kernel's: a *tid* names one thread, a *pid* its process (thread group).
A starttime is in clock ticks since boot.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Task(NamedTuple):
    """One thread that exists, zombie leaders included (they stay listed until they are reaped)."""

    tid: int
    pid: int
    ppid: int
    starttime: int

    @property
    def parent(self) -> int:
        """Whom it got its group from at birth. /proc names no forking *thread*:
        its process's leader counts as that.
        """
        return self.pid if self.tid != self.pid else self.ppid


class Stat(NamedTuple):
    """The fields of proc(5)'s /proc/PID/stat that matter here."""

    comm: str
    ppid: int
    threads: int
    starttime: int


def read_stat(tid: int) -> Stat | None:
    """None: no such task.

    A look at all tasks reads hundreds, and open() would take three times as long as os.open.
    """
    try:
        descriptor = os.open(f"/proc/{tid}/stat", os.O_RDONLY)
        try:
            # A comm may be no UTF-8.
            text = os.read(descriptor, 4096).decode(errors="surrogateescape")
        finally:
            os.close(descriptor)
    except OSError:
        return None
    # The comm is between the first "(" and the last ")": it may itself hold both, and spaces
    head, _, tail = text.rpartition(")")
    fields = tail.split(maxsplit=20)
    return Stat(
        comm=head.partition("(")[2],
        ppid=int(fields[1]),
        threads=int(fields[17]),
        starttime=int(fields[19]),
    )


class Tasks:
    """The tasks that there are."""

    def __init__(self) -> None:
        self._namespace = self._namespace_of(os.getpid())

    def snapshot(self) -> dict[int, Task]:
        """Every task there is, by tid, in the order in which the kernel walks them."""
        tasks: dict[int, Task] = {}
        for pid in self._numbers("/proc"):
            leader = read_stat(pid)
            if leader is None:
                continue
            alone = leader.threads == 1  # as most are: nothing to list
            for tid in [pid] if alone else self._numbers(f"/proc/{pid}/task"):
                stat = leader if tid == pid else read_stat(tid)
                if stat is not None:
                    tasks[tid] = Task(tid, pid, stat.ppid, stat.starttime)
        return tasks

    def resolve(self, observer: int, number: int) -> int | None:
        """The tid that `observer` (a tid) calls `number`,
        in its own pid namespace; None: no such task.
        """
        namespace = self._namespace_of(observer)
        if namespace == self._namespace:
            return number if read_stat(number) is not None else None
        inside = (tid for tid in self.snapshot() if self._namespace_of(tid) == namespace)
        return next((tid for tid in inside if self._numbers_of(tid)[-1:] == [number]), None)

    def number(self, observer: int, tid: int) -> int:
        """What `observer` calls `tid`; 0 if it cannot see it."""
        namespace = self._namespace_of(observer)
        if namespace == self._namespace:
            return tid
        return self._numbers_of(tid)[-1] if self._namespace_of(tid) == namespace else 0

    def _namespace_of(self, tid: int) -> str:
        """A task that has no namespace any more (a zombie, or gone) counts as in the same."""
        try:
            return os.readlink(f"/proc/{tid}/ns/pid")
        except OSError:
            return getattr(self, "_namespace", "")

    def _numbers_of(self, tid: int) -> list[int]:
        """Its number in each pid namespace from ours down to its own
        (`NSpid` of proc(5)'s status).
        """
        try:
            lines = Path(f"/proc/{tid}/status").read_text(errors="surrogateescape").splitlines()
        except OSError:
            return []
        return [int(n) for line in lines if line.startswith("NSpid:") for n in line.split()[1:]]

    @staticmethod
    def _numbers(directory: str) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(directory) if name.isdecimal())
        except OSError:
            return []
