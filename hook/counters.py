# SPDX-License-Identifier: Apache-2.0
"""The events of resctrl, and how use is computed from counters. Nothing here touches a file.

A counter is named `<domain>/<event>`, its path below mon_data; its value is the kernel's text.
Numbers are computed as integers, in millionths of their unit: the counters of AET (Intel's
application energy telemetry) have six decimals.

Source: Documentation/filesystems/resctrl.rst ("RMID", "mon_data"),
and for what is not in it the Intel AET event XML.
"""

from __future__ import annotations

from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import MonGroup

MILLION = 10**6
UNKNOWN = "Unavailable"
"""In a `before`: part of the use is lost (MonGroup.known has the rest).

The kernel uses the same word.
"""
EARLIER = "Unavailable earlier"
"""In a `before`: so it is, but of earlier runs of the key alone. Consumers see UNKNOWN."""
UNASSIGNED = "Unassigned"  # the kernel's word for an event of a group that has no hardware counter
_AET = "mon_PERF_PKG_"  # the domains of application energy telemetry: one for each package
_TRAFFIC = ("/mbm_total_bytes", "/mbm_local_bytes")
_LONGEST = 30


SUMS = (
    "mbm_total_bytes",
    "mbm_local_bytes",
    "core_energy",
    "activity",
    "stalls_llc_hit",
    "stalls_llc_miss",
    "c1_res",
    "c6_res",
    "unhalted_core_cycles",
    "unhalted_ref_cycles",
    "uops_retired",
)
"""The events whose counters are sums, so that their differences are use. `show` describes them."""


def is_cumulative(counter: str) -> bool:
    """Whether a counter is a sum, so that its differences are use."""
    return counter.rpartition("/")[2] in SUMS


def parse_number(text: str | None) -> int | None:
    """Parse a counter's text, to millionths.

    Returns None for `Unavailable`, `Error`, `Unassigned` and no file.
    """
    if text is None or len(text) > _LONGEST:
        return None
    # Most counters: those of AET's energy alone have decimals.
    if text.isdecimal() and text.isascii():
        return int(text) * MILLION
    whole, _, fraction = text.strip().partition(".")
    digits = whole + fraction
    if not digits.isdecimal() or not whole or not digits.isascii():
        return None
    return int(whole + (fraction + "000000")[:6])


def pick_traffic(texts: dict[str, str]) -> dict[str, int]:
    """Parse the counters of memory traffic that are numbers, to millionths."""
    parsed = (
        (counter, parse_number(text))
        for counter, text in texts.items()
        if counter.endswith(_TRAFFIC)
    )
    return {counter: value for counter, value in parsed if value is not None}


def format_number(value: int | None, unknown: str = UNKNOWN) -> str:
    """Format millionths as a counter's text, with six decimals or none."""
    if value is None:
        return unknown
    whole, fraction = divmod(value, MILLION)
    return f"{whole}.{fraction:06d}" if fraction else str(whole)


def has_no_data(counter: str, text: str | None) -> bool:
    """Whether no task has run on an AET counter's package with the group's RMID,
    so that its use there is 0.

    The counter says so by `Unavailable`: the hardware keeps DATA_VALID for each RMID of each
    package (arch/x86/kernel/cpu/resctrl/intel_aet.c, intel_aet_read_event).
    """
    return text == UNKNOWN and counter.startswith(_AET)


def is_untracked(counter: str, text: str | None) -> bool:
    """Whether the hardware does not count an RMID's memory traffic in this domain now,
    as AMD's says of an idle one.

    AMD CPUs track fewer RMIDs than they have. Of another one the hardware says RMID_VAL_UNAVAIL
    (arch/x86/kernel/cpu/resctrl/monitor.c), and the kernel prints `Unavailable`; the sum of a
    ctrl_group lacks it (commit 064855a). Once it is tracked again, the hardware counts from 0, and
    the kernel adds that to what the counter showed before (commit 15292f1).
    """
    return text == UNKNOWN and counter.endswith(_TRAFFIC)


def starts_from_nothing(counter: str, begin: str | None, now: str | None) -> bool:
    """Whether a use is counted from 0, because its RMID had no data at
    the begin, and has some now.
    """
    return now != UNKNOWN and (has_no_data(counter, begin) or is_untracked(counter, begin))


def compute_use(counter: str, begin: str | None, now: str | None) -> int | None:
    """The use in one directory, in millionths: the end, or the live value, less the begin.

    The use is unknown (None) if one of the two is no number, or the counter ran
    backwards. So is that of an AET counter that has no data any more: an RMID keeps its
    data as long as it is the group's.
    """
    if has_no_data(counter, begin) and has_no_data(counter, now):
        return 0
    first = 0 if starts_from_nothing(counter, begin, now) else parse_number(begin)
    last = parse_number(now)
    return None if first is None or last is None or last < first else last - first


def measure(group: MonGroup, now: dict[str, str]) -> dict[str, tuple[int | None, bool]]:
    """Return the use of a key in one ctrl_group: the known part, in millionths,
    and whether that is all.

    It has each cumulative counter that any directory of the group had. The known part is the sum
    over the directories whose use is known, this one up to `now`, or None if none is. A counter
    that appeared only after `begin` was read (CPUs came online) has no known start, so its use is
    unknown.
    """
    uses: dict[str, tuple[int | None, bool]] = {}
    for counter, (present, is_whole) in measure_directory(group, now).items():
        known, is_all = present, is_whole
        if counter in group.before:  # else this is the first directory, which is the most frequent
            before = parse_number(group.before[counter])
            is_all = is_whole and before is not None
            if before is None:
                before = parse_number(group.known.get(counter))
            known = present if before is None else before + (present or 0)
        uses[counter] = known, is_all
    return uses


def measure_directory(group: MonGroup, now: dict[str, str]) -> dict[str, tuple[int | None, bool]]:
    """The use in the present directory, by the same counters and in the same form as `measure`.

    Of memory traffic that is untracked now, what is on record is known: what was used until the key
    began to linger. A counter of it that is lower than at its begin has counted from 0 since (see
    note_stops), so its value is known.
    """
    begin, now = (group.begin, now) if group.begin is not None else ({}, {})
    uses: dict[str, tuple[int | None, bool]] = {}
    for counter in filter(is_cumulative, {**group.before, **begin, **now}):
        first, text = begin.get(counter), now.get(counter)
        if counter not in begin and counter not in now:
            uses[counter] = 0, True
        elif is_untracked(counter, text) and (
            is_untracked(counter, first) or parse_number(first) is not None
        ):
            uses[counter] = compute_use(counter, first, (group.last or {}).get(counter)) or 0, False
        else:
            use = compute_use(counter, first, text)
            is_counted = counter.endswith(_TRAFFIC) and parse_number(first) is not None
            restarted = parse_number(text) if is_counted else None
            uses[counter] = use if use is not None else restarted, use is not None
    return uses


def list_unknown(group: MonGroup, now: dict[str, str]) -> set[str]:
    """List the counters of whose use in this run of the key a part is unknown,
    in this directory or a former one.
    """
    uses = measure_directory(group, now).items()
    return {
        counter
        for counter, (_, is_all) in uses
        if not is_all or group.before.get(counter) == UNKNOWN
    }


# --- How use goes from one directory of a group to the next, and from one group to another


def add_late(group: MonGroup, now: dict[str, str]) -> MonGroup:
    """Give counters that appeared after the begin was read their value in `now` as begin.

    Their use so far is unknown, but 0 if they have no data yet. Otherwise consumers would take the
    sum over the other domains for the whole use.
    """
    begin = group.begin
    if begin is None or begin.keys() >= now.keys():
        return group
    late = {counter: text for counter, text in now.items() if counter not in begin}
    lost = [
        counter
        for counter, text in late.items()
        if is_cumulative(counter) and not has_no_data(counter, text)
    ]
    return _mark_lost(replace(group, begin={**begin, **late}), lost, UNKNOWN)


def _mark_lost(group: MonGroup, lost: list[str], word: str) -> MonGroup:
    """Mark counters of which a part of the use in former directories is unknown."""
    known = {
        counter: group.before[counter]
        for counter in lost
        if parse_number(group.before.get(counter)) is not None
    }
    return replace(
        group, before={**group.before, **dict.fromkeys(lost, word)}, known={**group.known, **known}
    )


def note_stops(group: MonGroup, now: dict[str, str], former: dict[str, str]) -> MonGroup:
    """Keep what was counted of memory traffic whose counter is gone, is unassigned,
    or has counted from 0 since.

    `former` has the numbers of an earlier look. The kernel sets a counter to 0 when it assigns it
    to a group, and when its domain comes online (fs/resctrl/monitor.c, rdtgroup_assign_cntr;
    rdtgroup.c, mon_add_all_files). So a later number that is lower has started again. One that is
    not lower may have gone on: it begins with the last.
    """
    begin, last, tops = group.begin or {}, pick_traffic(now), pick_traffic(group.begin or {})
    tops.update((counter, top) for counter, top in pick_traffic(former).items() if counter in tops)
    gone = [
        counter
        for counter in tops
        if counter not in last and now.get(counter) in (None, UNASSIGNED)
    ]
    again = [counter for counter in tops if counter in last and last[counter] < tops[counter]]
    lost = {counter: format_number(tops[counter]) for counter in [*gone, *again]}
    known = {
        counter: format_number(use)
        for counter, (use, _) in measure(group, lost).items()
        if counter in lost and use
    }
    lost.update(dict.fromkeys(again, "0"))
    after = _mark_lost(replace(group, begin={**begin, **lost}), [*lost], UNKNOWN)
    after = replace(
        after, known={**after.known, **known}, last=group.last and {**group.last, **lost}
    )
    return group if after == group else after


def begin_group(group: MonGroup, counters_now: dict[str, str], *, is_late: bool) -> MonGroup:
    """Set the begin of a new directory, or of one that may have had members before (`is_late`).

    The use until now is unknown of a group that is late, and of counters that no former directory
    had, since resctrl was mounted again with more events: that of this run or, if this is its first
    directory, of earlier ones.
    """
    lost = [
        counter
        for counter in filter(is_cumulative, counters_now)
        if is_late or counter not in group.before
    ]
    word = UNKNOWN if is_late or group.inode is not None else EARLIER
    return _mark_lost(replace(group, begin=counters_now), lost, word)


def mark_late(group: MonGroup) -> MonGroup:
    """Mark that a process has joined a group late:
    what it had used before is in no counter of it.
    """
    return _mark_lost(group, [*filter(is_cumulative, group.begin or {})], UNKNOWN)


def inherit(group: MonGroup, ended: list[MonGroup]) -> MonGroup:
    """Add the use of groups that have ended to a group's `before`."""
    if not any(other.begin or other.before for other in ended):
        return group
    return replace(group, **carry([replace(group, begin=None, end=None), *ended]))


def inherit_run(group: MonGroup, ended: list[MonGroup], *, is_partial: bool) -> MonGroup:
    """Add the use of a run of the key that is over; what is unknown of it,
    or all if it `is_partial`, is EARLIER.
    """
    heir = inherit(group, ended)
    lost = [
        counter for counter, text in heir.before.items() if is_partial or parse_number(text) is None
    ]
    return _mark_lost(heir, lost, EARLIER)


def carry(groups: list[MonGroup]) -> dict[str, dict[str, str]]:
    """Sum the use of groups that are over, as `before` and `known` of their successor.

    Groups of several ctrl_groups make one sum: they have the same domains,
    and the use is the key's.
    """
    sums: dict[str, int | None] = {}
    known: dict[str, int] = {}
    unknown = {counter for group in groups for counter in list_unknown(group, group.end or {})}
    for group in groups:
        for counter, (value, is_all) in measure(group, group.end or {}).items():
            former = sums.get(counter, 0)
            sums[counter] = (
                former + value if is_all and former is not None and value is not None else None
            )
            if value is not None:
                known[counter] = known.get(counter, 0) + value
    return {
        "before": {
            name: format_number(sums[name], UNKNOWN if name in unknown else EARLIER)
            for name in sums
        },
        "known": {
            counter: format_number(known[counter]) for counter in known if sums[counter] is None
        },
    }
