# SPDX-License-Identifier: Apache-2.0
"""`watch`: moves a process that entered a container by exec,
and the children that it forked, into its group.

The rules are those of reconcile: a thread is moved if it is in the container's own cgroup, in no
group of another tool, and in the ctrl_group of the container's group. No lock is taken for that, so
no hook waits for it. A container counts while its init is in its group, which is the last step of
createRuntime. So its hook handles a container that starts, its poststop one that ends, and
reconcile a group that another tool removed.

A hook after ours, as of a CDI device, can move a container's init to another ctrl_group, and so out
of its group. When that init execs, which is its first step after all hooks, it is given a group
there, as by reconcile's `remake`: by the steps of createRuntime, under the key's lock. If a hook
holds that lock, or no RMID is free, reconcile does it.

A process is moved as soon as its exec is known. Its container is looked at (reconcile/move) a
moment later, because a child that the process was just forking appears only then; or at once, if
the process has ended by then. On a busy CPU a fork can take far longer: its child is left to the
next look, or to reconcile. If the process is gone before its container is known, the cgroups of all
containers are read: some 30 us for each, and once a minute the tasks of its group. These reads take
at most a twentieth of the time; a further one waits until it is due. A program that forks faster
than it can be moved gets the next look.

Killed at any point, it leaves only its record for `metrics`,
and loses the counts of the last minute.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

# Modules that only failures need are imported at once, too:
# an upgrade replaces the file that later imports would read.
from hook import counters, create, ending, line, names, reclaim, refusals, report, store, system
from hook.context import new_context, read_container
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.models import Index, KeyState, Options
from hook.node import processes, records
from hook.node.models import WatchRecord
from hook.reconcile import move
from hook.reconcile.move import LateCpu, Mover, Place
from hook.resctrl import Resctrl
from hook.store import RunDir
from hook.validation import replace
from hook.watch import connector
from hook.words import explain, explain_exception, format_count

if TYPE_CHECKING:
    from hook.context import Context

__all__ = ["counters", "ending", "line", "refusals", "run"]
# Seconds between two saves, and to remember which threads are inside: their IDs are reused.
_MINUTE = 60.0
_SHARE = 20
_SETTLING = 0.01  # seconds
# At most for one look at the containers, and their movers; the next look goes on from there.
_SECONDS = 0.2
_MOST_KEPT = 4096


def run(options: Options) -> NoReturn:
    """Watch until SIGTERM or SIGINT, which end the process with status 0.

    Raises HookError if it cannot start.
    """
    if system.in_user_namespace():
        problem = (
            "only inside a user namespace (rootless), where the kernel's process connector does "
            "not answer"
        )
        raise HookError(Reason.DENIED, problem, hint="run it as root on the host")
    processes.check_namespaces()
    context = new_context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
    watch = Watch(context, connector.subscribe())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: watch.stop())
    _say(f"listening to execs; groups in {options.resctrl_root}, records in {options.run_dir}")
    while True:
        watch.step()


def _say(text: str) -> None:
    """Write a line to stderr; systemd writes it to the journal, and limits the rate."""
    report.write_line(f"watch: {text}", to_syslog=False)


class Watch:
    """The watch between two steps: what it has done, what it is to look at,
    and the socket that it reads.
    """

    def __init__(self, context: Context, source: connector.Connector) -> None:
        self._context = context
        self._source = source
        self._late = LateCpu()
        self._saved = -_MINUTE
        self._started_at = system.unix_time()
        self.moved = self.followed = self.failed = self.overflows = 0  # as in WatchRecord
        # Whether a look at all containers is scheduled; from here on no exec is missed.
        self.looks_at_all = True
        self._due = 0.0
        self._waiting: dict[str, Place] = {}  # the containers that the next look is at
        self._movers: dict[str, Mover] = {}  # of the containers that were looked at in this minute
        # Those of which it was logged that some cgroups cannot be read.
        self._unread: set[str] = set()
        # Those whose init, of this start time, was followed or tried.
        self._followed: set[tuple[str, int]] = set()
        self._version: int | None = None  # of the records, from which `_found` comes
        self._found: dict[tuple[str, ...], Place | None] = {}

    def step(self) -> None:
        """Wait for an exec, a second at most, and act on it.

        Raises OSError if the socket is broken.
        """
        if system.monotonic() - self._saved >= _MINUTE:
            self._save()
            self._forget()
        pid = None
        try:
            pid = self._source.receive(self.wait())
        except connector.Lost:
            self.overflows += 1
            _say(
                "execs were lost, because they came faster than this reads them: looking at all "
                "containers"
            )
            self.looks_at_all = True
        if pid is not None:
            self.bring_in(pid)
        if self.wait() == 0:
            self.look()

    def wait(self) -> float | None:
        """Return the seconds until a look is due, or None if no look is scheduled."""
        return (
            max(0.0, self._due - system.monotonic()) if self.looks_at_all or self._waiting else None
        )

    def bring_in(self, pid: int) -> None:
        """Move a process into its container's group, if it has one and is outside."""
        with self._guard(f"process {pid}"):
            places = system.cgroups(pid)
            if not places:
                self.looks_at_all = True
                return
            place = self.find(places)
            if place is not None and not move.is_inside(self._context, pid, place.member.group):
                self._bring_in(place, pid)

    def _bring_in(self, place: Place, pid: int) -> None:
        was_idle = self.wait() is None
        if pid == place.member.pid and self._follow(place):
            place = self.find(system.cgroups(pid)) or place
            self._waiting[place.container] = place
        else:
            mover = self._find_mover(place)
            mover.step({pid} | processes.list_threads(pid))
            self._end(place, mover, f"process {pid}")
        # The children of a process that died have another parent,
        # so only its container's cgroup finds them.
        now = system.monotonic()
        if now >= self._due and system.is_dead(pid):
            self._waiting.pop(place.container, None)
            self._look_at({place.container: place}, now)
        elif was_idle:
            self._due = max(self._due, now + _SETTLING)

    def look(self) -> None:
        """Look at the containers that are due, and move their threads that are outside."""
        if self.looks_at_all:
            self.looks_at_all = False
            with self._guard("the processes of all containers"):
                for state in store.list_states(self._context.run):
                    for container, member in state.members.items():
                        if processes.find_own_cgroup(container, member):
                            self._waiting[container] = Place(state.key, container, member)
        due, self._waiting = self._waiting, {}  # what is added from here on waits for the next look
        self._look_at(due, system.monotonic())
        self._waiting.update(due)

    def _look_at(self, due: dict[str, Place], began: float) -> None:
        """Look at these containers, and move their threads that are outside, for _SECONDS at most.

        Takes those that it has looked at out of `due`. Schedules the next look so that this one
        takes a twentieth of the time until then. A look that took much longer than that was
        preempted: the whole time does not count.
        """
        stepped: list[tuple[Place, Mover]] = []
        while due:
            _, place = due.popitem()
            with self._guard(f"all of {place.container}"):
                mover = self._find_mover(place)
                mover.step()
                stepped.append((place, mover))
            if system.monotonic() >= began + _SECONDS:
                break
        # All have had a look and a move. The rest of the time is for what forks faster than it can
        # be moved, and for a look after the last move.
        move.finish([mover for _, mover in stepped], began + _SECONDS - system.monotonic())
        for place, mover in stepped:
            self._end(place, mover)
        now = system.monotonic()
        self._due = now + max(
            _SHARE * min(now - began, 2 * _SECONDS), _SETTLING if self._waiting else 0.0
        )

    def _end(self, place: Place, mover: Mover, process: str = "") -> None:
        """Note what a mover has done, for one process or for all;
        its container waits if more threads may appear.
        """
        moved = mover.take_count()
        self.moved += moved
        if not mover.has_ended:
            self._waiting[place.container] = place
        with self._guard(process or f"all of {place.container}"):
            if mover.error is not None:
                del self._movers[place.container]
                raise mover.error
            if mover.outside and not process:
                raise move.explain_outside(mover.outside, moved, mover.member.pid)

    # --- Which container a process is in

    def find(self, places: list[str]) -> Place | None:
        """Find the container whose own cgroup holds a process, the innermost one,
        by system.cgroups of the process.

        Nothing here grows with the node: a lookup reads the index entry and the record of one key.
        Its result is kept until the record of any key changes, which one stat(2) shows.
        """
        version = records.read_version(self._context.run)
        if version is None or version != self._version or len(self._found) >= _MOST_KEPT:
            self._found.clear()
            self._version = version
        name = tuple(places)
        if name not in self._found:
            self._found[name] = next(chain.from_iterable(map(self._look_up, places)), None)
        return self._found[name]

    def _look_up(self, cgroup: str) -> Iterator[Place]:
        run = self._context.run
        for name in filter(names.is_container_id, reversed(processes.possible_ids(cgroup))):
            state = None
            # A damaged record counts as missing, one that cannot be read does not.
            with suppress(ValueError):
                index = run.read(Index, name)
                state = run.read(KeyState, index.key) if index is not None else None
            # By the ID itself: a former process of this ID
            # (life_turns.name_displaced) is in the same cgroup.
            member = state.members.get(name) if state is not None else None
            own_cgroup = processes.find_own_cgroup(name, member) if member is not None else None
            if state and member and own_cgroup and processes.is_in_container(cgroup, own_cgroup):
                yield Place(state.key, name, member)

    # --- What is outside

    def _find_mover(self, place: Place) -> Mover:
        """Find the mover of a container, which remembers for a minute which
        threads are in its group.
        """
        mover = self._movers.get(place.container)
        if mover is None or mover.member != place.member:
            read = partial(self._read_threads, place)
            count_late = partial(
                self._late.count_thread, place.key, self._late.limit(place.container)
            )
            source, groups = move.Source(read, needs_init=True), move.read_groups(self._context)
            mover = self._movers[place.container] = Mover(
                self._context, place, source, count_late, groups
            )
        return mover

    def _read_threads(self, place: Place) -> set[int]:
        """Read the threads in a container's own cgroup."""
        reading = processes.read_threads(
            place.member.cgroup or "", lambda below: self.find([below]) != place
        )
        if reading is not None and reading.unread and place.container not in self._unread:
            self._unread.add(place.container)
            self.failed += 1
            _say(
                f"cannot read {format_count(reading.unread, 'cgroup')} of {place.container}: "
                "reconcile looks in /proc"
            )
        return reading.tids if reading is not None else set()

    # --- An init that is in another ctrl_group

    def _follow(self, place: Place) -> bool:
        """Give a container a group in the ctrl_group to which its init has gone;
        return whether that was done.

        An init that another tool has in its own group stays there. Nothing is waited for. A
        search for an RMID has the limits of a hook's, and each container is tried once a minute,
        however often its init execs.
        """
        member = place.member
        if (place.container, member.starttime) in self._followed:
            return False
        self._followed.add((place.container, member.starttime))
        groups = move.read_groups(self._context)
        path = groups.find(member.pid)
        if path is None or groups.is_others(path) or move.is_of_parent(member.group, path):
            return False
        self._context.run.complaints = problems = list[HookError]()
        before = self.followed
        with self._guard(f"{place.container}, which is in {path} now,"):
            self._join_group(place, groups.name_ctrl_group(path))
            self.followed += 1
        for problem in problems:
            _say(f"{place.container}: {explain(problem)}")
        return self.followed > before

    def _join_group(self, place: Place, ctrl_group: str) -> None:
        """Make the container's group in this ctrl_group, move its init in,
        and remove its former group if it is empty.

        As `remake` of reconcile does; killed in between, that does the rest.
        """
        options = replace(self._context.options, lock_timeout=0.0, rmid_wait=0.0)
        context = new_context(self._context.resctrl, self._context.run, options)
        container = read_container(place.container, place.member.pid, "", {}, [])
        state = context.run.glance(KeyState, place.key)
        if state is None or container.starttime != place.member.starttime:
            raise HookError(Reason.TASK_GONE, "it has ended")
        try:
            create.create_runtime(context, container, (state.key, state.kind), ctrl_group)
        finally:  # also without a new RMID: the former group may hold the last one
            # If a hook has the lock now, that group stays on record and goes with its key.
            with suppress(HookError), context.run.lock(state.key, system.monotonic()) as locked:
                reclaim.remove_retired(context, locked, left=place.member.group)

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Log and count what cannot be moved, or looked at. reconcile repairs it,
        and reports it until then.
        """
        try:
            yield
        except (HookError, OSError) as error:
            if isinstance(error, HookError) and error.kind in (*GONE, WRONG_CTRL_GROUP):
                return  # removed, or its ctrl_group has changed
            self.failed += 1
            _say(f"cannot move {what} into its group: {explain(error)}")

    # --- Once a minute

    def _forget(self) -> None:
        """Forget what is read again each minute, since IDs are reused."""
        for known in (self._movers, self._unread, self._followed):
            known.clear()

    def _save(self) -> None:
        """Write watch.json, and late CPU times to their keys, at the start and once a minute."""
        self._saved = system.monotonic()
        self._late.note_last_look(self._context.run)
        self._late.save(self._context)
        counts = {
            "moved": self.moved,
            "followed": self.followed,
            "failed": self.failed,
            "overflows": self.overflows,
        }
        written = WatchRecord(started_at=self._started_at, alive_at=system.unix_time(), **counts)
        try:
            self._context.run.write(WatchRecord, "watch", written)
        except OSError as error:  # then `alive_at` gets old, which raises the alert
            _say(f"cannot write watch.json in {self._context.run.path}: {explain_exception(error)}")

    def stop(self) -> NoReturn:
        """Remove watch.json, so that no alert is raised,
        and end the process at once, with status 0.
        """
        with suppress(OSError):
            self._context.run.remove(WatchRecord, "watch")
        system.leave(0)
