# SPDX-License-Identifier: Apache-2.0
"""The line in the history for a key that ends: whose it was, from when to when, and what it used.

A line that cannot be written is owed: it stays in the key's record until the key's next end, or reconcile, writes it.
Imported only when a key ends whose record names a file. node_models.Job is the model of a line.
"""

from __future__ import annotations

from hook import counters, jsontext, record, system
from hook.store import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import KeyState, MonGroup
    from hook.store import RunDir

_PRIME = 2**64 - 59  # what a number leaves when divided by it is its hash; to import a hash function takes longer
_IN_PARTS = ("joules", "farads")  # units whose counters have decimals


def settle(run: RunDir, path: str, state: KeyState, after: KeyState | None, over: list[MonGroup]) -> KeyState | None:
    """Write the line of a key whose last groups are `over`, after those that it owes. Returns its state after that.

    `after`: its state without them; None: nothing is kept of it. There is no line for a key without a member in any
    group. A failure is reported, and stops nothing: the key stays on record, completed, with the lines.
    """
    lines = [*(state.owed.lines if state.owed is not None else [])]
    if _had_member(state, over):
        lines.append(jsontext.dumps(_make_line(state, over)))
    if not lines:
        return after
    try:
        system.append_lines(path, lines)
    except OSError as error:
        from hook import damage

        if after is None:
            after = record.complete_key(state, [], at=system.now_utc(), boottime=system.boottime())
            after = record.forget_snapshot(after)
        return damage.keep_lines(run, path, after, lines, error)
    return replace(after, owed=None) if after is not None and state.owed is not None else after


def _had_member(state: KeyState, over: list[MonGroup]) -> bool:
    """Whether a member was in a group of the present incarnation.

    A group without a begin was never used, nor was one without an inode if no member has left.
    """
    before = state.returned.use.before if state.returned is not None else {}
    has_left = bool(state.left)
    return any(
        (it.begin is not None and (it.inode is not None or has_left)) or it.before not in ({}, before) for it in over
    )


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
