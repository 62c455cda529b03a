# SPDX-License-Identifier: Apache-2.0
"""`watch`: listens to every exec on the machine, and moves processes outside their container's group into it.

It moves tasks without the lock of a key. Killed at any point, it leaves only its record for `metrics`, and loses the
counts of the last minute.
"""

from __future__ import annotations

import signal
from typing import NoReturn

# Modules that only failures need are imported at once, too: an upgrade replaces the file that later imports would read.
from hook.base import explain, procfs, system
from hook.base.container_tasks import check_namespaces
from hook.base.errors import HookError, Reason
from hook.base.models import Options
from hook.base.node_models import WatchRecord
from hook.base.resctrl import Resctrl
from hook.reconcile.tally import Tally
from hook.stages import report
from hook.stages.entry import Context
from hook.state import damage
from hook.state.store import RunDir
from hook.watch import connector
from hook.watch.connector import Connector, Lost
from hook.watch.pursuit import Pursuit

__all__ = ["damage", "run"]
_LOCK = "watch.lock"  # in the run directory
_SAVE = 60.0  # seconds between two saves; saving late_cpu takes the locks of its keys


def run(options: Options) -> NoReturn:
    """Watch until SIGTERM or SIGINT, which end the process with status 0. HookError: it cannot subscribe or lock."""
    if procfs.in_user_namespace():
        problem = "only inside a user namespace (rootless), where the kernel's process connector does not answer"
        raise HookError(Reason.DENIED, problem, hint="run it as root on the host")
    check_namespaces()
    context = Context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
    take_lock(context)
    watch = Watch(context, connector.subscribe())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: watch.stop())
    _say(f"listening to execs; groups in {options.resctrl_root}, records in {options.run_dir}")
    while True:
        watch.step()


def _say(text: str) -> None:
    """Write a line to stderr; systemd writes it to the journal, and limits the rate."""
    report.say(f"watch: {text}", to_syslog=False)


def take_lock(context: Context) -> int:
    """Lock the run directory against a second watch; the kernel unlocks it when the process ends. Raises HookError."""
    try:
        descriptor = system.open_lock(_LOCK, context.run.descriptor)
    except OSError as error:
        raise explain.system_error("cannot open the lock file of watch", error) from error
    if not system.try_flock(descriptor):
        system.close(descriptor)
        problem = f"another watch runs on {context.run.path}"
        raise HookError(Reason.LOCK_TIMEOUT, problem, hint="one is enough: systemctl status resctrl-mon-hook-watch")
    return descriptor


class Watch:
    """The watch between `step`s: its pursuit, its record, and the socket that it reads."""

    def __init__(self, context: Context, source: Connector) -> None:
        self._context = context
        self._source = source
        self._pursuit = Pursuit(context, _say)
        self._pursuit.look_at_all()  # from here on no exec is missed
        self._started_at = system.unix_time()
        self._saved = -_SAVE
        self._failed = self._overflows = 0

    def step(self) -> None:
        """Wait for an exec, a second at most, and act on it. Raises OSError if the socket is broken."""
        if system.monotonic() - self._saved >= _SAVE:
            self._save()
        pid = None
        try:
            pid = self._receive()
        except Lost:
            self._overflows += 1
            _say("execs were lost, because they came faster than this reads them: looking at all containers")
            self._pursuit.look_at_all()
        if pid is not None:
            self._act(pid)

    def _receive(self) -> int | None:
        """The next exec; None: none for a second, or a look at containers is due."""
        patience = self._pursuit.wait()
        if patience is None:
            return self._source.receive()
        pid = self._source.receive(patience) if patience else None
        if self._pursuit.wait() == 0:
            self._pursuit.look()
        return pid

    def _act(self, pid: int) -> None:
        try:
            self._pursuit.bring_in(pid)
        except (HookError, OSError) as error:
            self._failed += 1
            _say(f"cannot move process {pid} into its group: {error}")

    def _save(self) -> None:
        """Write watch.json, and late CPU times to their keys, at the start and once a minute."""
        self._saved = system.monotonic()
        if self._context.late_cpu:
            Tally(self._context).save()
        record = WatchRecord(
            started_at=self._started_at,
            alive_at=system.unix_time(),
            moved=self._pursuit.moved,
            failed=self._failed + self._pursuit.failed,
            overflows=self._overflows,
        )
        try:
            self._context.run.write(WatchRecord, "watch", record)
        except OSError as error:  # then `alive_at` gets old, which raises the alert
            _say(f"cannot write watch.json in {self._context.run.path}: {error}")

    def stop(self) -> NoReturn:
        """Remove watch.json, so that no alert is raised, and end the process at once, with status 0."""
        try:
            self._context.run.remove(WatchRecord, "watch")
        except OSError:
            pass
        system.leave(0)
