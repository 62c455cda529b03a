# SPDX-License-Identifier: Apache-2.0
"""The line in --history for a key that ends: whose it was, from when to when, and what it used.

Imported only when a key ends, and only with that option. node_models.Job is the model of a line.
"""

from __future__ import annotations

from hook.base import counters, jsontext, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, MonGroup
    from hook.state.store import RunDir

_PRIME = 2**64 - 59  # what a number leaves when divided by it is its hash; to import a hash function takes longer
_IN_PARTS = ("joules", "farads")  # units whose counters have decimals


def append_end(run: RunDir, path: str, state: KeyState, over: list[MonGroup]) -> None:
    """Append the line of a key whose last groups are `over`. A failure is reported, and stops nothing.

    There is none for a pod whose hook had no --history, nor for a key without a member in any group.
    """
    if not (state.history or state.kind != "pod") or not _had_member(state, over):
        return
    try:
        system.append_line(path, jsontext.dumps(_make_line(state, over)))
    except OSError as error:
        from hook.base import explain
        from hook.base.errors import HookError, Reason

        problem = f"could not add what key {state.key} used to {path}"
        tried = f"{error.strerror}: {explain.errno_name(error)}"
        hint = "its directory must exist, be writable and have room; what the key used is kept until --snapshot-ttl"
        run.complaints.append(HookError(Reason.IO, problem, tried=tried, hint=hint))


def _had_member(state: KeyState, over: list[MonGroup]) -> bool:
    """Whether a member was in a group of the present incarnation. One without a begin or an inode was made in vain."""
    before = state.returned.use.before if state.returned is not None else {}
    return any((it.begin is not None and it.inode is not None) or it.before not in ({}, before) for it in over)


def _make_line(state: KeyState, over: list[MonGroup]) -> dict[str, object]:
    returned = state.returned
    begin = (returned.at, returned.boottime) if returned is not None else (state.created_at, state.created_boottime)
    now = system.boottime()
    # What lingered has done nothing since then.
    end = state.lingering_since if state.lingering_since is not None else now
    name = f"{state.key} {state.created_at} {state.created_boottime} {begin[0]} {begin[1]}"
    known, unknown = _sum_use(state, over)
    late = state.late_cpu - (returned.late_cpu if returned is not None else 0.0)
    return {
        "version": 1,
        "id": f"{int.from_bytes(name.encode('utf-8', 'replace'), 'big') % _PRIME:016x}",
        "kind": state.kind,
        "key": state.key,
        "namespace": state.pod_namespace,
        "pod": state.pod_name,
        "containers": [{"id": container, "name": name} for container, name in state.left.items()],
        "more_containers": state.left_more,
        "begin": begin[0] or None,
        "end": system.format_utc(system.unix_time() - (now - end)),
        "seconds": None if begin[1] is None else round(max(end - begin[1], 0.0), 3),
        "lives": state.lives,
        "use": {event: _to_base_unit(event, value) for event, value in sorted(known.items())},
        "unknown": sorted(unknown),
        "late_cpu_seconds": round(max(late, 0.0), 3),
    }


def _sum_use(state: KeyState, over: list[MonGroup]) -> tuple[dict[str, int], set[str]]:
    """The use of the present incarnation by event, in millionths, and the events of whose use a part is unknown.

    It is the use of the key less what it had used before it came back. Of a counter whose use before that is known only
    in part, this use counts as known in part, too.
    """
    known: dict[str, int] = {}
    unknown: set[str] = set()
    for sign, groups in ((1, over), (-1, [state.returned.use] if state.returned is not None else [])):
        for group in groups:
            for counter, (value, is_all) in counters.measure(group, group.end or {}).items():
                event = counter.rpartition("/")[2]
                if value is not None:
                    known[event] = known.get(event, 0) + sign * value
                if not is_all or state.taken:
                    unknown.add(event)
    return known, unknown


def _to_base_unit(event: str, millionths: int) -> float:
    is_decimal = counters.EVENTS[event].unit in _IN_PARTS
    millionths = max(millionths, 0)
    return millionths / counters.MILLION if is_decimal else millionths // counters.MILLION
