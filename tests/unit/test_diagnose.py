# SPDX-License-Identifier: Apache-2.0
"""From facts to actions. What the facts are made of is shown by tests/fuse/test_reconcile.py."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook import life_turns, reclaim, system
from hook.models import Failure, Index, KeyState, Member, MonGroup, Options, Owed
from hook.node import naming, records
from hook.reconcile import diagnose
from hook.reconcile.diagnose import VERBS, Action
from hook.reconcile.survey import Whereabouts

PATH = "/sys/fs/resctrl/mon_groups/oci-k"
GONE = "/sys/fs/resctrl/gold/mon_groups/oci-k"
NEW = MonGroup(path=PATH, ctrl_group="/")
BEGUN = MonGroup(path=PATH, ctrl_group="/", begin={})


NOTHING: dict[str, Any] = {
    **{"live": None, "is_mounted": True, "boottime": 1000.0},
    **dict.fromkeys(("dead", "vanished", "unreadable", "leftovers", "half_failures"), ()),
    **{
        name: {}
        for name in (
            "outside",
            "taken",
            "strangers",
            "orphans",
            "lost",
            "failures",
            "asides",
            "unread",
        )
    },
    "podman": SimpleNamespace(containers={"c9": "web"}, find_pod={"fd174e60a699": "stack"}.get),
    "kubelet": SimpleNamespace(containers={}, pods={"k": ("ns", "p")}),
}
"""The facts of a node on which nothing is wrong."""


class Facts(SimpleNamespace):
    """Stands for a Survey and its Threads: what is wrong is given.

    `dead`, `vanished`: containers. `outside`: how many threads of each; `taken`: the group of
    another tool that has one; `strangers`: by group. `orphans`: those groups without a record, and
    whether they have a task. `failures`: by container, None: unreadable.
    """

    def __init__(
        self,
        *states: KeyState,
        index: Mapping[str, str | None] | None = None,
        snapshot_ttl: int = 300,
        **given: Any,  # noqa: ANN401
    ) -> None:
        assert given.keys() <= NOTHING.keys()
        super().__init__(**{**NOTHING, **given})
        self.states = {state.key: state for state in states}
        self.records = self
        self.failed = [*self.failures]
        of_members = {container: state.key for state in states for container in state.members}
        indexed = {**of_members, **(index or {})}
        self.index = {
            name: Index(key=key) if key is not None else None for name, key in indexed.items()
        }
        keys = {*filter(None, indexed.values())}
        self.memberships: dict[int, list[str]] = {}
        self.early = {state.key for state in states if state.name == "surplus"}
        self.indexed = {key: [name for name, of in indexed.items() if of == key] for key in keys}
        self.context = SimpleNamespace(
            options=Options(snapshot_ttl=snapshot_ttl),
            history_of=lambda state: state.history_file,
            run=SimpleNamespace(glance=lambda _model, name: self.failures[name]),
            resctrl=SimpleNamespace(
                is_mounted=lambda: self.is_mounted,
                has_live_task=self.orphans.get,
                exists=lambda path: path != GONE,
                is_gone=lambda path: path == GONE,
            ),
        )

    def list_keys(self) -> list[str]:
        keys = [
            *self.states,
            *self.unreadable,
            *self.indexed,
            *self.leftovers,
            *self.asides,
            *self.lost,
        ]
        return sorted(dict.fromkeys(filter(None, keys)))

    def is_dead(self, member: Member) -> bool:
        return member.name in self.dead

    def add_names(self, state: KeyState) -> KeyState:
        return naming.add_names(state, self.kubelet, self.podman)

    def find_live(self, state: KeyState) -> dict[str, Member]:
        return state.members

    def mark_counters(self, group: MonGroup) -> MonGroup:
        return group

    def has_lingered(self, state: KeyState) -> bool:
        return reclaim.has_lingered(self.context, state)  # type: ignore[arg-type]

    def is_gone(self, group: MonGroup) -> bool:
        return group.path == GONE

    def locate_container(self, container: str, member: Member) -> Whereabouts:
        return Whereabouts(
            self.taken.get(container),
            member.name not in self.vanished,
            self.outside.get(container, 0),
        )

    def find_strangers(self, path: str, _live: object) -> set[int]:
        return set(self.strangers.get(path, ()))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the failures, that of process 8 is of one that is dead; and what is old is called so."""
    monkeypatch.setattr(diagnose, "Threads", lambda facts, _state: facts)
    monkeypatch.setattr(reclaim, "parse_key", lambda _context, path: path.rpartition("oci-")[2])
    monkeypatch.setattr(records, "has_leftovers", lambda _run, _state: True)
    monkeypatch.setattr(records, "has_old_failure", lambda _run, name: name.startswith("old"))
    monkeypatch.setattr(system, "is_dead", lambda pid, _born=None: pid == 8)
    monkeypatch.setattr(system, "stat_fields", lambda _pid: 20 * ["1"])
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)


def state(*members: str, **fields: Any) -> KeyState:  # noqa: ANN401
    records_of_members = {
        name: Member(pid=7, starttime=1, group=PATH, name=name) for name in members
    }
    return KeyState(
        **{
            "key": "k",
            "kind": "container",
            "groups": [NEW],
            "members": records_of_members,
            **fields,
        }
    )


def completed(**fields: Any) -> KeyState:  # noqa: ANN401
    return state(completed_at="then", **fields)


def failed(**fields: Any) -> Facts:  # noqa: ANN401
    known = {
        "stage": "createRuntime",
        "reason": "no_rmids",
        "problem": "",
        "pid": 7,
        "starttime": 1,
    }
    return Facts(failures={"c1": Failure(container="c1", **{**known, **fields})})


def brief(facts: Facts) -> list[str]:
    actions = diagnose.diagnose(facts)  # type: ignore[arg-type]
    assert all(action.why and str(action).endswith(action.why) for action in actions)
    order = [VERBS.index(action.verb) for action in actions]
    assert order == sorted(order), "what frees RMIDs comes before what needs one"
    return [action.id for action in actions]


LINGERS = {"lingering_since": 1.0, "lingering_until": 2000.0}
ENDED = {"lingering_since": 1.0, "lingering_until": 2.0}
OWED = Owed(lines=["{}"], why="x: ENOSPC")
NO_PID = {"pid": None, "starttime": None}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(), []),
        (
            Facts(
                state("c1"),
                taken={"c1": "/r/mon_groups/theirs"},
                outside={"c1": 3},
                vanished={"c1"},
            ),
            ["note c1 k"],
        ),
        (
            Facts(
                state("c1", taken=True), taken={"c1": "/r/mon_groups/theirs"}, index={"c1": None}
            ),
            [],
        ),
        (Facts(state("c1", taken=True), outside={"c1": 3}), ["remake c1 k"]),
        (Facts(state("c1"), taken={"c1": "/r/mon_groups/theirs"}, dead={"c1"}), ["drop c1 k"]),
        (Facts(state("c1"), taken={"c1": "/r/mon_groups/theirs"}, live=set()), ["drop c1 k"]),
        (Facts(state("c1", "c2")), []),
        # Members
        (Facts(state("c1", "c2"), dead=["c1"]), ["drop c1 k"]),
        (Facts(state("c1"), dead=["c1"], vanished=["c1"]), ["drop c1 k"]),
        (Facts(state("c1"), dead=["c1"], index={"c1": None}), ["drop c1 k"]),
        (Facts(state("c1"), vanished=["c1"]), ["remake c1 k"]),
        (Facts(state("c1"), index={"c1": None}), ["remake c1 k"]),
        (
            Facts(
                state(life_turns.name_displaced("c1", 7, 1)),
                index={life_turns.name_displaced("c1", 7, 1): None},
            ),
            [],
        ),
        (Facts(state("c1", groups=[BEGUN]), outside={"c1": 3}), ["adopt c1 k"]),
        (Facts(state("c1"), outside={"c1": 3}), ["remake c1 k"]),
        # On a kernel that does not show its ctrl_group it would be made in the root one,
        # where the task cannot go.
        (Facts(state("c1"), outside={"c1": 3}, snapshot_ttl=0), ["adopt c1 k"]),
        (
            Facts(
                state("c1"),
                is_mounted=False,
                vanished=["c1"],
                outside={"c1": 3},
                strangers={PATH: {9}},
            ),
            [],
        ),
        (Facts(state("c1"), strangers={PATH: {9}}), [f"evict k {PATH}"]),
        (Facts(state("c1", recovering=True), dead=["c1"], strangers={PATH: {9}}), ["rebuild k"]),
        (Facts(state("c1", groups=[NEW, MonGroup(path=GONE, ctrl_group="gold")])), ["retire k"]),
        # Keys
        (Facts(state()), ["end k"]),
        (Facts(state(**LINGERS)), []),
        (Facts(state(**ENDED)), ["end k"]),
        (Facts(completed(completed_boottime=701.0)), []),
        (Facts(completed(completed_boottime=700.0)), ["prune k"]),
        (Facts(completed(completed_boottime=1001.0)), []),
        (Facts(completed(completed_boottime=1e9)), ["prune k"]),
        (Facts(completed()), ["prune k"]),
        (Facts(state(recovering=True)), ["rebuild k"]),
        (Facts(unreadable=["k"]), ["rebuild k"]),
        (Facts(state("c1"), leftovers=["k", "j"]), ["tidy j", "tidy k"]),
        (Facts(asides={"k": ["groups/k"]}), ["tidy k groups/k"]),
        (Facts(state("c1", kind="pod")), ["name k"]),
        (Facts(state("c1", kind="pod", pod_name="q")), []),
        (Facts(state("c1")), []),
        (Facts(state("c1", pod_name="fd174e60a699")), ["name k"]),
        (Facts(state("c1", pod_name="0d174e60a699")), []),
        # The index
        (Facts(index={"c1": "k"}), ["forget c1 k"]),
        (Facts(state("c1"), index={"c2": "k"}), ["forget c2 k"]),
        (Facts(state(recovering=True), index={"c1": "k"}), ["rebuild k"]),
        (Facts(unreadable=["k"], index={"c1": "k"}), ["rebuild k"]),
        # Groups without a record
        (Facts(orphans={PATH: False}), [f"remove {PATH}"]),
        (Facts(orphans={PATH: True}, lost={"k": PATH}), ["rebuild k"]),
        (Facts(orphans={PATH: True}, lost={"k": PATH}, index={"c1": "k"}), ["rebuild k"]),
        (Facts(orphans={PATH: True}, lost={None: PATH}), [f"rebuild {PATH}"]),
        (Facts(orphans={PATH: True}), []),
        # Failures
        (failed(), ["retry c1"]),
        (Facts(failures=failed().failures, is_mounted=False), []),
        (failed(pid=8), ["forget c1"]),
        (failed(**NO_PID), []),
        (failed(**NO_PID, stage="poststop"), ["forget c1"]),
        (failed(starttime=None), []),
        (failed(starttime=None, boottime=5.0), ["retry c1"]),
        (failed(starttime=None, boottime=0.0), ["forget c1"]),
        (failed(monitored=True, reason="usage"), []),
        (failed(reason="bad_state"), []),
        (failed(reason="bad_key"), []),
        (Facts(failures={"c1": None, "old1": None}), ["forget old1"]),
        (Facts(failures={"old1": None}, index={"old1": "k"}, unreadable=["k"]), ["rebuild k"]),
        (Facts(half_failures=["c1"]), ["forget c1"]),
        # lines of history, and room
        (Facts(completed(completed_boottime=950.0, owed=OWED)), ["write k"]),
        (Facts(completed(completed_boottime=5.0, owed=OWED)), ["prune k", "write k"]),
        (Facts(completed(completed_boottime=5.0, groups=[], owed=OWED)), ["write k"]),
        (Facts(completed(completed_boottime=5.0, groups=[])), ["prune k"]),
        (Facts(state("c1", owed=OWED)), ["write k"]),
        (Facts(completed(completed_boottime=950.0, name="surplus")), ["prune k"]),
        # --live
        (Facts(state("c1"), live={"k"}), []),
        (Facts(state("c1"), live={"k"}, dead=["c1"]), []),
        (Facts(state("c1"), live=set()), ["drop c1 k"]),
        (Facts(state(), live={"k"}), []),
        (Facts(state(), live=set()), ["end k"]),
        (Facts(state(**LINGERS), live=set()), ["end k"]),
        (Facts(state(**ENDED), live={"k"}), []),
        (Facts(orphans={PATH: False}, live={"k"}), []),
        (Facts(orphans={PATH: False}, live={"j"}), [f"remove {PATH}"]),
    ],
)
def test_each_finding_has_its_action(facts: Facts, expected: list[str]) -> None:
    assert brief(facts) == expected


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({**ENDED, "name": "app", "pod_name": "keep"}, "end keep app (k): "),
        (
            {**ENDED, "kind": "pod", "pod_namespace": "shop", "pod_name": "web"},
            "end shop/web (k): ",
        ),
        ({"name": "app"}, "end app (k): "),
    ],
)
def test_an_action_on_a_key_says_the_name_that_list_shows(
    fields: dict[str, Any], about: str
) -> None:
    facts = Facts(state(**fields), snapshot_ttl=0)
    (action,) = diagnose.diagnose(facts)  # type: ignore[arg-type]
    assert str(action).startswith(about)


@given(st.sets(st.sampled_from(["c1", "c2", "c3"])), st.sets(st.sampled_from(["c1", "c2", "c3"])))
def test_question_about_one_container_has_the_answer_that_the_plan_has(
    dead: set[str], outside: set[str]
) -> None:
    facts = Facts(
        state("c1", "c2", "c3"), dead=dead, outside=dict.fromkeys(outside, 1), strangers={PATH: {9}}
    )
    whole: list[Action] = diagnose.diagnose(facts)  # type: ignore[arg-type]
    for container in ("c1", "c2", "c3"):
        actions = diagnose.diagnose_key(facts, "k", facts.states["k"], container)  # type: ignore[arg-type]
        assert [*actions] == [action for action in whole if action.container == container]
