# SPDX-License-Identifier: Apache-2.0
"""What reconcile and watch count: the record reconcile.json,
and the CPU time that no group was charged for.

That is what threads had used before they were moved into their group: their late CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from hook import rare, system
from hook.context import Context
from hook.errors import HookError
from hook.key import settle
from hook.node.models import ReconcileRecord
from hook.store import RunDir
from hook.validation import replace

_MOST_REMEMBERED = 4096  # threads
# The most of models.Seconds: what a damaged record has beyond it starts from 0 again.
_SECONDS_FULL = 1e12
_LOCK = "reconcile.lock"
_PATIENCE = 1.0  # seconds, for a lock that is held while one file is written


class LateCpu:
    """The late CPU time of threads, in seconds, until it is on record."""

    def __init__(self) -> None:
        self.by_key: dict[str, float] = {}  # what is in no record yet
        self._unsummed = 0.0  # what is in the records of keys, and not in reconcile.json yet
        # By thread (its number and start time), what the thread had used when it was moved.
        self._used: dict[tuple[int, int], float] = {}
        # When the last complete reconcile looked, and of which containers it left threads outside.
        self._looked_at = 0.0
        self._left_outside: Collection[str] = ()

    def note_last_look(self, run: RunDir) -> ReconcileRecord:
        """Read from the record of reconcile what `limit` asks for; return the record."""
        last = read_record(run)
        is_of_this_boot = last.looked_at <= system.boottime()
        self._looked_at, self._left_outside = (
            (last.looked_at if is_of_this_boot else 0.0),
            last.outside.keys(),
        )
        return last

    def limit(self, container: str) -> float:
        """Return the most CPU seconds that count as late for a thread older than the
        last look of a complete run.

        That look found the container's threads in its group, so their time was charged. A thread
        that has left the group since and comes back counts nothing: how much it had used by then is
        on no record. If that look left threads of the container outside, any may be one of them,
        and the time since then is the most that it can have used.
        """
        return system.boottime() - self._looked_at if container in self._left_outside else 0.0

    def count(self, key: str, seconds: float) -> None:
        """Count the CPU time that tasks had used before they were moved into a key's group."""
        if seconds:
            self.by_key[key] = self.by_key.get(key, 0.0) + seconds

    def count_thread(self, key: str, longest: float | None, tid: int, fields: list[str]) -> None:
        """Count the late CPU time of a thread with these `stat_fields` that
        was moved: none of it twice.

        `longest` is the most that counts of a thread older than the last look;
        if it is None, nothing counts.
        """
        born, used = int(fields[19]), (int(fields[11]) + int(fields[12])) / system.TICKS
        late = used - self._used.get((tid, born), 0.0)
        if len(self._used) >= _MOST_REMEMBERED:
            self._used.clear()
        self._used[tid, born] = used
        if longest is not None:
            is_new = born >= self._looked_at * system.TICKS
            self.count(key, max(0.0, late if is_new else min(late, longest)))

    def save(self, context: Context) -> None:
        """Add the late CPU times to the records of their keys, and their sum to reconcile.json.

        What cannot be written now, as while a hook holds the key's lock, waits for the next call.
        """
        run = context.run
        for key, seconds in [*self.by_key.items()]:
            with suppress(HookError, OSError), run.lock(key, system.monotonic()) as locked:
                if locked.state is not None:
                    late_cpu = (locked.state.late_cpu + seconds) % _SECONDS_FULL
                    settle(context, locked, replace(locked.state, late_cpu=late_cpu))
                self._unsummed += self.by_key.pop(key)
        if self._unsummed:
            with suppress(OSError):
                change_record(
                    run, lambda last: {"late_cpu": (last.late_cpu + self._unsummed) % _SECONDS_FULL}
                )
                self._unsummed = 0.0


def read_record(run: RunDir) -> ReconcileRecord:
    """Read reconcile.json, or return an empty record if there is none that is readable."""
    return run.glance(ReconcileRecord, "reconcile") or ReconcileRecord()


def change_record(run: RunDir, change: Callable[[ReconcileRecord], dict[str, Any]]) -> None:
    """Set the fields of reconcile.json that `change` returns, under a lock of their own.

    Raises OSError.
    """
    descriptor = system.open_lock(_LOCK, run.descriptor)
    try:
        # Without the lock, counts of another run that ends in this moment may be
        # lost, but not this one's.
        system.try_flock(descriptor) or rare.wait_for_flock(
            descriptor, system.monotonic() + _PATIENCE
        )
        last = read_record(run)
        run.write(ReconcileRecord, "reconcile", replace(last, **change(last)))
    finally:
        system.close(descriptor)
