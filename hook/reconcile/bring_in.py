# SPDX-License-Identifier: Apache-2.0
"""Brings in containers that run already: as createRuntime, but moves all threads of each into its group."""

from __future__ import annotations

from hook.base import cgroups, procfs, system
from hook.base.container_tasks import cpu_seconds
from hook.base.errors import HookError, Reason
from hook.base.explain import GroupGone, WrongCtrlGroup, cgroup_error
from hook.base.models import Failure, KeyState
from hook.node import podman
from hook.reconcile.chase import Chase, StillOutside, count_late_cpu
from hook.reconcile.diagnose import has_begun
from hook.reconcile.survey import Survey
from hook.stages import create, report
from hook.stages.entry import Context
from hook.stages.identity import Container, Key
from hook.stages.podman import leaves_out
from hook.stages.retry import retire
from hook.state import damage


def make_container(name: str, pid: int, bundle: str, annotations: dict[str, str] | None) -> Container:
    """The container of a hook, for one that runs already.

    The cgroup that its runtime was asked for names its pod, never the present one of its process, which the container
    may have made itself. Without it the pod in the annotations is not trusted. `annotations`: None: read them from its
    bundle's config.json.
    """
    config = create.read_config(bundle) if bundle else None
    if annotations is None and config is not None:
        annotations = config.annotations or {}
    place = cgroups.from_config(config.linux.cgroups_path) if config is not None and config.linux is not None else None
    places = [place] if place is not None else []
    found = Container(name, pid, bundle, annotations, places)
    podman.name_running(found.pod, name, bundle, places)
    if place is None and (annotations is None or found.pod.uid is not None):
        found.pod.uid, found.pod.problem = None, cgroup_error(bundle)
    return found


def adopt_running(seen: Survey, container: Container) -> bool:
    """Do createRuntime for a running container; if no key can be derived, under the one in its index.

    False: filters leave it out.
    """
    options, run = seen.context.options, seen.context.run
    if leaves_out(options, container.pod):
        return False
    key = None
    if container.starttime is not None and report.guess_key(options, container) is None:
        name = run.read_index(container.id)
        key = Key(name, (run.glance(KeyState, name) or damage.unknown_state(name)).kind) if name is not None else None
    return _monitor(seen, container, key)


def retry(seen: Survey, name: str) -> bool:
    """Retry a failed createRuntime with its recorded key. False: the container has ended, or succeeded, meanwhile."""
    failure = seen.context.run.glance(Failure, name)
    if failure is None:
        return False
    container = make_container(name, failure.pid or 0, failure.bundle or "", None)
    pod = container.pod
    pod.namespace, pod.name = pod.namespace or failure.namespace, pod.name or failure.pod
    pod.container = pod.container or failure.name
    if failure.key is not None and failure.kind is not None:
        if failure.starttime not in (None, container.starttime):
            return False
        _monitor(seen, container, Key(failure.key, failure.kind))
    elif container.annotations is not None:
        adopt_running(seen, container)
    else:
        raise HookError(Reason.IO, "cannot tell which pod it belongs to: its bundle is unreadable")
    return True


def remake(seen: Survey, state: KeyState, name: str) -> bool:
    """Make the group of a live member again, like createRuntime, and move all its tasks in. False: it has ended."""
    context, member = seen.context, state.members[name]
    _, mon_group = procfs.resctrl_groups(member.pid) or ("", "")
    if mon_group and not mon_group.startswith(context.options.group_prefix):
        problem = f"its process is in mon_group {mon_group[:80]!r} of another tool, and stays there"
        raise HookError(Reason.IO, problem)
    container = Container(name, member.pid, "", {}, [])
    if container.starttime != member.starttime:
        return False
    try:
        _monitor(seen, container, Key(state.key, state.kind), was_in=has_begun(state, name))
    finally:  # also if the new group got no RMID: the old group may hold the last one
        # Only if the old group is empty. Killed before this, it stays on record and is removed with its key.
        with context.run.lock(state.key, system.monotonic() + context.options.lock_timeout) as locked:
            retire(context, locked, left=member.group)
    return True


def adopt(seen: Survey, state: KeyState, name: str) -> int:
    """Move the threads of a container that are outside its group into it; returns their number."""
    try:
        return _bring_in(seen, state.key, name)
    except WrongCtrlGroup:  # its init is in another ctrl_group, on a kernel that does not show it
        return int(remake(seen, state, name))


def _monitor(seen: Survey, container: Container, key: Key | None, *, was_in: bool = False) -> bool:
    """Monitor a container under this key (None: the one that createRuntime derives), and move all its tasks in.

    Returns whether it is monitored; False: filters leave it out.
    A failure is recorded like a hook's. `was_in`: the group is made again, so its tasks were counted for most of the
    time, and their CPU time so far is not added to late_cpu.
    """
    context = seen.context
    used = 0.0 if was_in else cpu_seconds(container.pid)
    ctrl_group = _find_ctrl_group(seen, container.pid) if procfs.resctrl_groups(container.pid) is None else None
    try:
        if seen.refusal is not None and key is not None and not _has_group(context, key):
            raise seen.refusal
        key = create.create_runtime(context, container, key, ctrl_group)
    except HookError as error:
        key = key or report.guess_key(context.options, container)
        if error.reason == Reason.NO_RMIDS:  # an RMID in limbo (RMIDS_IN_LIMBO) comes back within seconds
            seen.refusal = error
        if key is not None:
            _show_again(context, key.name)
        _record(context, container, error, key, is_monitored=False)
        raise
    problem = container.problem(key) if key is not None else None
    if problem is None:
        context.run.remove(Failure, container.id)
    else:
        _record(context, container, problem, key, is_monitored=True)
    if key is not None:  # its init is in by now: what stays outside is no hook's failure
        count_late_cpu(context, key.name, used)
        _bring_in(seen, key.name, container.id, was_in=was_in)
    return key is not None


def _record(context: Context, container: Container, error: HookError, key: Key | None, *, is_monitored: bool) -> None:
    report.record(context.run, report.make_failure(error, "reconcile", container, key, is_monitored=is_monitored))


def _find_ctrl_group(seen: Survey, pid: int) -> str:
    """The ctrl_group whose `tasks` lists a process, for kernels without /proc/PID/cpu_resctrl_groups."""
    resctrl = seen.context.resctrl
    found = (it for it in seen.ctrl_groups if it != resctrl.root and pid in (resctrl.tasks(it) or ()))
    return next((path[len(resctrl.root) + 1 :] for path in found), "/")


def _has_group(context: Context, key: Key) -> bool:
    """Whether a key has a group, so that one more container needs no RMID."""
    state = context.run.glance(KeyState, key.name)
    return state is not None and any(context.resctrl.inode(group.path) is not None for group in state.groups)


def _show_again(context: Context, key: str) -> None:
    """Restore the view of a key, which createRuntime has invalidated before it failed to make a group again."""
    try:
        with context.run.lock(key, system.monotonic()) as locked:
            if locked.state is not None:
                context.view.show(locked.state)
    except HookError as error:
        if error.reason != Reason.LOCK_TIMEOUT:  # then the hook that holds it shows it
            raise


def _bring_in(seen: Survey, key: str, container: str, *, was_in: bool = False) -> int:
    """Move every thread of a container into its group; returns their number. Raises StillOutside, HookError.

    The cgroup file system lists the threads in its own cgroup; its other processes are read in /proc, one by one.
    """
    context, processes = seen.context, seen.processes
    state = context.run.glance(KeyState, key)
    member = state.members.get(container) if state is not None else None
    if member is None or procfs.is_dead(member.pid, member.starttime):
        return 0
    processes.add([(container, member)])
    has_others = bool(processes.beside_own_cgroup(member))

    def read() -> set[int]:
        own = processes.read_own_cgroup(member)
        tids, is_whole = (own.tids, not own.unread) if own is not None else (set[int](), False)
        if has_others or not is_whole:
            tids |= processes.look_again(member, beside_own_cgroup=is_whole)
        return tids

    chase = Chase(context, member)
    try:
        chase.run(read)
    except GroupGone:
        if not procfs.is_dead(member.pid, member.starttime):
            raise
    finally:
        count_late_cpu(context, key, 0.0 if was_in else chase.late_cpu)
    if chase.outside:
        raise StillOutside(chase.outside, chase.moved)
    return chase.moved
