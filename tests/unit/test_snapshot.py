# SPDX-License-Identifier: Apache-2.0
"""A look at a node: what is there is seen, what vanishes is not, and nothing is changed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hook.base import counters, procfs, system
from hook.base.errors import HookError
from hook.base.models import KeyState, Model
from hook.base.reasons import Reason
from hook.base.resctrl import Resctrl
from hook.observe.hardware import Rmids
from hook.observe.screens import rates_to_json
from hook.observe.snapshot import Inventory, Key, take_snapshot
from hook.observe.use import Rates, Total, compare, sum_use
from hook.state import records
from hook.state.records import Records
from tests.support.hook import snapshot
from tests.unit.nodes import BEGIN, NOW, NodeFiles, alive, dead

MILLION = counters.MILLION


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    return NodeFiles(tmp_path)


def only(seen: Inventory) -> Key:
    (key,) = seen.keys
    return key


# --- Keys and what they used


def test_a_node_without_a_run_directory_is_empty(node: NodeFiles) -> None:
    seen = take_snapshot(node.options)
    assert (seen.keys, seen.unreadable, seen.failures, seen.orphans, seen.runs) == ([], [], [], [], {})
    assert not node.run.exists()


def test_a_live_key_has_its_groups_and_members(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    state = node.live("c1", created_boottime=100.0)
    monkeypatch.setattr(system, "boottime", lambda: 160.0)
    key = only(take_snapshot(node.options))
    assert (key.state, key.condition, key.alive, key.age) == (state, "live", {"c1": True}, 60.0)
    (group,) = key.groups
    assert (group.exists, group.is_over, group.now) == (True, False, NOW)
    assert group.use == {"mon_L3_00/mbm_total_bytes": 4000 * MILLION, "mon_PERF_PKG_00/core_energy": 3_250_000}


def test_a_snapshot_changes_nothing(node: NodeFiles) -> None:
    node.live("c1")
    node.write("groups", "torn.json", "{")
    node.fail("c2")
    before = snapshot(node.root, node.run), {path: path.read_bytes() for path in node.run.rglob("*.json")}
    take_snapshot(node.options)
    assert (snapshot(node.root, node.run), {path: path.read_bytes() for path in node.run.rglob("*.json")}) == before


def test_an_ended_group_has_its_final_counters(node: NodeFiles) -> None:
    node.completed("c1")
    node.make("oci-c1", counters={"mon_PERF_PKG_00/core_energy": "99"})
    key = only(take_snapshot(node.options))
    assert (key.condition, key.groups[0].is_over, key.groups[0].now) == ("completed", True, NOW)
    assert sum_use(key.groups)["core_energy"] == Total(known=3_250_000, counted=1)


def test_a_removed_group_is_missing_and_its_use_unknown(node: NodeFiles) -> None:
    path = str(node.path("oci-c1"))
    node.record("c1", groups=[{"path": path, "ctrl_group": "/", "begin": BEGIN}], members={"c1": alive(path)})
    key = only(take_snapshot(node.options))
    assert key.condition == "group missing"
    assert sum_use(key.groups)["core_energy"] == Total(unknown=1)


def test_a_key_is_live_after_one_of_its_groups_ended(node: NodeFiles) -> None:
    over = {"path": node.make("their-own", counters=NOW), "ctrl_group": "/", "begin": BEGIN, "end": NOW}
    path = node.make("oci-c1", "gold", NOW)
    node.record("c1", groups=[over, {"path": path, "ctrl_group": "gold", "begin": BEGIN}], members={"c1": alive(path)})
    seen = take_snapshot(node.options)
    assert only(seen).condition == "live"
    assert seen.rmids == Rmids(limit=8, ours=1, others=2 + 1)


def test_recovering_takes_precedence(node: NodeFiles) -> None:
    node.record("c1", recovering=True)
    assert only(take_snapshot(node.options)).condition == "recovering"


def test_without_snapshots_use_is_unknown(node: NodeFiles) -> None:
    path = node.make("oci-c1", counters=NOW)
    node.record("c1", groups=[{"path": path, "ctrl_group": "/"}], members={"c1": alive(path)})
    key = only(take_snapshot(node.options))
    assert (key.groups[0].now, sum_use(key.groups)) == (NOW, {})


def test_totals_sum_all_domains_and_ctrl_groups_and_count_unknown_values(node: NodeFiles) -> None:
    energy = "mon_PERF_PKG_0{}/core_energy".format
    first = node.make("oci-c1", counters={energy(0): "3", energy(1): "5", energy(2): "7"})
    second = node.make("oci-c1", "gold", {energy(0): "11"})
    begin = {energy(0): "1", energy(1): "Unavailable", energy(2): "Error"}
    node.record(
        "c1",
        groups=[
            {"path": first, "ctrl_group": "/", "begin": begin, "before": {energy(0): "0.5"}},
            {"path": second, "ctrl_group": "gold", "begin": {energy(0): "1"}},
        ],
    )
    found = sum_use(only(take_snapshot(node.options)).groups)
    assert found == {"core_energy": Total(known=17_500_000, counted=3, unknown=1, from_nothing=1)}
    assert found["core_energy"].value == 17_500_000
    assert Total(unknown=2).value is None


def test_members_are_dead_alive_or_unknown(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node.make("oci-c1")
    node.record("c1", members={"a": alive(path), "b": dead(path), "c": {**alive(path), "pid": 2**31 - 1}})
    key = only(take_snapshot(node.options))
    assert (key.alive, key.list_alive()) == ({"a": True, "b": False, "c": False}, ["a"])
    monkeypatch.setattr(procfs, "is_dead", lambda _pid, _born: None)
    assert only(take_snapshot(node.options)).list_alive() == ["a", "b", "c"]


def test_an_age_is_never_negative_and_may_be_unknown(node: NodeFiles) -> None:
    node.record("c1", created_boottime=1e12)
    assert only(take_snapshot(node.options)).age == 0
    node.record("c1")
    assert only(take_snapshot(node.options)).age is None


# --- What changes meanwhile


def when_counted(monkeypatch: pytest.MonkeyPatch, *happenings: object) -> list[str]:
    """Something happens each time that a mon_group's counters have been read."""
    waiting = list(happenings)
    real = Resctrl.counters
    read: list[str] = []

    def counted(self: Resctrl, path: str) -> dict[str, str]:
        read.append(path)
        try:
            return real(self, path)
        finally:
            if waiting:
                waiting.pop(0)()  # type: ignore[operator]

    monkeypatch.setattr(Resctrl, "counters", counted)
    return read


def test_a_key_that_ends_while_it_is_read_is_read_again(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters of the next incarnation, set against this one's begin, would be use that never was."""
    node.live("c1")
    read = when_counted(monkeypatch, lambda: node.completed("c1"))
    assert only(take_snapshot(node.options)).condition == "completed"
    assert len(read) == 1


def test_a_new_incarnation_has_its_own_initial_counters(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node.live("c1").groups[0].path
    again = {"path": path, "ctrl_group": "/", "begin": NOW, "before": {"mon_PERF_PKG_00/core_energy": "3.25"}}
    read = when_counted(monkeypatch, lambda: node.record("c1", groups=[again]))
    assert sum_use(only(take_snapshot(node.options)).groups)["core_energy"] == Total(known=3_250_000, counted=1)
    assert len(read) == 2


def test_a_key_removed_while_it_is_read_is_left_out(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.live("c1")
    when_counted(monkeypatch, (node.run / "groups" / "c1.json").unlink)
    seen = take_snapshot(node.options)
    assert (seen.keys, seen.unreadable) == ([], [])


def test_a_key_that_changes_at_each_read_is_reported(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node.live("c1").groups[0].path
    changes = [
        lambda at=at: node.record("c1", groups=[{"path": path, "ctrl_group": "/", "begin": {"a/b": str(at)}}])
        for at in range(9)
    ]
    when_counted(monkeypatch, *changes)
    (broken,) = take_snapshot(node.options).unreadable
    assert (broken.name, broken.problem) == ("c1", "it changes faster than it can be read")


def test_a_file_removed_after_the_listing_is_left_out(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.record("c1")
    node.fail("c2")
    real = system.read_file

    def gone(path: str, limit: int = 0, dir_fd: int | None = None) -> str:
        if path.endswith(".json"):
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        return real(path, limit, dir_fd)

    monkeypatch.setattr(system, "read_file", gone)
    seen = take_snapshot(node.options)
    assert (seen.keys, seen.unreadable, seen.failures, seen.unreadable_failures) == ([], [], [], [])


def test_unreadable_counters_make_use_unknown(node: NodeFiles) -> None:
    node.live("c1")
    (node.path("oci-c1") / "mon_data/mon_PERF_PKG_00/core_energy").unlink()
    found = sum_use(only(take_snapshot(node.options)).groups)
    assert (found["core_energy"], found["mbm_total_bytes"].known) == (Total(unknown=1), 4000 * MILLION)


# --- What cannot be understood


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no value"),
        ('{"version": 1, "key": "c', "Unterminated string"),
        ('{"version": 2, "key": "bad", "kind": "pod"}', "version"),
        ('{"version": 1, "key": "other", "kind": "pod"}', "it is of 'other'"),
        ("\xff\x00", "not JSON"),
    ],
)
def test_a_broken_state_is_reported_beside_the_others(node: NodeFiles, text: str, problem: str) -> None:
    node.live("c1")
    path = node.write("groups", "bad.json", text)
    seen = take_snapshot(node.options)
    (broken,) = seen.unreadable
    assert (only(seen).state.key, broken.name, broken.file) == ("c1", "bad", str(path))
    assert problem in broken.problem
    assert path.read_text() == text


def test_other_files_are_not_read_as_states(node: NodeFiles) -> None:
    node.write("groups", ".c1.tmp", "{")
    node.write("groups", "c1.json.unreadable-7", "{")
    node.write("groups", ".json", "{")
    node.write("groups", "-odd.json", "{")
    (node.run / "groups" / "link.json").symlink_to("/etc/hostname")
    (node.run / "groups" / "directory.json").mkdir()
    seen = take_snapshot(node.options)
    assert (seen.keys, sorted(it.name for it in seen.unreadable)) == ([], ["directory", "link"])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(torn=st.integers(0, 400), junk=st.binary(max_size=30))
@example(torn=0, junk=b"")
@example(torn=400, junk=b"\x1b[2J\n")
def test_a_snapshot_survives_any_file_content(tmp_path_factory: pytest.TempPathFactory, torn: int, junk: bytes) -> None:
    node = NodeFiles(tmp_path_factory.mktemp("torn"))
    node.live("c1")
    node.completed("whole")
    path = node.run / "groups" / "c1.json"
    path.write_bytes(path.read_bytes()[:torn] + junk)
    seen = take_snapshot(node.options)
    assert "whole" in [key.state.key for key in seen.keys]
    assert len(seen.keys) + len(seen.unreadable) == 2


def test_failures_are_read_and_broken_ones_reported(node: NodeFiles) -> None:
    failure = node.fail("c1")
    node.write("unmonitored", "c2.json", "[]")
    seen = take_snapshot(node.options)
    assert seen.failures == [failure]
    assert [it.name for it in seen.unreadable_failures] == ["c2"]


# --- The run directory


def test_an_unreadable_run_directory_is_an_error(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run.write_text("")
    with pytest.raises(HookError) as caught:
        take_snapshot(node.options)
    assert caught.value.reason == Reason.IO
    node.run.unlink()
    node.record("c1")

    def denied(path: str, _dir_fd: int | None = None) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(system, "list_directory", denied)
    with pytest.raises(HookError, match="groups cannot be read"):
        take_snapshot(node.options)


def test_a_run_directory_writable_by_others_is_not_trusted(node: NodeFiles) -> None:
    node.run.mkdir()
    node.run.chmod(0o777)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(HookError, match="not root's alone"):
        take_snapshot(node.options)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_as_run_directory_is_not_followed(node: NodeFiles, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    node.run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HookError, match="cannot be read"):
        take_snapshot(node.options)


def test_no_descriptor_is_left_open(node: NodeFiles) -> None:
    node.live("c1")
    before = len(os.listdir("/proc/self/fd"))
    take_snapshot(node.options)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_index_leads_from_a_container_to_its_key(node: NodeFiles) -> None:
    node.index("c1", "key")
    node.write("members", "bad.json", "{")
    node.record("x")  # which would do for an index
    with Records(str(node.run)) as found:
        assert [records.glance_key(found, name) for name in ("c1", "bad", "none")] == ["key", None, None]


def test_runs_are_counted_by_the_size_of_their_file(node: NodeFiles) -> None:
    node.write("runs", "createRuntime-ok", "." * 7)
    node.write("runs", "poststop-lock_timeout", ".")
    node.write("runs", "nonsense", "..")
    node.write("runs", ".hidden-x", "..")
    (node.run / "runs" / "link-x").symlink_to("nonsense")
    assert take_snapshot(node.options).runs == {("createRuntime", "ok"): 7, ("poststop", "lock_timeout"): 1}


# --- RMIDs and orphans


def test_rmids_in_use_are_those_of_all_groups(node: NodeFiles) -> None:
    node.live("c1")
    node.make("oci-c2", "gold")
    node.make("somebodys")
    node.make("somebodys", "silver")
    odd = node.make("odd-prefix")
    node.record("c3", groups=[{"path": odd, "ctrl_group": "/"}])
    (node.root / "no_group").mkdir()
    rmids = take_snapshot(node.options).rmids
    assert rmids == Rmids(limit=8, ours=3, others=2 + 3)


def test_without_num_rmids_the_limit_is_unknown(node: NodeFiles) -> None:
    for file in node.root.glob("info/*/num_rmids"):
        file.write_text("many")
    assert take_snapshot(node.options).rmids == Rmids(limit=None, ours=0, others=1)


def test_without_resctrl_no_rmid_is_in_use(node: NodeFiles) -> None:
    node.live("c1")
    seen = take_snapshot(node.options.model_copy(update={"resctrl_root": "/nowhere"}))
    assert (seen.rmids, seen.orphans) == (None, [])
    assert only(seen).condition == "live"


def test_orphans_are_our_groups_without_a_record_and_a_live_member(node: NodeFiles) -> None:
    node.live("c1")
    lone = node.make("oci-lone")
    left = node.make("oci-over")
    node.completed("over")
    elsewhere = node.make("oci-c1", "gold")
    node.make("somebodys")
    node.make("oci-torn")
    node.write("groups", "torn.json", "{")
    node.make("oci-back")
    node.record("back", recovering=True)
    assert sorted(take_snapshot(node.options).orphans) == sorted([lone, left, elsewhere])


@pytest.mark.parametrize("fields", [{}, {"lingering_since": 1.0}])
def test_the_group_of_a_dead_pod_on_record_is_not_an_orphan(node: NodeFiles, fields: dict[str, float]) -> None:
    """It lingers, or waits for its next start, as in CrashLoopBackOff."""
    path = node.make("oci-c1")
    node.record("c1", groups=[{"path": path, "ctrl_group": "/"}], members={"c1": dead(path)}, **fields)
    assert take_snapshot(node.options).orphans == []


def test_a_container_recorded_meanwhile_is_not_unhooked(node: NodeFiles) -> None:
    node.unhooked("c1", "c2", "c3")
    node.index("c1", "c1")
    node.fail("c2")
    seen = take_snapshot(node.options).unhooked
    assert seen is not None
    assert list(seen.containers) == ["c3"]
    assert records.name_unhooked(seen) == ["shop/web-0 app (c3)"]


def test_a_group_removed_with_its_key_is_not_an_orphan(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.live("c1")
    real = Records.names

    def later(self: Records, part: type[Model]) -> list[str]:
        monkeypatch.undo()
        (node.run / "groups" / "c1.json").unlink()
        os.rename(node.path("oci-c1"), node.root / "gone")
        return real(self, part)

    monkeypatch.setattr(records.Records, "names", later)
    assert take_snapshot(node.options).orphans == []


# --- Rates


def two_looks(node: NodeFiles, monkeypatch: pytest.MonkeyPatch, change: object) -> Rates:
    """The rates between two looks, 2 seconds apart, with a change between them."""
    now = [10.0]
    monkeypatch.setattr(system, "monotonic", lambda: now[0])
    first = take_snapshot(node.options)
    change()  # type: ignore[operator]
    now[0] = 12.0
    return compare(first, take_snapshot(node.options), "now")


def test_rates_are_use_per_second(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.live("c1")
    more = {"mon_L3_00/mbm_total_bytes": "7000", "mon_PERF_PKG_00/core_energy": "38.750000"}
    found = two_looks(node, monkeypatch, lambda: node.count("oci-c1", more))
    (rate,) = found.keys
    assert found.seconds == 2.0
    assert rate.use["core_energy"] == Total(known=15 * MILLION, counted=1)
    assert rate.use["mbm_total_bytes"] == Total(known=1000 * MILLION, counted=1)
    assert rate.use["llc_occupancy"] == Total(known=4096 * MILLION, counted=1)


def test_rates_need_no_snapshots(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node.make("oci-c1", counters=NOW)
    node.record("c1", groups=[{"path": path, "ctrl_group": "/"}], members={"c1": alive(path)})
    more = {"mon_PERF_PKG_00/core_energy": "10.750000"}
    (rate,) = two_looks(node, monkeypatch, lambda: node.count("oci-c1", more)).keys
    assert rate.use["core_energy"].value == MILLION


def test_rates_are_sorted_by_use(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("idle", "busy", "reader", "other"):
        node.live(key)

    def work() -> None:
        node.count("oci-busy", {"mon_PERF_PKG_00/core_energy": "9.75"})
        node.count("oci-reader", {"mon_L3_00/mbm_total_bytes": "6000"})

    found = two_looks(node, monkeypatch, work)
    assert [it["key"] for it in rates_to_json(found)["keys"]] == ["busy", "reader", "idle", "other"]


def test_a_key_in_only_one_snapshot_has_no_rate(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.live("ended")
    path = node.live("again").groups[0].path

    def change() -> None:
        node.completed("ended")
        node.record("again", groups=[{"path": path, "ctrl_group": "/", "begin": NOW}])
        node.live("new")

    found = {rate.key.state.key: rate for rate in two_looks(node, monkeypatch, change).keys}
    assert set(found) == {"again", "new"}
    assert all(rate.use.keys() == {"llc_occupancy"} for rate in found.values())


def test_a_rate_counted_from_0_is_marked(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    energy = "mon_PERF_PKG_00/core_energy"
    node.live("c1")
    node.count("oci-c1", {energy: "Unavailable"})
    (rate,) = two_looks(node, monkeypatch, lambda: node.count("oci-c1", {energy: "4"})).keys
    assert rate.use["core_energy"] == Total(known=2 * MILLION, counted=1, from_nothing=1)


def test_an_ended_group_has_no_rate(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.completed("c1", completed_at=None)
    (rate,) = two_looks(node, monkeypatch, lambda: None).keys
    assert rate.use == {}


def test_a_counter_that_ran_backwards_has_an_unknown_rate(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.live("c1")
    less = {"mon_PERF_PKG_00/core_energy": "1", "mon_L3_00/mbm_total_bytes": "Unavailable"}
    (rate,) = two_looks(node, monkeypatch, lambda: node.count("oci-c1", less)).keys
    assert rate.use["core_energy"] == rate.use["mbm_total_bytes"] == Total(unknown=1)


def test_both_forms_of_a_state_read_the_same() -> None:
    """look_at compares groups: two readings of one text are equal."""
    fields = {"key": "c1", "kind": "pod", "groups": [{"path": "/r/mon_groups/x", "ctrl_group": "/", "begin": BEGIN}]}
    assert KeyState.model_validate(fields).groups == KeyState.model_validate(fields).groups
