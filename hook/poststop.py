# SPDX-License-Identifier: Apache-2.0
"""poststop: a container leaves its key, and the record of its failure, if there is one, goes.

Read `poststop`, then `key.remove_members`, the transitions of `life_end` that it asks for, and
`key.settle` (the order of writes).
"""

from __future__ import annotations

from hook import key, names, system
from hook.models import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.context import Context
    from hook.models import Member


def poststop(context: Context, container: str) -> None:
    """Remove a container from its key; with the last one go its mon_groups, state and lock.

    For an unknown container, or one that was removed before, this is a no-op. A member whose
    process is alive stays: Podman may call this late, when the container is already running again;
    and two runtimes, or two root directories of one, may each have a container of this ID. Raises
    HookError, OSError.
    """
    if context.run.has(Failure, container):
        from hook import unmonitored

        unmonitored.forget_failure(context, container)
    name = context.run.read_index(container)
    if name is None:
        return
    with context.run.lock(name, system.monotonic() + context.options.lock_timeout) as locked:
        members = locked.state.members if locked.state else {}
        member = members.get(container)
        if member is not None and not _is_meant(context, container, member):
            return
        lives = member is not None and system.is_dead(member.pid, member.starttime) is False
        leaving = [] if lives else [container]
        for other, displaced in members.items():
            if other.startswith(container + "@") and system.is_dead(
                displaced.pid, displaced.starttime
            ):
                leaving.append(other)
        if leaving:
            key.remove_members(
                context, locked, leaving, stops=member is not None and container in leaving
            )


def _is_meant(context: Context, container: str, member: Member) -> bool:
    """Whether this call's `--containers` covers the container, by its recorded cgroup:
    its annotations may be gone.
    """
    maker = names.find_maker(names.find_own(member.cgroup or "", container), container)
    return maker is None or names.concerns(context.options.containers, is_podmans=maker == "libpod")
