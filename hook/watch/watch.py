# SPDX-License-Identifier: Apache-2.0
"""`watch`: listens to every exec on the machine, and moves what is in a container but not in its group.

It moves tasks without the lock of a key. Killed at any point, it leaves nothing behind but the record of what it has
done, for `metrics`; what it counted in the last minute is lost.
"""

from __future__ import annotations

import signal

# What a failure needs, too, is imported now: an upgrade replaces the file that later imports would read.
from hook.base import explain, procfs, refusals, system
from hook.base.errors import HookError
from hook.base.models import WatchRecord
from hook.base.reasons import Reason
from hook.base.resctrl import Resctrl
from hook.reconcile import namespaces
from hook.reconcile.tally import Tally
from hook.stages.context import Context, open_run_dir
from hook.state import damage
from hook.watch import connector
from hook.watch.bring_in import bring_in
from hook.watch.connector import Connector, Lost
from hook.watch.index import Index
from hook.watch.log import Log
from hook.watch.look import Looks
from hook.watch.pursuit import Pursuit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from hook.base.models import Options

__all__ = ["damage", "refusals", "run"]
_LOCK = "watch.lock"  # in the run directory
_TICK = 1.0  # seconds
_SAVE = 60.0  # seconds between two saves of its record, and of late_cpu, which take the locks of its keys


def run(options: Options) -> NoReturn:
    """Watch until SIGTERM or SIGINT, which end the process with status 0. Raises HookError if it cannot begin."""
    check_namespaces()
    context = Context(Resctrl(options.resctrl_root), open_run_dir(options), options)
    lock = take_lock(context)
    source = connector.subscribe()
    log = Log()

    def release() -> None:
        system.close(lock)
        source.close()

    watch = Watch(context, source, Looks(context, log, release), log)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: watch.stop())
    log.say(f"listening to execs; groups in {options.resctrl_root}, records in {options.run_dir}")
    watch.looks.ask()  # only now: from here on no exec is missed
    while True:
        watch.step()


def check_namespaces() -> None:
    """Raise HookError where the kernel would not answer, and where processes cannot be matched to containers."""
    if procfs.in_user_namespace():
        problem = "only inside a user namespace (rootless), where the kernel's process connector does not answer"
        raise HookError(Reason.DENIED, problem, hint="run it as root on the host")
    namespaces.check()


def take_lock(context: Context) -> int:
    """Lock the run directory against a second watch; the kernel unlocks it when the process ends. Raises HookError."""
    try:
        descriptor = system.open_lock(_LOCK, context.run.descriptor)
    except OSError as error:
        raise explain.refused("cannot open the lock file of watch", error) from error
    if not system.try_flock(descriptor):
        system.close(descriptor)
        problem = f"another watch runs on {context.run.path}"
        raise HookError(Reason.LOCK_TIMEOUT, problem, hint="one is enough: systemctl status resctrl-mon-hook-watch")
    return descriptor


class Watch:
    """What `run` works with."""

    def __init__(self, context: Context, source: Connector, looks: Looks, log: Log) -> None:
        self.looks = looks
        self._context = context
        self._source = source
        self._log = log
        self._index = Index(context.run)
        self._pursuit = Pursuit(context, self._index, log.say)
        self._ticked = -_TICK
        self._started_at = system.unix_time()
        self._saved = -_SAVE
        self._moved = self._failed = self._overflows = 0

    def step(self) -> None:
        """Wait for an exec, a second at most, and act on it. Raises OSError if the socket is broken."""
        now = system.monotonic()
        if now - self._ticked >= _TICK:
            self._ticked = now
            self.looks.tick()
            self._log.tick()
            self._save(now)
        try:
            pid = self._receive()
        except Lost:
            self._overflows += 1
            self._log.say("execs were lost, because they came faster than this reads them: looking at all containers")
            self.looks.ask()
            return
        if pid is not None:
            self._act(pid)

    def _receive(self) -> int | None:
        """The next exec; None: none for a second, or it is time to look for what has vanished."""
        patience = self._pursuit.wait()
        if patience is None:
            return self._source.receive()
        pid = self._source.receive(patience) if patience else None
        if self._pursuit.wait() == 0:
            self._pursuit.look()
        return pid

    def _save(self, now: float) -> None:
        """Save, at the start and once a minute, what was done, and what processes used before they were moved in."""
        if now - self._saved < _SAVE:
            return
        self._saved = now
        if self._context.late_cpu:
            Tally(self._context.run, self._context.late_cpu).save()
        record = WatchRecord(
            started_at=self._started_at,
            alive_at=system.unix_time(),
            moved=self._moved + self._pursuit.moved,
            failed=self._failed + self._pursuit.failed,
            overflows=self._overflows,
        )
        try:
            self._context.run.write(WatchRecord, "", record)
        except OSError as error:  # its last one gets old, which raises the alert
            self._log.say(f"cannot write watch.json in {self._context.run.path}: {error}")

    def stop(self) -> NoReturn:
        """End the process at once, with status 0, and without a record: that it ended is no failure."""
        self.looks.stop()
        try:
            self._context.run.remove(WatchRecord)
        except OSError:
            pass
        system.leave(0)

    def _act(self, pid: int) -> None:
        try:
            found = bring_in(self._context, self._index, pid)
            self._moved += found.moved
            self._pursuit.follow(found)
        except (HookError, OSError) as error:
            self._failed += 1
            self._log.say(f"cannot move process {pid} into its group: {error}")
