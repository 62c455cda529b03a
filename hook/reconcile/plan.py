"""What reconcile is going to do: actions, made of facts alone. Nothing here looks at anything, or changes it."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hook.base.models import Failure, KeyState
    from hook.reconcile.survey import Survey

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
    "prune",
    "show",
    "tidy",
)
"""In this order: what gives RMIDs back comes before what needs one."""
_NOT_AGAIN = ("usage", "bad_state", "bad_key")


@dataclass(frozen=True)
class Action:
    """One thing to be put right: the verb, what it is about (`path`: a mon_group), and why.

    `forced`: somebody who knows says so, whatever the key's members look like.
    """

    verb: str
    key: str = ""
    container: str = ""
    path: str = ""
    why: str = ""
    forced: bool = False

    def __str__(self) -> str:
        about = " of ".join(word for word in (self.container, self.key) if word)
        return f"{self.verb} {self.path or about}: {self.why}"


def is_outdated(state: KeyState, boottime: float, snapshot_ttl: int) -> bool:
    """Whether the snapshot of a completed key has been kept for its time, in seconds.

    Or that time is still to come: of another boot, where a run directory outlives one.
    """
    return state.completed_at is not None and abs(boottime - (state.completed_boottime or 0.0)) >= snapshot_ttl


def plan(seen: Survey, snapshot_ttl: int, live: Collection[str] | None = None) -> list[Action]:
    """What is to be done. `live`: the keys that live, from somebody who knows, instead of looking at members."""
    actions = [Action("rebuild", key, why="what is recorded of it cannot be read") for key in seen.unreadable]
    for key, state in seen.states.items():
        if state.completed_at is not None:
            if is_outdated(state, seen.boottime, snapshot_ttl):
                actions.append(Action("prune", key, why="it was completed, and its time is over"))
        elif state.recovering:
            actions.append(Action("rebuild", key, why="members may be missing in what is recorded of it"))
        else:
            actions += _of_key(seen, key, state, live, has_snapshots=snapshot_ttl > 0)
    actions += _of_groups(seen, live)
    actions += [action for failure in seen.failures for action in _of_failure(seen, failure)]
    actions += [
        Action("forget", key, container, why="it is indexed, and no member") for container, key in seen.lost.items()
    ]
    actions += [
        Action("forget", container=container, why="its record was never finished") for container in seen.half_failures
    ]
    actions += [
        Action("forget", container=container, why="its record names no process, and is a day old")
        for container in seen.outdated_failures
    ]
    actions += [Action("tidy", key, why="what could not be read of it was kept for a day") for key in seen.set_aside]
    actions += [Action("retire", key, why="a group of it is gone, and nobody needs it") for key in seen.retired]
    actions += [Action("show", key, why="consumers see what it was") for key in seen.stale_views]
    actions += [Action("tidy", key, why="a hook that was killed left files of it") for key in seen.leftovers]
    return sorted(actions, key=lambda action: VERBS.index(action.verb))


def left(seen: Survey) -> list[str]:
    """What is not as it should be and stays so, since others made it so: a line each."""
    return [
        f"{number} threads of {container} of {key} are in another ctrl_group, or a group of others, and stay there"
        for (key, container), number in seen.elsewhere.items()
    ]


def _of_key(
    seen: Survey, key: str, state: KeyState, live: Collection[str] | None, *, has_snapshots: bool
) -> Iterator[Action]:
    over = {container for container in state.members if (key, container) in seen.dead}
    why = "its process is dead"
    if live is not None:
        over, why = (set(), "") if key in live else (set(state.members), "its key is not among the live ones")
    for container in state.members:
        place = (key, container)
        if container in over:
            yield Action("drop", key, container, why=why, forced=live is not None)
        elif place in seen.vanished and place not in seen.dead:
            yield Action("remake", key, container, why="its group is gone, or its process in another ctrl_group")
        elif place in seen.unindexed and place not in seen.dead:
            yield Action("remake", key, container, why="nothing tells its poststop of this key")
        elif place in seen.outside:
            # Before the first one is in it the begin has to be read, as createRuntime does.
            verb = "adopt" if _has_begun(state, container) or not has_snapshots else "remake"
            yield Action(verb, key, container, why=f"{seen.outside[place]} of its threads are not in its group")
    if not state.members and (live is None or key not in live):
        if state.lingering_since is None:
            yield Action("end", key, why="it has no members", forced=live is not None)
        elif key in seen.lingered or live is not None:
            why = "it has lingered for long enough, or its pod is gone"
            yield Action("end", key, why=why, forced=live is not None)


def _has_begun(state: KeyState, container: str) -> bool:
    """Whether the counters of a member's group were read."""
    return any(it.path == state.members[container].group and it.begin is not None for it in state.groups)


def _of_groups(seen: Survey, live: Collection[str] | None) -> Iterator[Action]:
    for (key, path), strangers in seen.strangers.items():
        names = ", ".join(map(str, sorted(strangers)[:5]))
        yield Action("evict", key, path=path, why=f"threads that are none of its containers': {names}")
    completed = {group.path for state in seen.states.values() if state.completed_at for group in state.groups}
    for (key, path), is_lived_in in seen.orphans.items():
        if is_lived_in and path in completed:
            continue  # somebody outlived the last member: the group goes when he does
        if is_lived_in:
            yield Action("rebuild", path=path, why="nothing is recorded of this group, and somebody lives in it")
        elif live is None or key not in live:
            yield Action("remove", path=path, why="nothing is recorded of this group, and nobody is in it")


def names_process(failure: Failure) -> bool:
    """Whether a failure's record says which process it is of: a pid alone may have been reused."""
    return failure.pid is not None and (failure.starttime is not None or failure.boottime is not None)


def _of_failure(seen: Survey, failure: Failure) -> Iterator[Action]:
    if failure.container in seen.gone:
        yield Action("forget", container=failure.container, why="it failed, and is gone")
    elif seen.mounted and names_process(failure) and not (failure.monitored or failure.reason in _NOT_AGAIN):
        yield Action("retry", container=failure.container, why=f"it was not monitored ({failure.reason}), and runs")
