# SPDX-License-Identifier: Apache-2.0
"""What people read has no slips of a program: no "1 containers", no None, no b'...'."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.models import Failure, KeyState, Member, MonGroup
from hook.node.models import Job, ReconcileRecord, Unhooked
from hook.node.records import Broken
from hook.show import Screen, history, lists
from hook.show.snapshot import Group, Inventory, Rmids, SeenKey, compare
from tests.support import house
from tests.unit.files import examples
from tests.unit.metrics import EVERYTHING, make_inventory

NOUNS = (
    "actions|cgroups|checks|connections|containers|counters|errors|events|failures|files|findings|groups|hooks|jobs|keys|"
    "lines|members|mon_groups|nodes|orphans|pods|problems|processes|records|samples|series|services|steps|"
    "tasks|things|threads|times|warnings"
)
SLIP = re.compile(
    rf"\b(None|True|False)\b|\bb['\"]|\b1 (?:[a-z]+ ){{0,2}}(?:{NOUNS})\b|\b[1-9]\d* [a-z]+\(s\)"
)
SCREENS = [Screen(), Screen(80, 24), Screen(40)]


def find_slips(lines: list[str]) -> list[str]:
    return [line for line in lines if SLIP.search(line)]


def find_counts(source: str) -> Iterator[str]:
    """The texts of f-strings in which a noun in the plural follows a number of any size."""
    for node in ast.walk(ast.parse(source)):
        for value, text in (
            zip(node.values, node.values[1:]) if isinstance(node, ast.JoinedStr) else ()
        ):
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                name = ast.unparse(value.value).rpartition(".")[2]
                if not name.isupper() and re.match(rf" ({NOUNS})\b", str(text.value)):
                    yield ast.unparse(node)


def test_no_noun_in_the_plural_follows_a_number_that_may_be_1() -> None:
    assert {
        path: [*find_counts(text)]
        for path, text in house.sources("hook").items()
        if [*find_counts(text)]
    } == {}


def test_what_is_looked_for_is_found() -> None:
    assert [*find_counts('f"at {len(x)} groups"')] == ["f'at {len(x)} groups'"]
    assert [*find_counts('f"at {_MOST} groups, {x} group, {y}"')] == []
    slips = ["1 containers", "at 1 running containers: x", "pod None", "no b'/x'", "1 thing(s)"]
    assert find_slips([*slips, "11 containers", "1 container", "Nonesuch", "bb'x'"]) == slips


TEXTS = st.sampled_from(["web", "shop"])
NAMES = st.none() | TEXTS
COUNTS = st.integers(0, 2)
IDS = st.sampled_from(["c1", "c2", "9e107d9d372b" + "0" * 52])
PATH = st.just("/sys/fs/resctrl/mon_groups/x")
TIMES = st.sampled_from([None, 1.0])
COUNTERS = {"mon_PERF_PKG_00/core_energy": "2.5", "mon_L3_00/mbm_total_bytes": "1"}
BEGINS = st.sampled_from([None, COUNTERS, {"mon_PERF_PKG_00/core_energy": "Unavailable"}, {}])
MEMBERS = st.builds(
    Member, pid=st.just(1), starttime=st.just(1), group=PATH, cgroup=st.just("/x"), name=NAMES
)
RECORDS = st.builds(
    MonGroup,
    path=PATH,
    ctrl_group=st.just("/"),
    begin=BEGINS,
    end=st.sampled_from([None, COUNTERS]),
)
STATES = st.builds(
    KeyState,
    **{
        "key": IDS,
        "kind": st.sampled_from(["pod", "container"]),
        "pod_namespace": NAMES,
        "pod_name": NAMES,
    },
    **{
        "members": st.dictionaries(IDS, MEMBERS, max_size=2),
        "created_boottime": TIMES,
        "lingering_since": TIMES,
    },
    completed_at=st.sampled_from([None, "2026-01-02T03:04:05Z"]),
)
KEYS = st.builds(
    lambda state, groups, alive: SeenKey(state, groups, dict.fromkeys(state.members, alive)),
    STATES,
    st.lists(st.builds(Group, RECORDS, st.booleans(), st.sampled_from([COUNTERS, {}])), max_size=2),
    st.sampled_from([True, False, None]),
)
POD = {"namespace": NAMES, "pod": NAMES, "name": NAMES}
FAILURE = {
    "stage": st.just("createRuntime"),
    "problem": st.just("no RMID is left"),
    "container": IDS,
}
UNHOOKED = st.builds(
    lambda containers, number: Unhooked(
        containers=containers, unchecked=number, since="2026", rules="", others=[]
    ),
    *(st.dictionaries(IDS, st.fixed_dictionaries(POD)), COUNTS),
)
RECONCILED = st.dictionaries(IDS, st.integers(1, 2)).map(
    lambda outside: ReconcileRecord(
        **{
            **vars(EVERYTHING.reconciled),
            "outside": outside,
            "outside_total": sum(outside.values()),
        }
    )
)
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "keys": st.lists(KEYS, max_size=2),
    "unreadable": st.lists(st.just(Broken("k", "/run/k.json", "all of it: no JSON")), max_size=1),
    "failures": st.lists(
        st.builds(Failure, reason=st.sampled_from(["no_rmids", "io"]), **FAILURE, **POD), max_size=3
    ),
    "rmids": st.none() | st.builds(Rmids, st.sampled_from([None, 8]), COUNTS, COUNTS),
    "orphans": st.lists(st.just("/x"), max_size=2),
    "unhooked": st.none() | UNHOOKED,
    "reconciled": st.none() | RECONCILED,
    "unrecorded": COUNTS,
    **dict.fromkeys(("host_pids", "is_supported", "is_full"), st.booleans()),
}
INVENTORIES = st.fixed_dictionaries(PARTS).map(
    lambda parts: make_inventory(**{**vars(EVERYTHING), **parts})
)


@examples(300)
@given(inventory=INVENTORIES, screen=st.sampled_from(SCREENS), limit=st.none() | COUNTS)
def test_screens_have_no_slip(inventory: Inventory, screen: Screen, limit: int | None) -> None:
    selected = lists.select_keys(inventory.keys, [], [], "energy")
    answer, rates = (
        lists.list_to_json(inventory, selected, limit),
        compare(inventory, inventory, "2026"),
    )
    lines = lists.format_list(answer, screen) + lists.format_unmonitored(answer)
    lines += lists.format_rates(lists.rates_to_json(rates), screen)
    for key in inventory.keys:
        lines += lists.format_key(lists.key_to_json(key, inventory.failures))
    assert find_slips(lines) == []


@given(
    job=st.builds(
        Job,
        **{
            "id": st.just("1"),
            "kind": st.just("pod"),
            "key": IDS,
            "namespace": NAMES,
            "pod": NAMES,
            "begin": NAMES,
        },
        **{
            "end": st.just("2026-01-02T03:04:05Z"),
            "seconds": TIMES,
            "runs": COUNTS,
            "more_containers": COUNTS,
        },
        containers=st.lists(st.fixed_dictionaries({"id": IDS, "name": NAMES}), max_size=2),
        use=st.sampled_from([{}, {"core_energy": 1.0}]),
        unknown=st.sampled_from([[], ["core_energy"]]),
    ),
    screen=st.sampled_from(SCREENS),
    by=st.sampled_from([None, "namespace", "pod", "name", "day"]),
)
def test_history_has_no_slip(job: Job, screen: Screen, by: str | None) -> None:
    jobs = history.Jobs(["/x"], skipped={"x": 1}, _histories=[[]])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(history.Jobs, "_read_all", lambda _: iter([(1, job.model_dump())]))
        patched.setattr(history.Jobs, "_find", lambda *_: iter([(1, job.model_dump())]))
        rows = history.make_rows(jobs, by)
        assert find_slips([*history.format_rows(jobs, rows, screen), jobs.explain()]) == []
