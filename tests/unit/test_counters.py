# SPDX-License-Identifier: Apache-2.0
"""What counters mean, and the arithmetic of use: exact, and unknown rather than wrong."""

from __future__ import annotations

from decimal import Decimal
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook import counters, life, life_end, life_turns, line
from hook.counters import add_late, begin_group, inherit
from hook.life_end import end_group
from hook.models import KeyState, MonGroup
from hook.show.snapshot import EVENTS
from hook.validation import replace

ENERGY = "mon_PERF_PKG_00/core_energy"
TRAFFIC = "mon_L3_00/mbm_total_bytes"
OCCUPANCY = "mon_L3_00/llc_occupancy"
PATH = "/sys/fs/resctrl/mon_groups/oci-c1"
WORDS = [
    "Unavailable",
    "Error",
    "Unassigned",
    "",
    "-1",
    "1e3",
    ".5",
    "0x1",
    "1 2",
    "\u0661",
    "1" * 40,
    "1_0",
]

Counters = Optional[dict[str, str]]

amounts = st.integers(0, 2**63)
texts = st.one_of(
    amounts.map(str), amounts.map(lambda amount: f"{amount // 10**6}.{amount % 10**6:06d}")
)


def group(
    begin: Counters = None, end: Counters = None, before: Counters = None, known: Counters = None
) -> MonGroup:
    return MonGroup(
        path=PATH, ctrl_group="/", begin=begin, end=end, before=before or {}, known=known or {}
    )


def lifetime(group: MonGroup, now: dict[str, str]) -> dict[str, int | None]:
    """The use that is known whole; None: a part is unknown."""
    return {
        counter: known if is_all else None
        for counter, (known, is_all) in counters.measure(group, now).items()
    }


def at_least(group: MonGroup, now: dict[str, str]) -> dict[str, int | None]:
    return {counter: known for counter, (known, _is_all) in counters.measure(group, now).items()}


UNITS = {
    "bytes": ["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"],
    "joules": ["core_energy"],
    "farads": ["activity"],
    "cycles": [
        "stalls_llc_hit",
        "stalls_llc_miss",
        "c1_res",
        "c6_res",
        "unhalted_core_cycles",
        "unhalted_ref_cycles",
    ],
    "operations": ["uops_retired"],
}


def test_what_is_counted_in_what() -> None:
    """Scripts and dashboards go by it: it is in `list --json` and in the help of the metrics."""
    units = {name: unit for unit, events in UNITS.items() for name in events}
    assert {name: event.unit for name, event in EVENTS.items()} == units
    assert all(event.meaning for event in EVENTS.values())
    assert [name for name, event in EVENTS.items() if event.gauge] == ["llc_occupancy"]
    assert {*counters.SUMS} == EVENTS.keys() - {"llc_occupancy"}


@given(texts)
def test_a_number_is_exact(text: str) -> None:
    value = counters.parse_number(text)
    assert value is not None
    assert Decimal(value) == Decimal(text) * counters.MILLION
    assert counters.parse_number(counters.format_number(value)) == value


@pytest.mark.parametrize("word", WORDS)
def test_what_the_kernel_never_writes_is_no_number_and_never_zero(word: str) -> None:
    assert counters.parse_number(word) is None
    assert counters.compute_use(TRAFFIC, word, "5") == (
        5 * counters.MILLION if word == counters.UNKNOWN else None
    )
    assert counters.compute_use(TRAFFIC, "5", word) is None
    assert counters.compute_use(ENERGY, "5", word) is None
    assert (counters.parse_number(None), counters.format_number(None)) == (None, counters.UNKNOWN)


@pytest.mark.parametrize(
    ("counter", "begin", "now", "use", "is_from_nothing"),
    [
        (TRAFFIC, "0", "9223372036854775807", 9_223_372_036_854_775_807_000_000, False),
        (TRAFFIC, "9223372036854775807", "9223372036854775806", None, False),  # it ran backwards
        (ENERGY, "2.5", "2.500001", 1, False),
        (ENERGY, "2.5", "2.5", 0, False),
        (ENERGY, "Unavailable", "2.5", 2_500_000, True),
        (ENERGY, "Unavailable", "0", 0, True),
        (ENERGY, "Unavailable", "Unavailable", 0, False),
        (ENERGY.replace("core_energy", "an_event_to_come"), "Unavailable", "Unavailable", 0, False),
        (ENERGY, "0", "Unavailable", None, False),
        (ENERGY, "2.5", "Unavailable", None, False),
        (ENERGY, "Unavailable", "Error", None, True),
        (ENERGY, "Unavailable", None, None, True),
        (ENERGY, "Error", "Unavailable", None, False),
        (ENERGY, "Error", "2.5", None, False),
        (ENERGY, None, "Unavailable", None, False),
        (TRAFFIC, "Unavailable", "2", 2_000_000, True),
        (TRAFFIC, "Unavailable", "Unavailable", None, False),
        (TRAFFIC, "2", "Unavailable", None, False),
        (TRAFFIC, "Unavailable", "Error", None, True),
        (TRAFFIC, "Unassigned", "2", None, False),
        (OCCUPANCY, "Unavailable", "2", None, False),
    ],
)
def test_use_is_the_difference_and_energy_of_a_package_on_which_the_rmid_never_ran_is_zero(
    counter: str, begin: str | None, now: str | None, use: int | None, is_from_nothing: bool
) -> None:
    assert counters.compute_use(counter, begin, now) == use
    assert counters.starts_from_nothing(counter, begin, now) == is_from_nothing


def test_a_life_on_one_package_of_two_adds_up_and_is_known() -> None:
    second = ENERGY.replace("00", "01")
    nothing = dict.fromkeys((ENERGY, second), "Unavailable")
    ended = end_group(group(begin=nothing), {**nothing, ENERGY: "2.5"})
    again = replace(inherit(group(), [ended]), begin={ENERGY: "2.5", second: "Unavailable"})
    assert (again.before, again.known) == ({ENERGY: "2.500000", second: "0"}, {})
    moved = {ENERGY: "3.5", second: "4"}
    assert lifetime(again, moved) == {ENERGY: 3_500_000, second: 4 * counters.MILLION}


def test_a_package_that_came_late_without_data_was_not_used() -> None:
    late = add_late(group(begin={TRAFFIC: "1"}), {TRAFFIC: "3", ENERGY: "Unavailable"})
    assert (late.begin, late.before) == ({TRAFFIC: "1", ENERGY: "Unavailable"}, {})
    assert lifetime(late, {TRAFFIC: "3", ENERGY: "5"})[ENERGY] == 5 * counters.MILLION


UNTRACKED = "Unavailable"


@pytest.mark.parametrize("traffic", [TRAFFIC, "mon_L3_00/mbm_local_bytes"])
@pytest.mark.parametrize(
    ("begin", "last", "now", "use"),
    [
        ("0", None, UNTRACKED, (0, False)),
        (UNTRACKED, None, UNTRACKED, (0, False)),
        (UNTRACKED, "7", UNTRACKED, (7, False)),
        ("3", "7", UNTRACKED, (4, False)),
        ("7", "3", UNTRACKED, (0, False)),  # it had counted from 0 again before it lingered
        ("3", UNTRACKED, UNTRACKED, (0, False)),
        ("3", "7", "9", (6, True)),
        (UNTRACKED, "7", "9", (9, True)),
        ("9", "12", "7", (7, False)),  # it has counted from 0 since
        ("Error", "7", UNTRACKED, (None, False)),
        (None, "7", UNTRACKED, (None, False)),
        ("3", "7", "Unassigned", (None, False)),
        ("3", "7", None, (None, False)),
    ],
)
def test_traffic_that_is_untracked_counts_as_what_is_on_record(
    traffic: str, begin: str | None, last: str | None, now: str | None, use: tuple[int | None, bool]
) -> None:
    """AMD: tests/fuse/test_untracked.py.

    Not a number of another kind, nor a counter that is gone.
    """
    texts = [{traffic: text} if text is not None else {} for text in (begin, last, now)]
    here = replace(group(begin={ENERGY: "1", **texts[0]}), last=texts[1])
    known = None if use[0] is None else use[0] * counters.MILLION
    assert counters.measure(here, texts[2])[traffic] == (known, use[1])
    known_before = (known or 0) + 5 * counters.MILLION
    assert counters.measure(replace(here, before={traffic: "5"}), texts[2])[traffic] == (
        known_before,
        use[1],
    )


def test_known_traffic_goes_on_over_lives_that_end_untracked() -> None:
    first = end_group(group(begin={TRAFFIC: "0"}), {TRAFFIC: "100"})
    second = end_group(
        replace(inherit(group(), [first]), begin={TRAFFIC: UNTRACKED}), {TRAFFIC: UNTRACKED}
    )
    third = replace(inherit(group(), [second]), begin={TRAFFIC: UNTRACKED})
    assert (third.before, third.known) == ({TRAFFIC: counters.UNKNOWN}, {TRAFFIC: "100"})
    assert counters.measure(third, {TRAFFIC: "7"}) == {TRAFFIC: (107 * counters.MILLION, False)}
    late = add_late(group(begin={ENERGY: "1"}), {ENERGY: "1", TRAFFIC: UNTRACKED})
    assert late.before == {TRAFFIC: counters.UNKNOWN}, (
        "of a domain that came late the use so far is unknown"
    )


def test_occupancy_and_what_nothing_is_known_of_do_not_add_up() -> None:
    begin = {OCCUPANCY: "1", "mon_L3_00/new_event": "1", TRAFFIC: "1"}
    assert set(lifetime(group(begin=begin), dict.fromkeys(begin, "2"))) == {TRAFFIC}


def test_what_is_unknown_once_stays_unknown_and_the_known_part_goes_on() -> None:
    lost = life_turns.remake_group(group(begin={TRAFFIC: "1"}, before={TRAFFIC: "100"}))
    assert (lost.before, lost.known) == ({TRAFFIC: counters.UNKNOWN}, {TRAFFIC: "100"})
    again = end_group(replace(lost, begin={TRAFFIC: "1"}), {TRAFFIC: "3"})
    assert lifetime(again, again.end or {}) == {TRAFFIC: None}
    assert at_least(again, again.end or {}) == {TRAFFIC: 102 * counters.MILLION}
    third = replace(inherit(group(), [again]), begin={TRAFFIC: "8"})
    assert (third.before, third.known) == ({TRAFFIC: counters.UNKNOWN}, {TRAFFIC: "102"})
    assert at_least(third, {TRAFFIC: "9"}) == {TRAFFIC: 103 * counters.MILLION}


@given(st.lists(st.tuples(amounts, st.booleans()), min_size=1, max_size=6))
def test_what_is_known_adds_up_over_lives_whose_end_was_read(lives: list[tuple[int, bool]]) -> None:
    here = group(begin={TRAFFIC: "0"}, end={TRAFFIC: "0"})
    for more, is_read in lives:
        here = replace(inherit(group(), [here]), begin={TRAFFIC: "7"})
        here = end_group(here, {TRAFFIC: str(7 + more)} if is_read else {})
    read = sum(more for more, is_read in lives if is_read) * counters.MILLION
    assert at_least(here, here.end or {}) == {TRAFFIC: read}
    is_whole = all(is_read for _, is_read in lives)
    assert lifetime(here, here.end or {}) == {TRAFFIC: read if is_whole else None}


def test_of_a_use_without_any_known_part_nothing_is_known() -> None:
    assert at_least(group(begin={ENERGY: "5"}), {ENERGY: "4"}) == {ENERGY: None}
    assert at_least(group(begin={ENERGY: "5"}), {ENERGY: "5"}) == {ENERGY: 0}


# --- Counters of memory traffic that stop, and start again from 0


@pytest.mark.parametrize(
    ("looks", "use"),
    [
        (["2000", "Unassigned", "300"], 2300),
        (["2000", "Unassigned", "300", "2500"], 4500),
        (["2000", "Unassigned", "5000"], 5000),  # 7000, or 5000 if it went on
        (["2000", "Unassigned", "2000"], 2000),
        (["2000", "Unassigned", "Unassigned"], 2000),
        (["2000", "300", "2500"], 4500),  # it was unassigned between two looks
        (["2000", "Unassigned", "300", "Unassigned", "40"], 2340),
        (["2000", None, "300"], 2300),  # its domain was offline
        (["9000000000000000000", None, "9000000000000000001"], 9_000_000_000_000_000_001),
        (["Unassigned", "300"], 300),
    ],
)
def test_traffic_of_a_counter_that_stopped_goes_on_as_at_least_what_was_counted(
    looks: list[str | None], use: int
) -> None:
    here, former, now = group(begin={TRAFFIC: "0", ENERGY: "1"}), dict[str, str](), dict[str, str]()
    for text in looks:
        before, now = here, {ENERGY: "1.5", **({} if text is None else {TRAFFIC: text})}
        here = counters.note_stops(before, now, former)
        assert counters.note_stops(here, now, former if here is before else {}) is here, (
            "it is noted once"
        )
        former = now
    assert at_least(here, now) == {TRAFFIC: use * counters.MILLION, ENERGY: 500_000}
    assert lifetime(here, now)[TRAFFIC] is None
    assert counters.list_unknown(here, now) == {TRAFFIC}


@pytest.mark.parametrize("text", ["Error", "Unavailable", "1" * 40, "2000", "2500"])
def test_traffic_of_a_counter_that_went_on_stays_known(text: str) -> None:
    here, former = group(begin={TRAFFIC: "7", ENERGY: "1"}), {TRAFFIC: "2000"}
    assert counters.note_stops(here, {TRAFFIC: text}, former) is here, (
        "energy counters go on when they come back"
    )
    assert lifetime(here, {TRAFFIC: "2507", ENERGY: "1"})[TRAFFIC] == 2500 * counters.MILLION


def test_final_values_of_a_key_that_lingers_start_again_with_its_counter() -> None:
    lingering = replace(group(begin={TRAFFIC: "0"}), last={TRAFFIC: "2000", ENERGY: "1"})
    again = counters.note_stops(lingering, {TRAFFIC: "0"}, {TRAFFIC: "2000"})
    assert again.last == {TRAFFIC: "0", ENERGY: "1"}
    assert at_least(again, again.last) == {TRAFFIC: 2000 * counters.MILLION, ENERGY: None}


@given(
    st.lists(st.tuples(st.sampled_from(["count", "lose", "hide", "remake"]), amounts), max_size=12)
)
def test_known_use_never_falls_and_is_never_more_than_was_used(
    steps: list[tuple[str, int]],
) -> None:
    """`lose`: unassigned.

    `hide`: the domain is offline. `remake`: another tool removes the group. Each is seen.
    """
    here, value, former, used, least = group(begin={TRAFFIC: "0"}), 0, dict[str, str](), 0, 0
    for what, more in steps:
        if what == "remake":
            here, value = replace(life_turns.remake_group(here), begin={TRAFFIC: "0"}), 0
        texts = (
            [{TRAFFIC: "Unassigned"}]
            if what == "lose"
            else [dict[str, str]()]
            if what == "hide"
            else []
        )
        value, used = (0 if texts else value) + more, used + more
        for now in [*texts, {TRAFFIC: str(value)}]:
            here = counters.note_stops(here, now, former)
            former = now
            known = at_least(here, now)[TRAFFIC] or 0
            assert known <= used * counters.MILLION
            # Of whose former directory nothing is on record.
            assert known >= least or what == "remake"
            least = known
    assert (lifetime(here, {TRAFFIC: str(value)})[TRAFFIC] is None) == any(
        what != "count" for what, _ in steps
    )


# --- Runs of one key


def test_of_an_event_that_is_new_in_a_later_run_the_use_before_it_is_unknown() -> None:
    """Not in a group that only the later run has."""
    run = KeyState(key="c1", kind="container", groups=[group({TRAFFIC: "1"})])
    done = life_end.complete(run, {PATH: {TRAFFIC: "3"}}, (), (0.0, 0.0))
    state = life_turns.come_back(done, group(), (0.0, 0.0))
    new = MonGroup(path=PATH.replace("mon_groups", "gold/mon_groups"), ctrl_group="gold")
    now = {TRAFFIC: "7", ENERGY: "2.0"}
    state = replace(state, groups=[*state.groups, new])
    for one in state.groups:
        state = life.begin(state, one, (1, 1), now, is_late=False)
    assert [one.before for one in state.groups] == [{TRAFFIC: "2", ENERGY: counters.EARLIER}, {}]


@given(
    st.lists(
        st.tuples(amounts, st.sampled_from(["whole", "unread", "taken", "new event"])),
        min_size=1,
        max_size=5,
    )
)
def test_lines_of_all_runs_add_up_to_the_use_and_each_is_unknown_for_itself(
    runs: list[tuple[int, str]],
) -> None:
    state, sums, events = (
        KeyState(key="c1", kind="container", groups=[group()]),
        dict[str, int](),
        [TRAFFIC],
    )
    for more, what in runs:
        if what == "new event" and ENERGY not in events:
            events.append(ENERGY)
        begin = dict.fromkeys(events, "7")
        heir = state.groups[0]
        begun = (
            begin_group(heir, begin, is_late=False)
            if state.returned is not None
            else replace(heir, begin=begin)
        )
        end = dict.fromkeys(events, str(7 + more)) if what != "unread" else {}
        lingered = replace(begun, inode=1, last=begin)  # until another tool removed its group
        ended = [end_group(replace(life_turns.remake_group(lingered), begin=begin), end)]
        state = replace(state, taken=what == "taken")
        known, unknown = line._sum_use(state, ended)
        assert unknown == (
            {event.rpartition("/")[2] for event in events} if what in ("unread", "taken") else set()
        )
        assert {known[event] for event in known} <= {
            0 if what == "unread" else more * counters.MILLION
        }
        sums = {event: sums.get(event, 0) + use for event, use in known.items()}
        done = life_end.complete(replace(state, groups=ended), {}, (), (0.0, 0.0))
        state = life_turns.come_back(done, group(), (0.0, 0.0))
    heir = state.groups[0]
    for counter in events:
        assert (at_least(heir, {})[counter] or 0) == sums.get(counter.rpartition("/")[2], 0)
    assert (counters.parse_number(heir.before[TRAFFIC]) is None) == any(
        what in ("unread", "taken") for _, what in runs
    )


def test_several_ctrl_groups_become_one_sum() -> None:
    one = group(begin={TRAFFIC: "1"}, end={TRAFFIC: "3"})
    two = group(begin={TRAFFIC: "10"}, end={TRAFFIC: "15"}, before={TRAFFIC: "100"})
    assert counters.carry([one, two]) == {"before": {TRAFFIC: "107"}, "known": {}}
    assert inherit(group(before={TRAFFIC: "1000"}), [one, two]).before == {TRAFFIC: "1107"}


def test_a_counter_that_came_after_the_begin_makes_its_use_unknown() -> None:
    here = group(begin={TRAFFIC: "1"})
    assert lifetime(here, {TRAFFIC: "3", ENERGY: "5"}) == {
        TRAFFIC: 2 * counters.MILLION,
        ENERGY: None,
    }
    ended = end_group(here, {TRAFFIC: "3", ENERGY: "5"})
    assert (ended.begin, ended.before) == ({TRAFFIC: "1", ENERGY: "5"}, {ENERGY: counters.UNKNOWN})
    again = replace(inherit(group(), [ended]), begin={TRAFFIC: "1", ENERGY: "5"})
    assert lifetime(again, {TRAFFIC: "1", ENERGY: "5"}) == {
        TRAFFIC: 2 * counters.MILLION,
        ENERGY: None,
    }


def test_use_after_a_counter_came_late_is_known() -> None:
    """And what was used before a late begin is not."""
    assert begin_group(group(), {TRAFFIC: "1", OCCUPANCY: "1"}, is_late=True).before == {
        TRAFFIC: counters.UNKNOWN
    }
    here = group(begin={TRAFFIC: "1"}, before={ENERGY: "7"})
    marked = add_late(here, {TRAFFIC: "3", ENERGY: "5", OCCUPANCY: "4096"})
    assert marked.begin == {TRAFFIC: "1", ENERGY: "5", OCCUPANCY: "4096"}
    assert (marked.before, marked.known) == ({ENERGY: counters.UNKNOWN}, {ENERGY: "7"})
    assert at_least(marked, {TRAFFIC: "3", ENERGY: "6"})[ENERGY] == 8 * counters.MILLION
    assert lifetime(marked, {TRAFFIC: "3", ENERGY: "6"})[ENERGY] is None
    assert add_late(marked, {TRAFFIC: "4", ENERGY: "9"}) is marked
