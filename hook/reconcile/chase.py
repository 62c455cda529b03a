# SPDX-License-Identifier: Apache-2.0
"""What reconcile and watch share: a chase moves a container's threads into its group, and a tally counts such work.

A chase also gets the threads of a program that forks and exits faster than one look.
Each look reads all threads of the cgroup at once, and each thread outside is moved at once. A look and a move take some
0.1 ms. Children that a thread forks after its move are in the group. A child of a fork that began before the move is
outside, and appears only when the fork ends; until then the parent runs in the kernel. So the chase ends with a look
that begins after each moved thread has slept, ended, or run in user mode. That can take any time (a parent of vfork
waits for its child), so each chase is one step at first, and `pursue` then waits for all of them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from hook.base import procfs, system
from hook.base.container_tasks import cpu_seconds
from hook.base.errors import HookError, Reason
from hook.base.explain import WrongCtrlGroup
from hook.base.models import Member
from hook.base.node_models import ReconcileRecord
from hook.base.validation import MOST_NATURAL
from hook.stages.entry import Context
from hook.state.store import RunDir, replace

_STEP = 0.2  # seconds for the moves of one step: a program can have any number of threads
_PAUSE, _LONGEST_PAUSE = 0.001, 0.05  # seconds between two looks while none is known to be outside
_USER_TIME = 5  # ticks: the kernel counts time in itself as user time until a tick has met the thread there
_LOCK = "reconcile.lock"
_PATIENCE = 1.0  # seconds, for a lock that is held while one file is written
_SECONDS_FULL = 1e12  # the most of models.Seconds: what a damaged record has beyond it starts from 0 again
_MOST_NAMED = 100  # containers, so that the record stays small
_INTERVAL = 5.0  # seconds between two saves, so that a run that is killed has lost few counts


class StillOutside(HookError):
    """Threads of a container are outside its group, or may be.

    `number`: those that are, by the last look; `chase`: the one that can go on.
    """

    def __init__(self, number: int, moved: int, chase: Chase | None = None) -> None:
        problem = f"{number} of its threads are still outside its group, after {moved} were moved in"
        hint = "it forks faster than its threads can be moved; the next run tries again"
        if not number:
            problem = f"others of its threads may still be outside its group, after {moved} were moved in"
            hint = "one that was moved may be in a fork, which shows its child when it ends; the next run looks again"
        super().__init__(Reason.IO, problem, hint=hint)
        self.number = number
        self.chase = chase


class Chase:
    """A chase of one container's threads. `moved`: their number; `outside`: how many were outside at the last look.

    `has_moved`: whether that moved any. `forking`: as in still_forking. `late_cpu`: CPU seconds that threads had used
    before they were moved. `error`: what ended it. `read` returns the container's present threads.
    """

    def __init__(self, context: Context, member: Member, read: Callable[[], Collection[int]]) -> None:
        self.moved = self.outside = 0
        self.has_moved = False
        self.late_cpu = 0.0
        self.forking: dict[int, int] = {}
        self.error: HookError | OSError | None = None
        self.member = member
        self._context = context
        self._read = read
        self._shows_groups = procfs.resctrl_groups(member.pid) is not None
        self._settled: set[int] = set()  # the threads that are in the group, or stay where they are

    def step(self) -> bool:
        """Look once, and move the threads outside; returns whether the chase has ended.

        It ends when no thread is outside and none can appear there, or with an `error`: the kernel refuses, or, as
        WrongCtrlGroup, the container's init is in another ctrl_group. Threads in another ctrl_group, and those in
        another tool's group, stay there.
        """
        try:
            self.forking = still_forking(self.forking)  # before the look, which then shows all their children
            self.move(self._read())
        except (HookError, OSError) as error:
            self.error = error
            return True
        return not (self.outside or self.has_moved or self.forking)

    def explain(self) -> StillOutside:
        """The error that says how far the chase has come."""
        return StillOutside(self.outside, self.moved, self)

    def move(self, tids: Collection[int]) -> None:
        """Move those of these threads that are outside. One that has ended by now counts as outside."""
        deadline = system.monotonic() + _STEP
        before = self.moved
        new = {*tids} - self._settled
        if len(new) > 1 or not self._shows_groups:
            # One read of the group shows which are inside. Read one by one, the last of many might end before its turn.
            self._settled |= self._context.resctrl.tasks(self.member.group) or set()
            new -= self._settled
        for tid in new:
            if self._move(tid):
                self._settled.add(tid)
            if system.monotonic() >= deadline:
                break
        self.has_moved = self.moved > before
        self.outside = len(new - self._settled)

    def _move(self, tid: int) -> bool:
        """Move a thread unless it is in the group, or must stay. False: it has ended."""
        group = self.member.group
        if locate(self._context, tid, group) in ("inside", "elsewhere"):
            return True
        try:
            self._context.resctrl.put(group, tid)
        except WrongCtrlGroup:
            if tid == self.member.pid:
                raise
            return True
        except HookError as error:
            if error.reason != Reason.TASK_GONE:
                raise
            return False
        self.moved += 1
        self.late_cpu += cpu_seconds(tid)
        if (user_time := _read_user_time(tid)) is not None:
            self.forking[tid] = user_time
        return True


def pursue(chases: Iterable[Chase], until: float) -> Iterator[Chase]:
    """Step these chases in turn until then, and yield each one that ends."""
    waiting = [*chases]
    pause = _PAUSE
    while waiting and system.monotonic() < until:
        if any(it.outside for it in waiting):
            pause = _PAUSE
        else:
            system.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        for chase in [*waiting]:
            if chase.step():
                waiting.remove(chase)
                yield chase
            if system.monotonic() >= until:
                break


def still_forking(moved: dict[int, int]) -> dict[int, int]:
    """Those of the moved threads that may still be busy with a fork that they began before.

    Each with its user time when it was moved, in ticks.
    """
    times = ((tid, since, _read_user_time(tid)) for tid, since in moved.items())
    return {tid: since for tid, since, now in times if now is not None and now < since + _USER_TIME}


def _read_user_time(tid: int) -> int | None:
    """The user time of a thread that runs, in ticks; None: it sleeps or has ended, so that it is not in a fork.

    Source: proc_pid_stat(5), fields 3 and 14; R: runs, D: waits in the kernel, for memory for example.
    """
    fields = procfs.stat_fields(f"{tid}/task/{tid}")
    return int(fields[11]) if fields is not None and fields[0] in "RD" else None


def count_late_cpu(context: Context, key: str, seconds: float) -> None:
    """Count the CPU time that tasks had used before they were moved into a key's group."""
    if seconds:
        context.late_cpu[key] = context.late_cpu.get(key, 0.0) + seconds


# --- The group of a thread, by its /proc/PID/cpu_resctrl_groups


def locate(context: Context, tid: int, path: str) -> str | None:
    """Where a thread is, seen from a mon_group: `inside`, `outside`, or `elsewhere`, from where it is not moved in.

    That is in another ctrl_group, or in a group of another tool. None: it has ended, or the kernel does not show it.
    """
    groups = procfs.resctrl_groups(tid)
    if groups is None:
        return None
    ctrl_group, mon_group = groups
    if mon_group and context.resctrl.path(ctrl_group, mon_group) == path:
        return "inside"
    is_free = not mon_group or mon_group.startswith(context.options.group_prefix)
    return "outside" if is_free and is_of_parent(context, path, ctrl_group) else "elsewhere"


def is_inside(context: Context, tid: int, path: str) -> bool:
    """Whether a thread is in a mon_group, also on kernels without /proc/PID/cpu_resctrl_groups."""
    place = locate(context, tid, path)
    return place == "inside" if place is not None else tid in (context.resctrl.tasks(path) or ())


def is_of_parent(context: Context, path: str, ctrl_group: str) -> bool:
    """Whether a mon_group is in this ctrl_group."""
    return context.resctrl.path(ctrl_group, "").rstrip("/") == path.rpartition("/")[0]


# --- The counts since boot


class Tally:
    """The counts of one run of reconcile, from `with` to its `end`; watch, which has no end, only calls `save`.

    They are added to those in reconcile.json, for `metrics` and `doctor`, under a lock of their own: when a run starts,
    every few seconds while it counts, and when it ends. A run that stops early saves them on the way out of `with`, if
    that takes no wait. One that was killed, or raised an error, has a start without an end. A record that cannot be
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

    def end(self, left: int, failed: int, outside: dict[str, int], unread: int) -> None:
        """Record the end of a complete run; arguments as in ReconcileRecord, `outside` with all containers."""
        named = dict(sorted(outside.items(), key=lambda it: -it[1])[:_MOST_NAMED])
        counts = {"left": left, "failed": failed, "outside_total": sum(outside.values()), "unread": unread}
        seconds = system.monotonic() - self._started
        self.save(ended_at=system.unix_time(), seconds=seconds, outside=named, **counts)

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
                locked.commit(replace(locked.state, late_cpu=(locked.state.late_cpu + seconds) % _SECONDS_FULL))
    except (HookError, OSError):
        return 0.0
    return seconds


def _add(former: dict[str, int], more: Counter[str]) -> dict[str, int]:
    return {verb: number % (MOST_NATURAL + 1) for verb, number in (Counter(former) + more).items()}
