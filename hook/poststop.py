# SPDX-License-Identifier: Apache-2.0
"""poststop: a container leaves its key, and the record of its failure, if there is one, goes.

Read `poststop`, then `key.remove_members`, the transitions of `life_end` that it asks for, and
`key.settle` (the order of writes).
"""

from __future__ import annotations

from hook import identity, key, system
from hook.errors import HookError
from hook.models import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.context import Context
    from hook.identity import Container
    from hook.models import Member
    from hook.store import RunDir

FAILURE_PATIENCE = 1.0
"""Seconds: the longest wait for the lock of a failure's record,
which is that of a key with the container's ID.
"""


def poststop(context: Context, container: str) -> None:
    """Remove a container from its key; with the last one go its mon_groups, state and lock.

    For an unknown container, or one that was removed before, this is a no-op. A member whose
    process is alive stays: Podman may call this late, when the container is already running again;
    and two runtimes, or two root directories of one, may each have a container of this ID. Raises
    HookError, OSError.
    """
    forget_failure(context, container)
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


def forget_failure(context: Context, container: str, process: Container | None = None) -> None:
    """Remove the record of a container's failure,
    unless it is of a process that may be alive and is not this one.

    What ran unmonitored has its line in the history first. `process` is monitored now.
    """
    run = context.run
    if not run.has(Failure, container):
        return
    try:
        # Under the lock of its writers: the container may start again and fail at this moment,
        # and that record stays.
        with run.lock(container, system.monotonic() + FAILURE_PATIENCE):
            if not has_live_failure(run, container, process.pid if process is not None else None):
                from hook import unmonitored

                unmonitored.close(context, container, process)
    except (HookError, OSError) as error:  # reconcile removes it
        run.complain(
            "the record of a failed start stays until its line of history can be written", error
        )


def has_live_failure(run: RunDir, container: str, pid: int | None = None) -> bool:
    """Whether a process other than `pid` that failed to be monitored under this ID may be alive."""
    try:
        failure = run.read(Failure, container)
    except ValueError:  # damaged, or of a newer version
        return False
    except OSError:  # reconcile removes it after a day
        return True
    if failure is None or failure.pid is None or failure.pid == pid:
        return False
    return system.is_dead(failure.pid, failure.starttime) is False


def _is_meant(context: Context, container: str, member: Member) -> bool:
    """Whether this call's `--containers` covers the container, by its recorded cgroup:
    its annotations may be gone.
    """
    maker = identity.find_maker(identity.find_own(member.cgroup or "", container), container)
    return maker is None or identity.concerns(context.options, is_podmans=maker == "libpod")
