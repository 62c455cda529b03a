# SPDX-License-Identifier: Apache-2.0
"""The line in the history for a key that ends: whose it was, from when to when, and what it used.

Imported only when a key ends whose record names a file.
The model of a line is Job of hook/node/models.py.
"""

from __future__ import annotations

from hook import counters, formats
from hook.models import Owed, OwedLines
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.formats import Moment
    from hook.models import KeyState, MonGroup


def make_line(state: KeyState, ended: list[MonGroup], now: Moment, node: str) -> list[str]:
    """Make the line of a key whose last groups have ended;
    of one without a member in any group there is none.
    """
    if not _had_member(state, ended):
        return []
    return [formats.dumps(_describe_run(state, ended, now, node))]


def format_written(unix: float) -> str:
    """Format the time at which a line is made: of two lines of one run the later one counts."""
    return f"{formats.format_utc(unix)[:-1]}.{int(unix % 1 * counters.MILLION):06d}Z"


def _had_member(state: KeyState, ended: list[MonGroup]) -> bool:
    """Whether a member may have been in a group in this run: one without a begin was never used."""
    before = state.returned.use.before if state.returned is not None else {}
    return any(
        group.begin is not None
        or any(
            text != before.get(counter, counters.EARLIER) for counter, text in group.before.items()
        )
        for group in ended
    )


def _find_begin(state: KeyState) -> tuple[str, float | None]:
    """Return when the run of a key began, by both clocks."""
    if state.returned is not None:
        return state.returned.at, state.returned.boottime
    return state.created_at, state.created_boottime


def name_run(state: KeyState) -> str:
    """Return the ID of a key's run, which its line has."""
    at, boottime = _find_begin(state)
    name = f"{state.key} {state.created_at} {state.created_boottime} {at} {boottime}"
    return formats.hash_of(name.encode("utf-8", "replace"))


def _describe_run(
    state: KeyState, ended: list[MonGroup], now: Moment, node: str
) -> dict[str, object]:
    returned, begin, (boottime, unix) = state.returned, _find_begin(state), now
    # What lingered has done nothing since then.
    end = state.lingering_since if state.lingering_since is not None else boottime
    known, unknown = _sum_use(state, ended)
    late = state.late_cpu - (returned.late_cpu if returned is not None else 0.0)
    return {
        "version": 1,
        "id": name_run(state),
        "node": node,
        "written": format_written(unix),
        "kind": state.kind,
        "key": state.key,
        "namespace": state.pod_namespace,
        "pod": state.pod_name,
        "labels": state.job_labels,
        "containers": [{"id": container, "name": name} for container, name in state.left.items()],
        "more_containers": state.left_more,
        "begin": begin[0] or None,
        "end": formats.format_utc(unix - (boottime - end)),
        "seconds": None if begin[1] is None else round(max(end - begin[1], 0.0), 3),
        # Of a job, how many processes joined, one after another or side by side.
        "runs": max(state.runs, len(state.left) + state.left_more)
        if state.kind == "job"
        else state.runs,
        "use": _to_units(known),
        "unknown": sorted(unknown),
        "late_cpu_seconds": round(max(late, 0.0), 3),
        "reason": None,
    }


def sum_run(state: KeyState, groups: list[MonGroup]) -> dict[str, float]:
    """Return the known use of a run that ends with these groups, as its line has it."""
    return _to_units(_sum_use(state, groups)[0])


def _to_units(known: dict[str, int]) -> dict[str, float]:
    return {event: max(value, 0) / counters.MILLION for event, value in sorted(known.items())}


def _sum_use(state: KeyState, ended: list[MonGroup]) -> tuple[dict[str, int], set[str]]:
    """Return the use of this run by event, in millionths,
    and the events of whose use a part is unknown.

    That is the use of the key less what it had used before it came back.
    """
    known: dict[str, int] = {}
    unknown: set[str] = set()
    for sign, groups in (
        (1, ended),
        (-1, [state.returned.use] if state.returned is not None else []),
    ):
        for group in groups:
            for counter, (value, _) in counters.measure(group, group.end or {}).items():
                event = counter.rpartition("/")[2]
                if value is not None:
                    known[event] = known.get(event, 0) + sign * value
    for group in ended:
        unknown.update(
            counter.rpartition("/")[2] for counter in counters.list_unknown(group, group.end or {})
        )
    return known, known.keys() | unknown if state.taken else unknown


# --- The lines that a key owes to their files


def owe(state: KeyState, lines: list[str]) -> KeyState:
    """Add lines of history that a key owes to its file;
    `settle` tries to write all that it owes.
    """
    if not lines:
        return state
    owed = list_owed(state)
    if owed and owed[-1].file == state.history_file:
        lines = [*owed.pop().lines, *lines]
    return set_owed(
        state, [*owed, OwedLines(file=state.history_file, lines=lines, why="not tried yet")]
    )


def list_owed(state: KeyState) -> list[OwedLines]:
    """List the lines of history that a key owes, the oldest first,
    by the files that they belong to.
    """
    owed = state.owed
    if owed is None:
        return []
    return [
        OwedLines(file=owed.file or state.history_file, lines=owed.lines, why=owed.why),
        *owed.others,
    ]


def count_owed(state: KeyState) -> int:
    """Count the lines of history that a key owes."""
    return sum(len(owed.lines) for owed in list_owed(state))


def set_owed(state: KeyState, owed: list[OwedLines]) -> KeyState:
    """Set the lines of history that a key owes, the oldest first."""
    if not owed:
        return replace(state, owed=None)
    first, *others = owed
    return replace(
        state, owed=Owed(lines=first.lines, why=first.why, file=first.file, others=others)
    )
