# SPDX-License-Identifier: Apache-2.0
"""Plans the actions of reconcile from a survey. Reads and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hook.base.text import short_id, who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hook.base.models import Failure, KeyState
    from hook.reconcile.survey import Place, Survey

VERBS = (
    "rebuild",
    "drop",
    "end",
    "remove",
    "evict",
    "remake",
    "adopt",
    "retry",
    "retire",
    "forget",
    "name",
    "prune",
    "show",
    "tidy",
)
"""In the order of execution: actions that free RMIDs come before those that need one."""
_NOT_AGAIN = ("usage", "bad_state", "bad_key")


@dataclass(frozen=True)
class Action:
    """One repair: its verb, its object (`path`: a mon_group, or a file of the run directory), and why.

    `forced`: because of --live, without a check of the key's members. `reason`: of the failure that is tried again.
    `namespace`, `pod`, `name`: what is recorded of the pod, and of the container in it.
    """

    verb: str
    key: str = ""
    container: str = ""
    path: str = ""
    why: str = ""
    forced: bool = False
    reason: str = ""
    namespace: str | None = None
    pod: str | None = None
    name: str | None = None

    @property
    def id(self) -> str:
        """What it does to what, whatever is known of names."""
        return " ".join(word for word in (self.verb, self.container, self.key, self.path) if word)

    def __str__(self) -> str:
        about = self.path or who(self.container or self.key, self.namespace, self.pod, self.name)
        of_key = f" of {short_id(self.key)}" if self.container and self.key and not self.path else ""
        return f"{self.verb} {about}{of_key}: {self.why}"


def is_outdated(state: KeyState, boottime: float, snapshot_ttl: int) -> bool:
    """Whether the snapshot of a completed key is older than `snapshot_ttl` seconds.

    Or from the future: then it is from another boot, on a run directory that survives one.
    """
    return state.completed_at is not None and abs(boottime - (state.completed_boottime or 0.0)) >= snapshot_ttl


def plan(seen: Survey, snapshot_ttl: int, live: Collection[str] | None = None) -> list[Action]:
    """The actions, in order. `live`: authoritative set of live keys (--live), instead of a check of their members."""
    actions = [Action("rebuild", key, why="its record is unreadable") for key in seen.unreadable]
    for key, state in seen.states.items():
        if state.completed_at is not None:
            if is_outdated(state, seen.boottime, snapshot_ttl):
                actions.append(Action("prune", key, why="its snapshot is older than --snapshot-ttl"))
        elif state.recovering:
            actions.append(Action("rebuild", key, why="its record may lack members"))
        else:
            actions += _plan_key(seen, key, state, live, has_snapshots=snapshot_ttl > 0)
    actions += _plan_groups(seen, live)
    actions += [action for failure in seen.failures for action in _plan_failure(seen, failure)]
    actions += [
        Action("forget", key, container, why="it is in the index but not a member")
        for container, key in seen.lost.items()
    ]
    actions += [
        Action("forget", container=container, why="its record is incomplete") for container in seen.half_failures
    ]
    actions += [
        Action("forget", container=container, why="its failure record has no pid, and is old")
        for container in seen.outdated_failures
    ]
    actions += [Action("tidy", key, path=path, why="it was set aside a day ago") for key, path in seen.set_aside]
    actions += [Action("retire", key, why="one of its groups is gone, and no member needs it") for key in seen.retired]
    actions += [Action("name", key, why="the kubelet's logs name it") for key in seen.named]
    actions += [Action("show", key, why="its published view is out of date") for key in seen.stale_views]
    actions += [Action("tidy", key, why="a hook that was killed left temporary files") for key in seen.leftovers]
    failures = {it.container: it for it in seen.failures}
    in_order = sorted(actions, key=lambda action: VERBS.index(action.verb))
    states = {**seen.states, **seen.named}
    return [_named(action, states.get(action.key), failures.get(action.container)) for action in in_order]


def _named(action: Action, state: KeyState | None, failure: Failure | None) -> Action:
    """The action with the names of its pod and container."""
    if state is not None:
        member = state.members.get(action.container)
        name = member.name if member is not None else None
        return replace(action, namespace=state.pod_namespace, pod=state.pod_name, name=name)
    if failure is not None:
        return replace(action, namespace=failure.namespace, pod=failure.pod, name=failure.name)
    return action


def list_left(seen: Survey) -> list[str]:
    """A line for each problem that reconcile leaves, because another tool or the container itself caused it."""
    lines = []
    for place, number in seen.elsewhere.items():
        name = _name_place(seen, place)
        lines.append(f"{number} threads of {name} are in another ctrl_group or another tool's group, and stay there")
    for place, number in seen.unread.items():
        name = _name_place(seen, place)
        lines.append(f"{number} cgroups of {name} were not read: it has too many; a program there may stay outside")
    return lines


def _name_place(seen: Survey, place: Place) -> str:
    key, container = place
    state = seen.states[key]
    name = who(container, state.pod_namespace, state.pod_name, state.members[container].name)
    return f"{name} of {short_id(key)}"


def _plan_key(
    seen: Survey, key: str, state: KeyState, live: Collection[str] | None, *, has_snapshots: bool
) -> Iterator[Action]:
    over = {container for container in state.members if (key, container) in seen.dead}
    why = "its process is dead"
    if live is not None:
        over, why = (set(), "") if key in live else (set(state.members), "its key is not in the list of --live")
    for container in state.members:
        place = (key, container)
        if container in over:
            yield Action("drop", key, container, why=why, forced=live is not None)
        elif place in seen.vanished and place not in seen.dead:
            yield Action("remake", key, container, why="its group is gone, or its process is in another ctrl_group")
        elif place in seen.unindexed and place not in seen.dead:
            yield Action("remake", key, container, why="its index entry is missing, so poststop cannot find the key")
        elif place in seen.outside:
            # The initial counters must be read before the first thread enters the group, as in createRuntime.
            verb = "adopt" if _has_begun(state, container) or not has_snapshots else "remake"
            yield Action(verb, key, container, why=f"{seen.outside[place]} of its threads are not in its group")
    if not state.members and (live is None or key not in live):
        if state.lingering_since is None:
            yield Action("end", key, why="it has no members", forced=live is not None)
        elif key in seen.lingered or live is not None:
            why = "its linger time is over, or its pod is gone"
            yield Action("end", key, why=why, forced=live is not None)


def _has_begun(state: KeyState, container: str) -> bool:
    """Whether the initial counters of a member's group were read."""
    return any(it.path == state.members[container].group and it.begin is not None for it in state.groups)


def _plan_groups(seen: Survey, live: Collection[str] | None) -> Iterator[Action]:
    for (key, path), strangers in seen.strangers.items():
        names = ", ".join(map(str, sorted(strangers)[:5]))
        yield Action("evict", key, path=path, why=f"threads of none of its containers: {names}")
    completed = {group.path for state in seen.states.values() if state.completed_at for group in state.groups}
    for (key, path), is_lived_in in seen.orphans.items():
        if is_lived_in and path in completed:
            continue  # a task outlived the last member: the group is removed after it
        if is_lived_in:
            yield Action("rebuild", path=path, why="this group has no record, and it has live tasks")
        elif live is None or key not in live:
            yield Action("remove", path=path, why="this group has no record, and it has no tasks")


def names_process(failure: Failure) -> bool:
    """Whether a failure's record says which process it is of: a pid alone may have been reused."""
    return failure.pid is not None and (failure.starttime is not None or failure.boottime is not None)


def _plan_failure(seen: Survey, failure: Failure) -> Iterator[Action]:
    if failure.container in seen.gone:
        yield Action("forget", container=failure.container, why="it failed, and is gone")
    elif seen.mounted and names_process(failure) and not (failure.monitored or failure.reason in _NOT_AGAIN):
        why = f"it is running but not monitored ({failure.reason})"
        yield Action("retry", container=failure.container, why=why, reason=failure.reason)
