# SPDX-License-Identifier: Apache-2.0
"""Counts the work of reconcile and watch since boot in reconcile.json, for `metrics` and `doctor`.

A run writes it when it starts, every few seconds while it counts, and when it ends. A run that was killed, or raised an
error, has a start without an end. Counts are added to those on record, under a lock of their own.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from hook.base import system
from hook.base.errors import HookError
from hook.base.node_models import ReconcileRecord
from hook.base.validation import MOST_NATURAL
from hook.stages.entry import Context
from hook.state.store import RunDir, replace

_LOCK = "reconcile.lock"
_PATIENCE = 1.0  # seconds, for a lock that is held while one file is written
_SECONDS_FULL = 1e12  # the most of models.Seconds: what a damaged record has beyond it starts from 0 again
_MOST_NAMED = 100  # containers, so that the record stays small
_INTERVAL = 5.0  # seconds, so that a run that is killed has lost few counts


class Tally:
    """The counts of one run of reconcile, from `with` to its `end`; watch, which has no end, only calls `save`.

    A run that stops early saves its counts on the way out of `with`, if that takes no wait. A record that cannot be
    written stops no run: its `ended_at` gets old, which raises the alert.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._started = self._saved = system.monotonic()
        self._actions: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    def __enter__(self) -> Tally:
        self.save(started_at=system.unix_time())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None:
            self.save(patience=0.0)

    def count(self, verb: str, *, failed: bool) -> None:
        """Count an action; saves every _INTERVAL."""
        (self._failures if failed else self._actions)[verb] += 1
        if system.monotonic() - self._saved >= _INTERVAL:
            self.save()

    def end(self, left: int, failed: int, outside: dict[str, int]) -> None:
        """Record the end of a complete run; arguments as in ReconcileRecord, `outside` with all containers."""
        self.save(
            ended_at=system.unix_time(),
            seconds=system.monotonic() - self._started,
            left=left,
            failed=failed,
            outside=dict(sorted(outside.items(), key=lambda it: -it[1])[:_MOST_NAMED]),
            outside_total=sum(outside.values()),
        )

    def save(self, *, patience: float = _PATIENCE, **fields: Any) -> None:  # noqa: ANN401  those of ReconcileRecord
        """Add the counts since the last save to the record, and set these fields of it.

        Moves late_cpu from the context into the records of its keys.
        """
        late = sum(_save_late(self._context, key) for key in list(self._context.late_cpu))
        with suppress(OSError):
            self._update(late, fields, patience)
        self._actions.clear()
        self._failures.clear()
        self._saved = system.monotonic()

    def _update(self, late: float, fields: dict[str, Any], patience: float) -> None:
        run = self._context.run
        descriptor = _open_lock(run)
        try:
            # Without the lock, counts of another run that ends in this moment may be lost, but not this one's.
            system.try_flock(descriptor) or system.wait_for_flock(descriptor, system.monotonic() + patience)
            former = run.glance(ReconcileRecord, "reconcile") or ReconcileRecord()
            sums = {"actions": _add(former.actions, self._actions), "failures": _add(former.failures, self._failures)}
            late_cpu = (former.late_cpu + late) % _SECONDS_FULL
            run.write(ReconcileRecord, "reconcile", replace(former, **sums, late_cpu=late_cpu, **fields))
        finally:
            system.close(descriptor)


def _open_lock(run: RunDir) -> int:
    try:
        return system.open_lock(_LOCK, run.descriptor)
    except OSError:  # a directory or a link is in its place
        system.remove_tree(_LOCK, run.descriptor)
        return system.open_lock(_LOCK, run.descriptor)


def _save_late(context: Context, key: str) -> float:
    """Add the CPU time that its tasks had used before they were moved in to a key's record; returns the seconds.

    0 while a hook holds the key's lock: the next save adds them.
    """
    try:
        with context.run.lock(key, system.monotonic()) as locked:
            seconds = context.late_cpu.pop(key)
            if locked.state is not None:
                total = (locked.state.late_cpu + seconds) % _SECONDS_FULL
                locked.commit(replace(locked.state, late_cpu=total))
    except (HookError, OSError):
        return 0.0
    return seconds


def _add(former: dict[str, int], more: Counter[str]) -> dict[str, int]:
    return {verb: number % (MOST_NATURAL + 1) for verb, number in (Counter(former) + more).items()}
