# SPDX-License-Identifier: Apache-2.0
"""Jobs: processes that are no containers, in the group of a key that their user names.

Each process of a job is a member of its key, as a container is, named by its pid and start time; what it forks later is
in the same group. They join by the steps of createRuntime, and leave by those of poststop, so that what is written in
the order of docs/design.md survives a kill here, too. A call puts all of its processes into the group, or none.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from hook import identity, names, report, system
from hook.create import check_record, create_runtime
from hook.entry import Context
from hook.errors import GONE, HookError, Reason
from hook.identity import Container, Key
from hook.key import drop
from hook.models import Failure, Index, KeyState, Member, Options
from hook.node import files
from hook.node.processes import check_namespaces, look, name_job_process, parse_job_process, read_status
from hook.reconcile.act import bring_in, end_released, end_with_members
from hook.reconcile.diagnose import Survey
from hook.reconcile.move import move_until
from hook.resctrl import Resctrl
from hook.store import RunDir

LONGEST_NAME = 64
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit statuses for a command that cannot be started, as shells have them."""
_KERNEL_THREAD = 0x200000  # PF_KTHREAD, of the flags in proc_pid_stat(5)
_LARGEST = 16 << 20  # bytes of an environment; the kernel's limit is a quarter of the stack's
_HEX = frozenset("0123456789abcdef")
_PATIENCE = 2.0  # seconds, for a process that forks while its threads are moved


class Unstartable(Exception):
    """The command of `run` cannot be started: `status` is the exit status."""

    def __init__(self, command: str, number: int) -> None:
        super().__init__(f"{command[:200]}: {os.strerror(number)}")
        self.status = NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE


def run(context: Context, name: str | None, command: list[str], labels: dict[str, str] | None = None) -> NoReturn:
    """Put this process into the group of a job, of its own without a name, and let it execute the command.

    The command has this pid, the environment, the umask and the signals that this process was started with, but that
    SIGPIPE and SIGXFSZ are not ignored. Raises Unstartable, and what `assign` raises; then it is in no group.
    """
    program, environment = _find_program(command[0]), _read_environment()
    process = _find(os.getpid())
    key = assign(context, name, [process.pid], labels)
    warn(context)
    try:
        os.umask(system.umask_before)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, command, environment)  # noqa: S606  without a shell
    except OSError as error:
        system.set_umask()
        _undo(context, key, [process])
        raise Unstartable(command[0], error.errno or 0) from error


def _read_environment() -> dict[bytes, bytes]:
    """Return the environment that this process was started with: in the locale C, Python has changed LC_CTYPE since."""
    entries = (entry.partition(b"=") for entry in files.read("/proc/self/environ", _LARGEST).split(b"\0"))
    return {name: value for name, equals, value in entries if equals}


def _find_program(command: str) -> str:
    found = shutil.which(command)
    if found is None:
        is_there = shutil.which(command, os.F_OK) or ("/" in command and os.path.lexists(command))
        raise Unstartable(command, errno.EACCES if is_there else errno.ENOENT)
    return found


def assign(context: Context, name: str | None, pids: list[int], labels: dict[str, str] | None = None) -> str:
    """Put processes, with all their threads and children, into the group of a job; return its key.

    Without a name the first process names the key. Its ctrl_group is that of the job, or of a new one. Raises HookError
    and OSError: `bad_key`, `no_rmids`, `rmids_in_limbo`, `no_ctrl_group` (another class or another tool's group),
    `task_gone`, `usage` (no process that may join), and others.
    """
    check_namespaces()
    found = [_find(pid, labels) for pid in dict.fromkeys(pids)]
    key = name if name is not None else found[0].id
    _check_key(context, key, found[0].labels)
    if not context.resctrl.is_mounted():
        raise HookError(Reason.NOT_MOUNTED, "not mounted", root=context.resctrl.root)
    seen = Survey(context)
    ctrl_group = _check_processes(seen, key, found)
    joined: list[Container] = []
    try:
        for process in found:
            state = seen.states.get(key)
            if state is None or not process.is_member(state.members.get(process.id)):
                create_runtime(context, process, Key(key, "job"), ctrl_group)
                joined.append(process)
                _bring_in(seen, key, process.id)
    except (HookError, OSError):
        _undo(context, key, joined)
        raise
    return key


def release(context: Context, name: str) -> bool:
    """End a job at once: its groups go, also if its processes live. Returns False if there is none of this name.

    Raises HookError (`bad_key`: the key is no job's), OSError.
    """
    if not names.is_container_id(name):
        raise _bad_key(name)
    with context.run.lock(name, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        if state is None:
            return False
        if state.kind != "job":
            raise HookError(Reason.BAD_KEY, "other kind", key=name, former=state.kind)
        if state.completed_at is not None:  # an earlier call may have been killed before it removed the groups
            return end_released(context, state)
        end_with_members(context, locked, state)
    return True


@contextmanager
def open_node(options: Options) -> Iterator[Context]:
    """Open the node; at the end print what was found broken on the way. Raises HookError."""
    context = Context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
    try:
        yield context
    finally:
        warn(context)


def warn(context: Context) -> None:
    """Print what was found broken on the way, and stopped nothing."""
    while context.run.complaints:
        report.say(f"warning: {report.explain(context.run.complaints.pop(0))}", to_syslog=False)


# --- What may join


def _bad_key(name: str, why: str = "") -> HookError:
    why = why or f"it is not 1 to {LONGEST_NAME} of A-Z a-z 0-9 _ . + , - and the first of these a letter or a digit"
    return HookError(Reason.BAD_KEY, f"{name[:80]!r} cannot be the key of a job: {why}")


def _check_key(context: Context, name: str, labels: dict[str, str]) -> None:
    """Raise HookError `bad_key` for a name that is none, or that is, or may be, a pod's or a container's.

    Also for the name of a job that runs with other labels: createRuntime does not look at a process that is in it.
    """
    if not names.is_container_id(name) or len(name) > LONGEST_NAME:
        raise _bad_key(name)
    if identity.canonical_uid(name) is not None:
        raise _bad_key(name, "it is the UID of a pod")
    if len(name) == LONGEST_NAME and _HEX.issuperset(name.lower()):
        raise _bad_key(name, "it is the ID of a container")
    state, is_process = context.run.glance(KeyState, name), parse_job_process(name) is not None
    if state is not None and state.kind != "job":
        why = "its record is not rebuilt yet: reconcile" if state.recovering else f"a {state.kind} on record has it"
        raise _bad_key(name, why)
    if not is_process and (context.run.has(Index, name) or context.run.has(Failure, name)):
        raise _bad_key(name, "a container on record has this ID")
    check_record(Key(name, "job"), labels, state)


def _find(pid: int, labels: dict[str, str] | None = None) -> Container:
    """Return a live process as a member to be. Raises HookError."""
    if pid == 1:
        raise HookError(Reason.USAGE, "process 1 cannot join a job: all others descend from it")
    fields = system.stat_fields(pid)
    if fields is None:
        raise HookError(Reason.TASK_GONE, f"there is no process {pid}")
    if system.is_over(fields):
        raise HookError(Reason.TASK_GONE, f"process {pid} has ended: it is a zombie")
    if int(fields[6]) & _KERNEL_THREAD:
        raise HookError(Reason.USAGE, f"{pid} is a kernel thread")
    leader = read_status(pid, "Tgid")
    if leader not in (0, pid):
        raise HookError(Reason.USAGE, f"{pid} is a thread of process {leader}, and no process")
    process = Container(name_job_process(pid, int(fields[19])), pid, "", {}, [])
    process.labels = labels or {}
    if process.starttime != int(fields[19]):
        raise HookError(Reason.TASK_GONE, f"process {pid} has ended")
    return process


def _check_processes(seen: Survey, key: str, found: list[Container]) -> str:
    """Return the ctrl_group that the processes and the job are in. Raises HookError about one that cannot join."""
    state = seen.states.get(key)
    groups = [group for group in state.groups if group.end is None] if state is not None else []
    classes, paths = {group.ctrl_group for group in groups}, {group.path for group in groups}
    place = ""
    for process in found:
        about = f"process {process.pid}"
        for owner, container, member in _list_members(seen):
            if owner != key and process.pid in seen.processes.of_container(member):
                raise HookError(Reason.USAGE, f"{about} is of {container}, a member of key {owner}")
        path = seen.groups.find(process.pid)
        if path is None:
            raise HookError(Reason.TASK_GONE, f"{about} has ended")
        if seen.groups.is_others(path):
            raise HookError(Reason.NO_CTRL_GROUP, f"{about} is in {path}, a mon_group of another tool")
        name = seen.context.options.group_prefix + key
        if "/mon_groups/" in path and path not in paths and path.rpartition("/")[2] != name:
            raise HookError(Reason.USAGE, f"{about} is in {path}, the group of another key")
        place = seen.groups.name_ctrl_group(path)
        classes = classes or {place}
        if place not in classes:
            its = ", ".join(sorted(classes))
            raise HookError(Reason.NO_CTRL_GROUP, f"{about} is in the ctrl_group {place}, and its job in {its}")
    return place


def _list_members(seen: Survey) -> list[tuple[str, str, Member]]:
    """List all members, each with its key and its name."""
    states = (state for state in seen.states.values() if state.completed_at is None)
    return [(state.key, name, member) for state in states for name, member in state.members.items()]


# --- In and out


def _bring_in(seen: Survey, key: str, name: str) -> None:
    """Move the other threads of a member, and its children, into the group; what takes longer is left to reconcile.

    So is a group that is gone by now: the job was released at this moment, or another tool has removed it.
    """
    mover = bring_in(seen, key, name, None)
    if mover is None:
        return
    move_until([mover], system.monotonic() + _PATIENCE)
    error = mover.error
    if error is not None and not (isinstance(error, HookError) and error.kind in GONE):
        raise error


def _undo(context: Context, key: str, joined: list[Container]) -> None:
    """Take processes out of a job again, and its group if nothing is left in it. A failure is a complaint."""
    try:
        with context.run.lock(key, system.monotonic() + context.options.lock_timeout) as locked:
            state = locked.state
            if state is None or state.completed_at is not None:
                return
            ours = [process.id for process in joined if process.is_member(state.members.get(process.id))]
            now = look()
            now.add(state.members.items())
            for member in map(state.members.__getitem__, ours):
                for tid in now.threads(now.of_container(member)) & (context.resctrl.tasks(member.group) or set()):
                    with suppress(HookError):
                        context.resctrl.expel(member.group, tid)
            if ours:
                drop(context, locked, ours)
    except (HookError, OSError) as error:  # reconcile drops them once they are dead
        context.run.complain("a failed start could not be undone", error)
