# SPDX-License-Identifier: Apache-2.0
"""What createRuntime refuses: a process that has ended, or is of another key,
and labels of another run.

Imported only in these cases, when a container changes its key, and by the tools.
"""

from __future__ import annotations

from hook import identity, key, life_turns, reclaim, system
from hook.context import displaces
from hook.errors import HookError, Reason
from hook.models import KeyState
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.context import Context
    from hook.identity import Container, Key
    from hook.life import Attempt


def explain_no_starttime(pid: int) -> HookError:
    """Say why the start time of a process is unknown: `task_gone`,
    or `io` if /proc cannot be read.
    """
    try:
        system.starttime(pid)
    except (OSError, ValueError, IndexError) as error:
        return HookError(Reason.IO, "unreadable process", pid=pid, tried=error)
    return HookError(Reason.TASK_GONE, "no process", pid=pid)


# --- A process is a member of one key


def leave_other_keys(
    context: Context, former: str | None, container: Container, own: Key, other_keys: Iterable[str]
) -> None:
    """Let a container leave the key that its ID had before, if any;
    refuse its process if it is in one of the others.

    Of a new container the kernel shows that: see refuse_other_group. A hook lists no keys.
    """
    if former is not None:
        _give_up(context, former, container, own)
    _refuse_second_key(context, container, own[0], other_keys)


def _refuse_second_key(
    context: Context, container: Container, own: str, keys: Iterable[str]
) -> None:
    """Raise HookError `usage` if the process of a container is a member of one of these
    `keys` besides its `own`.

    Each of two keys would move it to its own group, and be charged for a part of its use. The kinds
    of both do not matter, nor who brings the process in. Tools, which know less of a process, fail
    (OSError) if a key cannot be read; a damaged one is rebuilt from its group.
    """
    for name in keys:
        state = None
        try:
            state = context.run.read(KeyState, name) if name != own else None
        except ValueError:
            pass
        except OSError:
            if not container.is_new:
                raise
        members = state.members if state is not None else {}
        for other, member in members.items():
            if identity.is_member(container, member):
                raise HookError(
                    Reason.USAGE, "second key", pid=container.pid, member=other, key=name
                )


def refuse_other_group(context: Context, attempt: Attempt, mon_group: str) -> None:
    """Raise HookError `usage` if a process is a member of the key whose
    mon_group the kernel shows it in.

    A container that a job or another container has started is in that one's group, and no member.
    """
    name = reclaim.parse_key(context, mon_group)
    _refuse_second_key(context, attempt.container, attempt.key, [name] if name is not None else [])


def _give_up(context: Context, former: str, container: Container, own: Key) -> None:
    """Remove a container from its former key.

    A member of the same ID that is another live process stays.

    A process that joins a job leaves none: this raises HookError `usage`.
    """
    with context.run.lock(former, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        member = state.members.get(container.id) if state else None
        name, kind = own
        if kind == "job":
            _refuse_second_key(context, container, name, [former])
        if state is not None and member is not None and displaces(container, member):
            key.settle(
                context,
                locked,
                replace(state, members=life_turns.displace(state.members, container.id)),
            )
        else:
            key.remove_members(context, locked, [container.id])


def refuse_labels(job_labels: dict[str, str], state: KeyState) -> None:
    """Raise HookError `bad_key` about labels that the present run of a job has not begun with.

    If its members are all dead (`io`), the run ends at the next reconcile, which then tries again.
    """
    given, known = (
        ", ".join(map("=".join, each.items())) or "none" for each in (job_labels, state.job_labels)
    )
    dead = (system.is_dead(member.pid, member.starttime) for member in state.members.values())
    raise HookError(
        Reason.IO if all(dead) else Reason.BAD_KEY,
        "other labels",
        key=state.key,
        given=given,
        known=known,
    )
