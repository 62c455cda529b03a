# SPDX-License-Identifier: Apache-2.0
"""`watch`: moves a process that entered a container by exec, and the children that it forked, into its group.

The rules are those of reconcile: a thread is moved if it is in the container's own cgroup, in no group of another tool,
and in the ctrl_group of the container's group. No lock is taken for that, so no hook waits for it. A container counts
while its init is in its group, which is the last step of createRuntime. So its hook handles a container that starts,
its poststop one that ends, and reconcile a group that another tool removed.

A hook after ours, as of a CDI device, can move a container's init to another ctrl_group, and so out of its group. When
that init execs, which is its first step after all hooks, it is given a group there, as by reconcile's `remake`: by the
steps of createRuntime, under the key's lock. If a hook holds that lock, or no RMID is free, reconcile does it.

A process is moved as soon as its exec is known. Its container is looked at (reconcile/move) a moment later, because a
child that the process was just forking appears only then; or at once, if the process has ended by then. On a busy CPU
a fork can take far longer, so further looks follow while one that began before a move may go on. If the process is gone
before its container is known, the cgroups of all containers are read: some 30 us for each, and 15 us for each thread
that is new since the last time. These reads take at most a twentieth of the time; a further one waits until it is due.
A program that forks faster than it can be moved gets the next look.

Killed at any point, it leaves only its record for `metrics`, and loses the counts of the last minute.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import NoReturn

# Modules that only failures need are imported at once, too: an upgrade replaces the file that later imports would read.
from hook import counters, create, ending, names, procfs, reclaim, report, retry, system
from hook.entry import Context
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason, as_hook_error
from hook.identity import Container, Key
from hook.models import Index, KeyState, Options
from hook.node import cgroups, processes, records
from hook.node.models import WatchRecord
from hook.node.processes import Groups
from hook.reconcile.move import (
    Mover,
    Place,
    Tally,
    is_inside,
    is_of_parent,
    is_shown_inside,
    move_until,
    note_last_look,
    still_forking,
)
from hook.report import explain_exception, format_count
from hook.resctrl import Resctrl
from hook.store import RunDir
from hook.validation import replace
from hook.watch import connector
from hook.watch.connector import Connector, Lost

__all__ = ["counters", "ending", "retry", "run"]
_LOCK = "watch.lock"  # in the run directory
_SAVE = 60.0  # seconds between two saves; saving late_cpu takes the locks of its keys
_SHARE = 20
_SETTLING = 0.01  # seconds
_SECONDS = 0.2  # at most for one look at the containers, and their movers; the next look goes on from there
_REMEMBERED = 60.0  # seconds to remember which threads are inside; then each is read again, since IDs are reused
_MOST_KEPT = 4096


def run(options: Options) -> NoReturn:
    """Watch until SIGTERM or SIGINT, which end the process with status 0. Raises HookError if it cannot start."""
    if procfs.in_user_namespace():
        problem = "only inside a user namespace (rootless), where the kernel's process connector does not answer"
        raise HookError(Reason.DENIED, problem, hint="run it as root on the host")
    processes.check_namespaces()
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


def take_lock(context: Context) -> None:
    """Lock the run directory against a second watch; the kernel unlocks it when the process ends. Raises HookError."""
    try:
        descriptor = system.open_lock(_LOCK, context.run.descriptor)
    except OSError as error:
        raise as_hook_error("cannot open the lock file of watch", error) from error
    if not system.try_flock(descriptor):
        system.close(descriptor)
        problem = f"another watch runs on {context.run.path}"
        raise HookError(Reason.LOCK_TIMEOUT, problem, hint="one is enough: systemctl status resctrl-mon-hook-watch")


class Watch:
    """The watch between two steps: what it has done, what it is to look at, and the socket that it reads."""

    def __init__(self, context: Context, source: Connector) -> None:
        self._context = context
        self._source = source
        self._tally = Tally(context)
        self._saved = -_SAVE
        self._started_at = system.unix_time()
        self.moved = self.followed = self.failed = self.overflows = 0  # as in WatchRecord
        self.looks_at_all = True  # whether a look at all containers is scheduled; from here on no exec is missed
        self._due = 0.0
        self._waiting: dict[str, Place] = {}
        self._forking: dict[str, dict[int, int]] = {}  # as in Mover; by container, which is waiting then
        self._inside: dict[str, set[int]] = {}
        self._unread: set[str] = set()  # the containers of which it was logged that some cgroups cannot be read
        self._forget_at = 0.0
        self._version: int | None = None  # of the records, from which `_found` comes
        self._found: dict[tuple[str, ...], Place | None] = {}
        self._recorded: set[str] | None = None  # the paths on record, as long as `_found` holds
        self._not_again: dict[tuple[str, int], float] = {}  # until when which container is not followed again

    def step(self) -> None:
        """Wait for an exec, a second at most, and act on it. Raises OSError if the socket is broken."""
        if system.monotonic() - self._saved >= _SAVE:
            self._save()
        pid = None
        try:
            pid = self._source.receive(self.wait())
        except Lost:
            self.overflows += 1
            _say("execs were lost, because they came faster than this reads them: looking at all containers")
            self.looks_at_all = True
        if pid is not None:
            self.bring_in(pid)
        if self.wait() == 0:
            self.look()

    def wait(self) -> float | None:
        """Return the seconds until a look is due, or None if no look is scheduled."""
        return max(0.0, self._due - system.monotonic()) if self.looks_at_all or self._waiting else None

    def bring_in(self, pid: int) -> None:
        """Move a process into its container's group, if it has one and is outside."""
        with self._guard(f"process {pid}"):
            places = procfs.cgroups(pid)
            if not places:
                self.looks_at_all = True
                return
            place = self.find(places)
            if place is not None and not is_inside(self._context, pid, place.member.group):
                self._bring_in(place, pid)

    def _bring_in(self, place: Place, pid: int) -> None:
        was_idle = self.wait() is None
        if pid == place.member.pid and self._follow(place):
            has_moved, place = True, self.find(procfs.cgroups(pid)) or place
        else:
            mover = self._move_threads(place, lambda: {pid} | processes.list_threads(pid))
            has_moved = mover is not None and self._end(mover, place, pid)
        # The children of a process that died have another parent, so only its container's cgroup finds them.
        is_dead, now = procfs.is_dead(pid), system.monotonic()
        if is_dead and now >= self._due:
            self._look_at([place], now)
            self._rest(now)
        elif is_dead or has_moved:
            if was_idle:
                self._due = max(self._due, now + _SETTLING)
            self._waiting[place.container] = place

    def look(self) -> None:
        """Look at the containers that are due, and move their threads that are outside."""
        began = system.monotonic()
        if began >= self._forget_at:
            self._forget_at = began + _REMEMBERED
            self._inside.clear()
            self._unread.clear()
        if self.looks_at_all:
            self.looks_at_all = False
            with self._guard("the processes of all containers"):
                self._waiting.update((place.container, place) for place in self._list_places())
        due, self._waiting = self._waiting, {}  # what is added from here on waits for the next look
        self._look_at(iter(lambda: due.popitem()[1] if due else None, None), began)
        self._waiting.update(due)
        self._rest(began)

    def _look_at(self, places: Iterable[Place], began: float) -> None:
        """Look at these containers, and move their threads that are outside, for _SECONDS at most."""
        movers: dict[Mover, Place] = {}
        for place in places:
            forking = still_forking(self._forking.pop(place.container, {}))  # before the look, which then shows all
            if forking:
                self._forking[place.container] = forking
                self._waiting[place.container] = place
            with self._guard(f"all of {place.container}"):
                if self._has_new_outside(place):
                    mover = self._move_threads(place, partial(self._read_threads, place))
                    movers.update({mover: place} if mover is not None else {})
            if system.monotonic() >= began + _SECONDS:
                break
        # All have had a look and a move. The rest of the time is for what forks faster than it can be moved, and for a
        # look after the last move. One that waits for the end of a fork is looked at again later.
        going_on = [mover for mover in movers if mover.error is None]
        quick = [mover for mover in going_on if mover.outside or (mover.has_moved and not mover.forking)]
        for _ in move_until(quick, began + _SECONDS):
            pass
        for mover, place in movers.items():
            self._end(mover, place)

    def _rest(self, began: float) -> None:
        """Schedule the next look so that this one, which ends now, takes a twentieth of the time until then.

        A look that took much longer than that was preempted; don't count the whole time as work.
        """
        now = system.monotonic()
        self._due = now + max(_SHARE * min(now - began, 2 * _SECONDS), _SETTLING if self._forking else 0.0)

    # --- Which container a process is in

    def find(self, places: list[str]) -> Place | None:
        """Find the container whose own cgroup holds a process, the innermost one, by procfs.cgroups of the process.

        Nothing here grows with the node: a lookup reads the index entry and the record of one key. Its result is kept
        until the record of any key changes, which one stat(2) shows.
        """
        version = records.version(self._context.run)
        if version is None or version != self._version or len(self._found) >= _MOST_KEPT:
            self._found.clear()
            self._recorded = None
            self._version = version
        name = tuple(places)
        if name not in self._found:
            self._found[name] = next(chain.from_iterable(map(self._look_up, places)), None)
        return self._found[name]

    def _look_up(self, cgroup: str) -> Iterator[Place]:
        run = self._context.run
        for name in filter(names.is_container_id, reversed(cgroups.possible_ids(cgroup))):
            index = records.peek(run, Index, name)
            state = records.peek(run, KeyState, index.key) if index is not None else None
            # By the ID itself: a former process of this ID (names.displaced_member) is in the same cgroup.
            member = state.members.get(name) if state is not None else None
            own = member.cgroup if member is not None else None
            if state and member and own and cgroups.is_own(own, name) and cgroups.is_within(cgroup, own):
                yield Place(state.key, name, member)

    def _list_places(self) -> Iterator[Place]:
        """List all members of all keys that have their own cgroup."""
        for state in self._context.run.list_states():
            for container, member in state.members.items():
                if cgroups.is_own(member.cgroup, container):
                    yield Place(state.key, container, member)

    # --- What is outside

    def _has_new_outside(self, place: Place) -> bool:
        """Whether a container's cgroup has a thread that is not known to be in its group."""
        tids, group = self._read_threads(place), place.member.group
        new = tids - self._inside.get(place.container, set())
        outside = {tid for tid in new if not is_shown_inside(self._context, tid, group)}
        self._inside[place.container] = tids - outside
        return bool(outside)

    def _read_threads(self, place: Place) -> set[int]:
        """Read the threads in a container's own cgroup."""
        found = processes.read_threads(place.member.cgroup or "", lambda below: self.find([below]) != place)
        if found is not None and found.unread and place.container not in self._unread:
            self._unread.add(place.container)
            self.failed += 1
            _say(f"cannot read {format_count(found.unread, 'cgroup')} of {place.container}: reconcile looks in /proc")
        return found.tids if found is not None else set()

    def _move_threads(self, place: Place, read: Callable[[], set[int]]) -> Mover | None:
        """Move the threads that are read, in one step; return None if the init is not alive in the group."""
        member = place.member
        if procfs.is_dead(member.pid, member.starttime) or not is_inside(self._context, member.pid, member.group):
            return None
        mover = Mover(self._context, place, read, self._read_groups())
        mover.step()
        return mover

    def _end(self, mover: Mover, place: Place, pid: int | None = None) -> bool:
        """Note the result of a mover, of one process or of all threads; return whether any thread was moved."""
        with self._guard(f"process {pid}" if pid is not None else f"all of {place.container}"):
            if mover.error is not None:
                raise mover.error
            if mover.outside and pid is None:
                self._waiting[place.container] = place
                raise mover.explain()
        # Its last look moved a thread, or one may still be in a fork: a child may appear outside, which no event names.
        if mover.has_moved or mover.forking:
            self._forking.setdefault(place.container, {}).update(mover.forking)
            self._waiting[place.container] = place
        self.moved += mover.moved
        return mover.moved > 0

    # --- Where it is

    def _read_groups(self) -> Groups:
        """Read the groups of the node as they are now."""
        return Groups(self._context.resctrl, self._context.options.group_prefix, self._list_recorded)

    def _list_recorded(self) -> set[str]:
        run = self._context.run
        if self._recorded is None or self._version is None or self._version != records.version(run):
            self._recorded = records.list_recorded(run.list_states())
        return self._recorded

    def _follow(self, place: Place) -> bool:
        """Give a container a group in the ctrl_group to which its init has gone; return whether that was done.

        An init that another tool has in its own group stays there. Nothing is waited for. A search for an RMID has the
        limits of a hook's, and each container is tried once a minute, however often its init execs.
        """
        member, now = place.member, system.monotonic()
        if self._not_again.get((place.container, member.starttime), 0.0) > now:
            return False
        if len(self._not_again) >= _MOST_KEPT:
            self._not_again.clear()
        self._not_again[place.container, member.starttime] = now + _REMEMBERED
        self._context.run.complaints = problems = list[HookError]()
        has_moved, path = False, None
        try:
            groups = self._read_groups()
            path = groups.find(member.pid)
            if path is None or groups.is_others(path) or is_of_parent(member.group, path):
                return False
            self._join_group(place, groups.name_ctrl_group(path))
            has_moved = True
        except (HookError, OSError) as error:
            problems.append(as_hook_error("cannot read or write a file", error))
        self.followed += has_moved
        self.failed += not has_moved
        for problem in problems:
            why = f"{report.explain(problem)}; the next reconcile does what is left"
            _say(f"following {place.container} to {path}: {why}")
        return has_moved

    def _join_group(self, place: Place, ctrl_group: str) -> None:
        """Make the container's group in this ctrl_group, move its init in, and remove its former group if it is empty.

        As `remake` of reconcile does; killed in between, that does the rest.
        """
        options = replace(self._context.options, lock_timeout=0.0, rmid_wait=0.0)
        context = Context(self._context.resctrl, self._context.run, options)
        context.names_history = False
        container = Container(place.container, place.member.pid, "", {}, [])
        state = context.run.glance(KeyState, place.key)
        if state is None or container.starttime != place.member.starttime:
            raise HookError(Reason.TASK_GONE, "it has ended")
        try:
            create.create_runtime(context, container, Key(state.key, state.kind), ctrl_group)
        finally:  # also without a new RMID: the former group may hold the last one
            # If a hook has the lock now, that group stays on record and goes with its key.
            with suppress(HookError), context.run.lock(state.key, system.monotonic()) as locked:
                reclaim.retire(context, locked, left=place.member.group)

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Log and count what cannot be moved, or looked at. reconcile repairs it, and reports it until then."""
        try:
            yield
        except (HookError, OSError) as error:
            if isinstance(error, HookError) and error.kind in (*GONE, WRONG_CTRL_GROUP):
                return  # removed, or its ctrl_group has changed
            self.failed += 1
            _say(f"cannot move {what} into its group: {report.explain(error)}")

    # --- Its record

    def _save(self) -> None:
        """Write watch.json, and late CPU times to their keys, at the start and once a minute."""
        self._saved = system.monotonic()
        note_last_look(self._context)
        if self._context.late_cpu:
            self._tally.save()
        counts = {"moved": self.moved, "followed": self.followed, "failed": self.failed, "overflows": self.overflows}
        written = WatchRecord(started_at=self._started_at, alive_at=system.unix_time(), **counts)
        try:
            self._context.run.write(WatchRecord, "watch", written)
        except OSError as error:  # then `alive_at` gets old, which raises the alert
            _say(f"cannot write watch.json in {self._context.run.path}: {explain_exception(error)}")

    def stop(self) -> NoReturn:
        """Remove watch.json, so that no alert is raised, and end the process at once, with status 0."""
        with suppress(OSError):
            self._context.run.remove(WatchRecord, "watch")
        system.leave(0)
