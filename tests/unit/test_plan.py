# SPDX-License-Identifier: Apache-2.0
"""plan(): from facts to actions. What the facts are made of is shown by tests/fuse/test_reconcile.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.base.models import Failure, KeyState, Member, MonGroup
from hook.reconcile.plan import VERBS, Action, plan
from hook.reconcile.survey import Survey

TTL = 300
PATH = "/sys/fs/resctrl/mon_groups/oci-k"
NEW = MonGroup(path=PATH, ctrl_group="/")
BEGUN = MonGroup(path=PATH, ctrl_group="/", begin={})


def survey(**facts: Any) -> Survey:  # noqa: ANN401
    return Survey(boottime=1000.0, mounted=True, **facts)


def state(*members: str, **fields: Any) -> KeyState:  # noqa: ANN401
    groups = [NEW]
    found = {name: Member(pid=7, starttime=1, group=PATH) for name in members}
    return KeyState(**{"key": "k", "kind": "container", "groups": groups, "members": found, **fields})


def failure(name: str = "c1", **fields: Any) -> Failure:  # noqa: ANN401
    record = {
        "container": name,
        "stage": "createRuntime",
        "reason": "no_rmids",
        "problem": "",
        "pid": 7,
        "starttime": 1,
    }
    return Failure(**{**record, **fields})


def brief(actions: list[Action]) -> list[tuple[str, ...]]:
    return [tuple(word for word in (it.verb, it.key, it.container, it.path) if word) for it in actions]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, []),
        ({"states": {"k": state("c1", "c2")}}, []),
        ({"states": {"k": state("c1", "c2")}, "dead": {("k", "c1")}}, [("drop", "k", "c1")]),
        ({"states": {"k": state("c1")}, "dead": {("k", "c1")}, "vanished": {("k", "c1")}}, [("drop", "k", "c1")]),
        ({"states": {"k": state("c1")}, "vanished": {("k", "c1")}}, [("remake", "k", "c1")]),
        ({"states": {"k": state("c1", groups=[BEGUN])}, "outside": {("k", "c1"): 3}}, [("adopt", "k", "c1")]),
        ({"states": {"k": state("c1")}, "outside": {("k", "c1"): 3}}, [("remake", "k", "c1")]),
        ({"states": {"k": state("c1")}, "unindexed": {("k", "c1")}}, [("remake", "k", "c1")]),
        ({"states": {"k": state("c1")}, "unindexed": {("k", "c1")}, "dead": {("k", "c1")}}, [("drop", "k", "c1")]),
        ({"states": {"k": state("c1")}, "elsewhere": {("k", "c1"): 3}}, []),
        ({"states": {"k": state()}}, [("end", "k")]),
        ({"states": {"k": state(lingering_since=1.0, lingering_until=2000.0)}}, []),
        ({"states": {"k": state(lingering_since=1.0, lingering_until=2.0)}, "lingered": {"k"}}, [("end", "k")]),
        ({"states": {"k": state(completed_at="then", completed_boottime=701.0)}}, []),
        ({"states": {"k": state(completed_at="then", completed_boottime=700.0)}}, [("prune", "k")]),
        ({"states": {"k": state(completed_at="then", completed_boottime=1001.0)}}, []),
        ({"states": {"k": state(completed_at="then", completed_boottime=1e9)}}, [("prune", "k")]),
        ({"states": {"k": state(completed_at="then")}}, [("prune", "k")]),
        ({"states": {"k": state(recovering=True)}}, [("rebuild", "k")]),
        ({"unreadable": ["k"]}, [("rebuild", "k")]),
        ({"orphans": {("k", PATH): False}}, [("remove", PATH)]),
        ({"orphans": {("k", PATH): True}}, [("rebuild", PATH)]),
        ({"strangers": {("k", PATH): {9}}}, [("evict", "k", PATH)]),
        ({"failures": [failure()]}, [("retry", "c1")]),
        ({"failures": [failure()], "gone": {"c1"}}, [("forget", "c1")]),
        ({"failures": [failure(pid=None, starttime=None)]}, []),
        ({"failures": [failure(starttime=None)]}, []),
        ({"failures": [failure(starttime=None, boottime=5.0)]}, [("retry", "c1")]),
        ({"failures": [failure(starttime=None)], "gone": {"c1"}}, [("forget", "c1")]),
        ({"failures": [failure(monitored=True, reason="usage")]}, []),
        ({"failures": [failure(reason="bad_state")]}, []),
        ({"failures": [failure(reason="bad_key")]}, []),
        ({"lost": {"c1": "k"}}, [("forget", "k", "c1")]),
        ({"stale_views": ["k"], "leftovers": ["j"], "retired": ["k"]}, [("retire", "k"), ("show", "k"), ("tidy", "j")]),
    ],
)
def test_each_finding_has_its_action(facts: dict[str, Any], expected: list[tuple[str, ...]]) -> None:
    actions = plan(survey(**facts), TTL)
    assert brief(actions) == expected
    assert all(it.why and str(it).endswith(it.why) for it in actions)


def test_without_snapshots_missing_initial_counters_need_no_remake() -> None:
    """On a kernel that does not tell its ctrl_group it was then made in the root one, where the task could not go."""
    facts = {"states": {"k": state("c1")}, "outside": {("k", "c1"): 3}}
    assert brief(plan(survey(**facts), 0)) == [("adopt", "k", "c1")]


def test_without_a_mount_nothing_is_retried() -> None:
    assert plan(Survey(1000.0, mounted=False, failures=[failure()]), TTL) == []


@pytest.mark.parametrize(
    ("members", "dead", "live", "expected"),
    [
        (["c1"], [], {"k"}, []),
        (["c1"], ["c1"], {"k"}, []),
        (["c1"], [], set(), [("drop", "k", "c1")]),
        ([], [], {"k"}, []),
        ([], [], set(), [("end", "k")]),
    ],
)
def test_a_list_of_live_keys_overrides_the_members(
    members: list[str], dead: list[str], live: set[str], expected: list[tuple[str, ...]]
) -> None:
    seen = survey(states={"k": state(*members)}, dead={("k", name) for name in dead})
    actions = plan(seen, TTL, live)
    assert brief(actions) == expected
    assert all(it.forced for it in actions)


@pytest.mark.parametrize(("live", "expected"), [({"k"}, []), ({"j"}, [("remove", PATH)]), (set(), [("remove", PATH)])])
def test_an_unrecorded_empty_group_of_a_live_key_is_kept(live: set[str], expected: list[tuple[str, ...]]) -> None:
    assert brief(plan(survey(orphans={("k", PATH): False}), TTL, live)) == expected


@given(st.sets(st.sampled_from(["dead", "vanished", "outside"])), st.booleans())
def test_actions_that_free_rmids_come_before_those_that_need_one(facts: set[str], orphan: bool) -> None:
    places = {("k", "c1"), ("k", "c2")}
    more: dict[str, Any] = {name: dict.fromkeys(places, 1) if name == "outside" else places for name in facts}
    seen = survey(
        states={"k": state("c1", "c2")},
        orphans={("k", PATH): False} if orphan else {},
        failures=[failure("c3")],
        **more,
    )
    order = [VERBS.index(it.verb) for it in plan(seen, TTL)]
    assert order == sorted(order)
