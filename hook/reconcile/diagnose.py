# SPDX-License-Identifier: Apache-2.0
"""Decides which actions the node needs. Changes nothing.

Each rule is written here once. A pass lists all actions, without a lock. Before an action is done, those of its key are
listed again under the key's lock, and it is skipped unless it is still among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from hook import names, procfs, record, retry, store
from hook.explain import format_count, short_id, who
from hook.models import Failure, KeyState, State
from hook.node import podman, processes, records
from hook.reconcile.survey import Looks, Survey, Threads

_FREE_RMIDS = ("rebuild", "drop", "end", "remove", "evict")
BRING_IN = ("remake", "adopt", "retry")
"""Those that take RMIDs and move threads, for which they may wait."""
_TIDY_UP = ("note", "retire", "forget", "name", "prune", "show", "tidy", "write")
VERBS = (*_FREE_RMIDS, *BRING_IN, *_TIDY_UP)
"""In the order of execution."""
EARLY = "what is kept of completed keys takes more than a quarter of the run directory's file system"
"""Why a snapshot is pruned before its time."""
_NOT_AGAIN = ("usage", "bad_state", "bad_key")


@dataclass(frozen=True)
class Action:
    """One repair: its verb, its object (`path`: a mon_group, or a file of the run directory), and why.

    `reason`: of the failure that is retried. `strangers`: the threads to move out. `namespace`, `pod`, `name`: the
    recorded names of the pod, and of the container in it. `state`: of the running container to adopt.
    """

    verb: str
    key: str = ""
    container: str = ""
    path: str = ""
    why: str = ""
    reason: str = ""
    strangers: tuple[int, ...] = ()
    namespace: str | None = None
    pod: str | None = None
    name: str | None = None
    state: State | None = None

    @property
    def id(self) -> str:
        """Its verb and object without names, which may become known between two runs."""
        return " ".join(word for word in (self.verb, self.container, self.key, self.path) if word)

    def __str__(self) -> str:
        about = self.path or who(self.container or self.key, self.namespace, self.pod, self.name)
        of_key = f" of {short_id(self.key)}" if self.container and self.key and not self.path else ""
        return f"{self.verb} {about}{of_key}: {self.why}"


def diagnose(seen: Survey, looks: Looks) -> list[Action]:
    """List all actions that the node needs, in the order of execution."""
    actions = [it for key in seen.list_keys() for it in _diagnose_readable(seen, looks, key)]
    actions += [it for path in seen.orphans for it in _diagnose_orphan(seen, path)]
    actions += [it for container in seen.failed for it in diagnose_failure(seen, looks, container)]
    actions += [Action("forget", container=it, why="its record is incomplete") for it in seen.half_failures]
    return sorted(actions, key=lambda action: VERBS.index(action.verb))


def _diagnose_readable(seen: Survey, looks: Looks, key: str) -> Iterator[Action]:
    """The actions that a key needs. What cannot be read is not taken for absent, and stops no other key."""
    try:
        yield from diagnose_key(seen, looks, key, seen.states.get(key))
    except OSError as error:
        looks.unread[key] = error


def diagnose_adoptable(adoptable: Iterable[State]) -> list[Action]:
    """The actions for containers that run and that no hook has seen."""
    why = "it is running, and is not in a group of ours"
    return [Action("adopt", container=state.id, why=why, state=state) for state in adoptable]


def diagnose_key(seen: Survey, looks: Looks, key: str, state: KeyState | None, only: str = "") -> Iterator[Action]:
    """The actions that a key needs, those that cost most to find last. `state`: None: it has no readable record.

    `only`: a container of it; actions for others are left out.
    """
    rules = [_diagnose_files(seen, looks, key, state, only)]
    if state is not None:
        rules += [_diagnose_record(seen, state), _diagnose_tasks(seen, looks, state, only)]
    for action in chain.from_iterable(rules):
        yield _add_names(action, state) if state is not None else action


def _add_names(action: Action, state: KeyState) -> Action:
    """Add the recorded names of pod and container to an action."""
    member = state.members.get(action.container)
    namespace, pod = action.namespace or state.pod_namespace, action.pod or state.pod_name
    name = member.name if member is not None else None if action.container else record.find_name(state)
    return replace(action, namespace=namespace, pod=pod, name=name)


def _diagnose_files(seen: Survey, looks: Looks, key: str, state: KeyState | None, only: str) -> Iterator[Action]:
    """The actions that a key needs because of its files in the run directory."""
    rebuilds = state.recovering if state is not None else key in seen.unreadable
    if rebuilds:
        yield Action("rebuild", key, why=f"its record {'is unreadable' if state is None else 'may lack members'}")
    for container in [only] if only else seen.indexed.get(key, ()):
        is_member = state is not None and container in state.members
        if not (rebuilds or is_member) and looks.find_key(container) == key:
            yield Action("forget", key, container, why="it is in the index but not a member")
    for path in seen.asides.get(key, ()):
        yield Action("tidy", key, path=path, why="it was set aside a day ago")
    is_over = state is None or state.completed_at is not None
    if key in seen.leftovers and (state is None or is_over or records.has_leftovers(seen.context.run, state)):
        yield Action("tidy", key, why="a hook that was killed left temporary files")


def _diagnose_record(seen: Survey, state: KeyState) -> Iterator[Action]:
    """The actions that a key needs because of its record."""
    key, is_listed = state.key, seen.is_listed(state.key)
    if state.owed is not None:
        yield Action("write", key, why=f"{format_count(len(state.owed.lines), 'line')} of history not written yet")
    # The view of a group that is gone would lead nowhere: its key first gets another one, or ends.
    is_old = not seen.context.view.is_current(state) and not any(map(seen.is_gone, state.groups))
    if is_old or seen.has_late_counters(state):
        yield Action("show", key, why="its published view is out of date")
    if state.completed_at is not None:
        # A time in the future is of another boot, if the run directory survives one.
        is_old = abs(seen.boottime - (state.completed_boottime or 0.0)) >= seen.context.options.snapshot_ttl
        if (state.groups or state.owed is None) and (is_old or key in seen.surplus.snapshots):
            why = "its snapshot is older than --snapshot-ttl" if is_old else EARLY
            yield Action("prune", key, why=why)
    elif state.recovering or (is_listed and not state.members):
        return
    elif state.members:
        named = name_members(seen, state)
        if named is not state:
            why = "the kubelet's logs name it" if state.kind == "pod" else "Podman names it"
            yield Action("name", key, why=why, namespace=named.pod_namespace, pod=named.pod_name)
    elif state.lingering_since is None:
        yield Action("end", key, why="it has no members")
    elif is_listed is False or retry.has_lingered(seen.context, state):
        yield Action("end", key, why="its linger time is over, or its pod is gone")


def _diagnose_tasks(seen: Survey, looks: Looks, state: KeyState, only: str) -> Iterator[Action]:
    """The actions that a key, not completed, needs because of its processes and of the tasks in its groups."""
    key, context = state.key, seen.context
    if state.completed_at is not None:
        return
    threads = Threads(seen, looks, state) if seen.is_mounted else None
    has_several = threads is not None and len(state.groups) > 1
    if has_several and len({retry.is_retired(context, state, group) for group in state.groups}) > 1:
        yield Action("retire", key, why="one of its groups is gone, and no member needs it")
    for container in state.members.keys() & {only} if only else state.members:
        action = _diagnose_member(seen, looks, state, container, threads)
        if action is not None and not state.recovering:
            yield action
    if threads is None or only or state.recovering:  # a task may belong to a member without a record
        return
    for group in state.groups:
        strangers = sorted(threads.find_strangers(group.path, seen.find_live(state)))
        if strangers:
            why = f"threads of none of its containers: {', '.join(map(str, strangers[:5]))}"
            yield Action("evict", key, path=group.path, why=why, strangers=tuple(strangers))


def _diagnose_member(
    seen: Survey, looks: Looks, state: KeyState, container: str, threads: Threads | None
) -> Action | None:
    """The action that a member needs. Its threads are counted in any case, so that they do not count as strangers."""
    member, key = state.members[container], state.key
    is_listed = seen.is_listed(key)
    why = "its process is dead" if is_listed is None else "its key is not in the list of --live"
    if seen.is_dead(member):
        return None if is_listed else Action("drop", key, container, why=why)
    taker = threads.look_for_taker(container, member) if threads is not None else None
    is_in_place = threads is None or taker is not None or threads.is_in_place(member)
    outside = threads.count_outside(container, member) if threads is not None and is_in_place else 0
    if is_listed is False:
        return Action("drop", key, container, why=why)
    if taker is not None:
        why = f"another tool has moved it to {taker}: a part of its use is unknown"
        is_noted = state.taken and not any(it.path == member.group and seen.is_gone(it) for it in state.groups)
        return Action("note", key, container, why=why) if not is_noted else None
    if not is_in_place:
        return Action("remake", key, container, why="its group is gone, or its process is in another ctrl_group")
    # A former life of a container has no index entry (names.former_life).
    if container == names.container_of(container) and looks.find_key(container) is None:
        return Action("remake", key, container, why="its index entry is missing, so poststop cannot find the key")
    # The initial counters must be read before the first thread enters the group, as in createRuntime.
    is_counted = bool(seen.context.options.snapshot_ttl or seen.context.history_of(state))
    verb = "adopt" if has_begun(state, container) or not is_counted else "remake"
    return Action(verb, key, container, why=f"{outside} of its threads are not in its group") if outside else None


def _diagnose_orphan(seen: Survey, path: str) -> Iterator[Action]:
    """The action that a group without a record needs."""
    if seen.context.resctrl.has_live_task(path):
        if path not in seen.completed_groups:  # else a task outlived the last member, and a later run removes the group
            yield Action("rebuild", path=path, why="this group has no record, and it has live tasks")
    elif not seen.is_listed(retry.parse_key(seen.context, path)):
        yield Action("remove", path=path, why="this group has no record, and it has no tasks")


def diagnose_failure(seen: Survey, looks: Looks, container: str) -> Iterator[Action]:
    """The action that a container with a failure record needs."""
    failure = seen.context.run.glance(Failure, container)
    is_lone = looks.find_key(container) is None  # else the failure record goes when the member is dropped
    if failure is None or (failure.pid is None and failure.stage != "poststop"):
        if is_lone and records.has_old_failure(seen.context.run, container) and not seen.is_running(container):
            yield Action("forget", container=container, why="its failure record has no pid, and is old")
        return
    why = "it failed, and is gone"
    action = Action("forget", "", container, "", why, namespace=failure.namespace, pod=failure.pod, name=failure.name)
    names_process = failure.pid is not None and (failure.starttime is not None or failure.boottime is not None)
    is_over = is_lone if failure.pid is None else _has_dead_process(failure)
    if is_over:
        yield action
    elif seen.is_mounted and names_process and not (failure.monitored or failure.reason in _NOT_AGAIN):
        why = f"it is running but not monitored ({failure.reason})"
        yield replace(action, verb="retry", why=why, reason=failure.reason)


def _has_dead_process(failure: Failure) -> bool:
    pid = failure.pid or 0
    is_dead = procfs.is_dead(pid, failure.starttime)
    if is_dead is False and failure.starttime is None and failure.boottime is not None:
        return not processes.had_pid(pid, failure.boottime)  # otherwise the kernel has reused the pid
    return is_dead is True


def has_begun(state: KeyState, container: str) -> bool:
    """Whether the initial counters of a member's group were read."""
    return any(it.path == state.members[container].group and it.begin is not None for it in state.groups)


def name_members(seen: Survey, state: KeyState) -> KeyState:
    """Add names to the record of a live key that lacks some: the kubelet's, or Podman's.

    A record that was rebuilt from the kernel has none. The files with the names are read only if one is missing.
    """
    if state.kind != "pod":
        return podman.add_names(state, seen.podman)
    pod = seen.kubelet.pods.get(state.key) if state.pod_name is None else None
    nameless = {it: names.container_of(it) for it, member in state.members.items() if member.name is None}
    found = {it: seen.kubelet.containers[name] for it, name in nameless.items() if name in seen.kubelet.containers}
    if pod is None and not found:
        return state
    named = {it: store.replace(state.members[it], name=name) for it, name in found.items()}
    namespace, name = pod or (state.pod_namespace, state.pod_name)
    return store.replace(state, pod_namespace=namespace, pod_name=name, members={**state.members, **named})
