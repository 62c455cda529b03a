# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a node: what is there is seen, what vanishes is not,
each counter is read once, nothing is changed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import host, system
from hook.counters import MILLION
from hook.errors import HookError, Reason
from hook.models import Model
from hook.node import records
from hook.node.records import Records
from hook.resctrl import Resctrl
from hook.show.snapshot import (
    Inventory,
    Rates,
    Rmids,
    SeenKey,
    Total,
    Uncharged,
    compare,
    sum_key,
    take_snapshot,
)
from hook.words import explain
from tests.unit.nodes import BEGIN, NOW, NodeFiles

ENERGY, TRAFFIC, OCCUPANCY = (
    "mon_PERF_PKG_00/core_energy",
    "mon_L3_00/mbm_total_bytes",
    "mon_L3_00/llc_occupancy",
)
HERE: dict[str, Any] = {
    "path": "/sys/fs/resctrl/mon_groups/oci-c1",
    "ctrl_group": "/",
    "begin": BEGIN,
}
OVER = {**HERE, "path": "/sys/fs/resctrl/mon_groups/their-own", "end": NOW}
GOLD = {
    "path": "/sys/fs/resctrl/gold/mon_groups/oci-c1",
    "ctrl_group": "gold",
    "begin": {ENERGY: "1"},
}
NO_DATA = {ENERGY: "Unavailable"}
UNTRACKED = {TRAFFIC: "Unavailable"}
MISSING = {**HERE, "path": "/sys/fs/resctrl/mon_groups/oci-x"}


def only(inventory: Inventory) -> SeenKey:
    (key,) = inventory.keys
    return key


def list_files(fs: FakeFilesystem) -> dict[str, bytes | None]:
    """All that is below /sys and /run, with what is in it."""
    places = [
        f"{at}/{name}"
        for top in ("/sys", "/run")
        for at, _, names in os.walk(top)
        for name in ["", *names]
    ]
    return {
        name: fs.get_object(name).byte_contents if not name.endswith("/") else None
        for name in places
    }


# --- Keys and what they used


def test_a_node_without_a_run_directory_is_empty(node: NodeFiles) -> None:
    inventory = take_snapshot(node.options)
    assert (
        inventory.keys,
        inventory.unreadable,
        inventory.failures,
        inventory.orphans,
        inventory.runs,
    ) == (
        [],
        [],
        [],
        [],
        {},
    )
    assert not node.run.exists()


def test_a_group_that_cannot_be_looked_at_is_not_shown_as_missing(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.live("c1")
    node.make("oci-orphan")
    find = system.find_directory

    def refuse(path: str) -> bool:
        if "/mon_groups/" in path:
            raise OSError(errno.EIO, "refused", path)
        return find(path)

    monkeypatch.setattr(system, "find_directory", refuse)
    inventory = take_snapshot(node.options)
    assert (only(inventory).condition, [path[-6:] for path in inventory.orphans]) == (
        "live",
        ["orphan"],
    )


def test_a_snapshot_changes_nothing_and_leaves_no_descriptor_open(
    node: NodeFiles, fs: FakeFilesystem
) -> None:
    node.live("c1")
    node.write("groups", "torn.json", "{")
    node.fail("c2")
    before, opened = list_files(fs), [file for file in fs.open_files if file]
    take_snapshot(node.options, has_uncharged=True)
    assert (list_files(fs), [file for file in fs.open_files if file]) == (before, opened)
    assert len(before) > 20


@pytest.mark.parametrize(
    ("fields", "condition", "energy"),
    [
        ({"groups": [HERE]}, "live", Total(known=3_250_000, counted=1)),
        ({"groups": [MISSING]}, "missing", Total(unknown=1)),
        # The path of what is over may be another group's.
        ({"groups": [OVER, GOLD]}, "live", Total(known=13_250_000, counted=2)),
        (
            {"groups": [{**OVER, "path": HERE["path"]}], "completed_at": "x"},
            "completed",
            Total(3_250_000, counted=1),
        ),
        ({"recovering": True, "completed_at": "x"}, "recovering", None),
        ({"lingering_since": 1.0}, "lingering", None),
        ({"groups": [{**HERE, "begin": None}]}, "live", None),
        (
            {"groups": [{**HERE, "begin": {ENERGY: "Unavailable"}, "before": {ENERGY: "0.5"}}]},
            "live",
            Total(known=9_250_000, counted=1, from_nothing=1),
        ),
        (
            {"groups": [{**HERE, "begin": {ENERGY: "Error"}}, GOLD]},
            "live",
            Total(10 * MILLION, counted=1, unknown=1),
        ),
        ({"groups": [{**OVER, "begin": NO_DATA, "end": NO_DATA}]}, "live", Total(0, counted=1)),
    ],
    ids=[
        "live",
        "missing",
        "one over",
        "over",
        "recovering",
        "lingering",
        "no begin",
        "from nothing",
        "unknown",
        "no data",
    ],
)
def test_a_key_has_a_condition_and_a_sum_over_domains_and_groups(
    node: NodeFiles, fields: dict[str, Any], condition: str, energy: Total | None
) -> None:
    node.make("oci-c1", counters=NOW)
    node.make("oci-c1", "gold", {ENERGY: "11"})
    node.record("c1", **fields)
    key = only(take_snapshot(node.options))
    assert (key.condition, sum_key(key).get("core_energy")) == (condition, energy)


# --- What another tool has taken


@pytest.mark.parametrize("ctrl_group", ["/", "gold"])
def test_a_key_whose_container_another_tool_has_taken_says_so_and_a_part_of_its_use_is_unknown(
    node: NodeFiles, ctrl_group: str
) -> None:
    path = node.live("c1").groups[0].path
    node.record("c2", members={"c2": node.dead(path)})
    assert [key.taken for key in take_snapshot(node.options).keys] == [{}, {}]
    theirs = node.take(ctrl_group=ctrl_group)
    inventory = take_snapshot(node.options)
    assert [(key.state.key, key.condition, key.taken) for key in inventory.keys] == [
        ("c1", "taken", {"c1": theirs}),
        ("c2", "live", {}),
    ]
    assert inventory.list_taken() == [(inventory.keys[0], "c1", theirs)]
    use = sum_key(inventory.keys[0], has_gauges=True)
    assert use["core_energy"] == Total(3_250_000, counted=1, unknown=1)
    assert use["llc_occupancy"] == Total(4096 * MILLION, counted=1)


def test_a_group_on_record_has_taken_nobody_whatever_its_prefix(node: NodeFiles) -> None:
    """A member is recorded in one group, and is in another one, of a hook with another prefix."""
    node.live("c1")
    theirs = node.take()
    node.record("c2", groups=[{"path": theirs, "ctrl_group": "/"}])
    assert {key.condition for key in take_snapshot(node.options).keys} == {"live"}
    node.record("c2", groups=[{"path": theirs, "ctrl_group": "/", "end": {}}], completed_at="x")
    assert [key.condition for key in take_snapshot(node.options).keys] == ["taken", "completed"]


def test_others_groups_are_read_once_for_all_members(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        node.live(f"c{number}")
    theirs = node.take()
    reads: list[str] = []
    read = Resctrl.tasks

    def tasks(self: Resctrl, path: str) -> set[int] | None:
        reads.append(path)
        return read(self, path)

    monkeypatch.setattr(Resctrl, "tasks", tasks)
    assert len(take_snapshot(node.options).list_taken()) == 20
    assert reads == [theirs]


# --- Sums


def test_members_are_dead_alive_or_unknown_and_an_age_is_never_negative(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = node.make("oci-c1")
    members = {
        "a": node.alive(path),
        "b": node.dead(path),
        "c": {**node.alive(path), "pid": 2**31 - 1},
    }
    for born, age in ((1e12, 0), (None, None)):
        node.record("c1", members=members, created_boottime=born)
        key = only(take_snapshot(node.options))
        assert (key.alive, key.list_alive(), key.age) == (
            {"a": True, "b": False, "c": False},
            ["a"],
            age,
        )
    monkeypatch.setattr(system, "is_dead", lambda _pid, _born: None)
    assert only(take_snapshot(node.options)).list_alive() == ["a", "b", "c"]


# --- What changes meanwhile


def when_counted(monkeypatch: pytest.MonkeyPatch, *happenings: Callable[[], object]) -> list[str]:
    """Something happens each time that a group's counters have been read;
    the paths of these groups.
    """
    waiting, real, read = list(happenings), Resctrl.counters, list[str]()

    def counted(self: Resctrl, path: str) -> dict[str, str]:
        read.append(path)
        try:
            return real(self, path)
        finally:
            if waiting:
                waiting.pop(0)()

    monkeypatch.setattr(Resctrl, "counters", counted)
    return read


@pytest.mark.parametrize("has_uncharged", [False, True])
def test_a_key_that_ends_while_it_is_read_is_read_again(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch, has_uncharged: bool
) -> None:
    """The counters of the next incarnation, set against this one's begin,
    would be use that never was.
    """
    path = node.live("c1").groups[0].path
    again = {**HERE, "begin": NOW, "before": {ENERGY: "3.25"}}
    read = when_counted(monkeypatch, lambda: node.record("c1", groups=[again]))
    key = only(take_snapshot(node.options, has_uncharged=has_uncharged))
    assert sum_key(key)["core_energy"] == Total(known=3_250_000, counted=1)
    assert read.count(path) == 2
    when_counted(monkeypatch, lambda: node.completed("c1"))
    assert only(take_snapshot(node.options, has_uncharged=has_uncharged)).condition == "completed"


def test_a_key_that_changes_at_each_read_is_reported(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.live("c1")
    changes = [
        lambda at=at: node.record("c1", groups=[{**HERE, "begin": {"a/b": str(at)}}])
        for at in range(9)
    ]
    when_counted(monkeypatch, *changes)
    (broken,) = take_snapshot(node.options).unreadable
    assert (broken.name, broken.problem) == ("c1", "it changes faster than it can be read")


def test_what_vanishes_after_the_listing_is_left_out(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.live("c1")
    node.fail("c2")
    when_counted(
        monkeypatch, (node.run / "groups/c1.json").unlink, (node.run / "unmonitored/c2.json").unlink
    )
    node.live("c3")
    inventory = take_snapshot(node.options)
    assert (
        [key.state.key for key in inventory.keys],
        inventory.unreadable,
        inventory.failures,
    ) == (["c3"], [], [])


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
def test_a_broken_state_is_reported_beside_the_others(
    node: NodeFiles, text: str, problem: str
) -> None:
    node.live("c1")
    path = node.write("groups", "bad.json", text)
    inventory = take_snapshot(node.options)
    (broken,) = inventory.unreadable
    assert (only(inventory).state.key, broken.name, broken.file) == ("c1", "bad", str(path))
    assert problem in broken.problem
    assert path.read_text() == text


def test_other_files_are_not_read_as_states(node: NodeFiles) -> None:
    for name in (".c1.tmp", "c1.json.unreadable-7", ".json", "-odd.json"):
        node.write("groups", name, "{")
    (node.run / "groups" / "link.json").symlink_to("/etc/hostname")
    (node.run / "groups" / "directory.json").mkdir()
    inventory = take_snapshot(node.options)
    assert (inventory.keys, sorted(broken.name for broken in inventory.unreadable)) == (
        [],
        ["directory", "link"],
    )


# --- The run directory


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda run: run.write_text(""), "is a file, not a directory"),
        (lambda run: (run.mkdir(), run.chmod(0o777)), "its mode 0777"),
        (lambda run: run.symlink_to("/tmp"), "is a link to /tmp, not a directory"),
    ],
)
def test_a_run_directory_that_cannot_be_trusted_is_an_error(
    node: NodeFiles, fs: FakeFilesystem, make: Callable[[Path], object], problem: str
) -> None:
    make(node.run)
    opened = [file for file in fs.open_files if file]
    with pytest.raises(HookError) as caught:
        take_snapshot(node.options)
    assert problem in str(explain(caught.value))
    assert (caught.value.reason, [file for file in fs.open_files if file]) == (Reason.IO, opened)


def test_runs_are_counted_by_the_size_of_their_file(node: NodeFiles) -> None:
    for name, text in {
        "createRuntime-ok": 7 * ".",
        "poststop-lock_timeout": ".",
        "nonsense": "..",
        ".x-x": "..",
    }.items():
        node.write("runs", name, text)
    (node.run / "runs" / "link-x").symlink_to("nonsense")
    assert take_snapshot(node.options).runs == {
        ("createRuntime", "ok"): 7,
        ("poststop", "lock_timeout"): 1,
    }


# --- RMIDs and orphans


def test_rmids_in_use_are_those_of_all_groups(node: NodeFiles) -> None:
    node.live("c1")
    for name, ctrl_group in (
        ("oci-c2", "gold"),
        ("theirs", "/"),
        ("theirs", "silver"),
        ("odd-prefix", "/"),
    ):
        node.make(name, ctrl_group)
    node.record("c3", groups=[{"path": str(node.path("odd-prefix")), "ctrl_group": "/"}])
    (node.root / "no_group").mkdir()
    assert take_snapshot(node.options).rmids == Rmids(limit=8, ours=3, others=2 + 3)
    for file in node.root.glob("info/*/num_rmids"):
        file.write_text("many")
    assert take_snapshot(node.options).rmids == Rmids(limit=None, ours=3, others=2 + 3)


def test_without_resctrl_no_rmid_is_in_use(node: NodeFiles) -> None:
    node.live("c1")
    inventory = take_snapshot(
        node.options.model_copy(update={"resctrl_root": "/nowhere"}), has_uncharged=True
    )
    assert (inventory.rmids, inventory.orphans, inventory.uncharged, only(inventory).condition) == (
        None,
        [],
        {},
        "live",
    )


def test_orphans_are_our_groups_without_a_record_and_a_live_member(node: NodeFiles) -> None:
    """The group of a dead pod on record lingers, or waits for its next start,
    as in CrashLoopBackOff.
    """
    node.live("c1")
    orphans = [node.make("oci-lone"), node.make("oci-over"), node.make("oci-c1", "gold")]
    node.completed("over")
    for name in ("theirs", "oci-torn", "oci-back"):
        node.make(name)
    node.write("groups", "torn.json", "{")
    node.record("back", recovering=True)
    for key, fields in {"crashed": {}, "lingers": {"lingering_since": 1.0}}.items():
        path = node.make(f"oci-{key}")
        groups = [{"path": path, "ctrl_group": "/"}]
        node.record(key, groups=groups, members={key: node.dead(path)}, **fields)
    assert sorted(take_snapshot(node.options).orphans) == sorted(orphans)


def test_a_group_removed_with_its_key_is_not_an_orphan(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.live("c1")
    real = Records.list_names

    def later(self: Records, part: type[Model]) -> list[str]:
        shutil.rmtree(node.path("oci-c1"), ignore_errors=True)
        (node.run / "groups/c1.json").unlink(missing_ok=True)
        return real(self, part)

    monkeypatch.setattr(Records, "list_names", later)
    assert take_snapshot(node.options).orphans == []


def test_a_container_recorded_meanwhile_is_not_unhooked(node: NodeFiles) -> None:
    node.unhooked("c1", "c2", "c3")
    node.index("c1", "c1")
    node.fail("c2")
    unhooked = take_snapshot(node.options).unhooked
    assert unhooked is not None
    assert (list(unhooked.containers), records.name_unhooked(unhooked.containers)) == (
        ["c3"],
        ["shop/web-0 app (c3)"],
    )


# --- What is charged to no pod


def read_uncharged(node: NodeFiles) -> Uncharged:
    return take_snapshot(node.options, has_uncharged=True).uncharged


def test_what_mon_groups_count_is_taken_off_and_each_is_read_once(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what those of other tools do: it is not the ctrl_group's own."""
    node.make("oci-a", counters={ENERGY: "10.5", OCCUPANCY: "64"})
    node.make("theirs", counters={ENERGY: "1", OCCUPANCY: "Unavailable"})
    node.count_whole({ENERGY: "20", OCCUPANCY: "100"})
    path = node.make("oci-a", "gold", {ENERGY: "3"})
    node.record("a", groups=[{"path": path, "ctrl_group": "gold", "begin": {ENERGY: "1"}}])
    node.count_whole({ENERGY: "5"}, "gold")
    read = when_counted(monkeypatch)
    inventory = take_snapshot(node.options, has_uncharged=True)
    assert inventory.uncharged == {
        "/": {ENERGY: "8.500000", OCCUPANCY: "36"},
        "gold": {ENERGY: "2"},
    }
    assert sum_key(only(inventory))["core_energy"].value == 2 * MILLION
    assert (only(inventory).groups[0].exists, len(read), set(Counter(read).values())) == (
        True,
        5,
        {1},
    )


def test_what_is_no_number_is_none_and_nothing_is_negative(node: NodeFiles) -> None:
    """But a package on which no task of a ctrl_group ran used nothing."""
    node.make("oci-a", counters={OCCUPANCY: "64"})
    node.count_whole({ENERGY: "Error", TRAFFIC: "Unavailable", OCCUPANCY: "1"})
    node.make("oci-a", "gold", counters={ENERGY: "Unavailable"})
    node.count_whole({ENERGY: "Unavailable"}, "gold")
    expected = {"/": {ENERGY: "", TRAFFIC: "", OCCUPANCY: "0"}, "gold": {ENERGY: "0"}}
    assert read_uncharged(node) == expected


@pytest.mark.parametrize("is_amd", [True, False])
def test_traffic_of_a_group_that_is_tracked_again_is_not_mistaken_for_that_of_tasks_without_a_group(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch, is_amd: bool
) -> None:
    """AMD's hardware says Unavailable at the first read.

    By then it would be missing in the ctrl_group's sum only.
    """
    node.make("oci-a", counters={TRAFFIC: "Unavailable"})
    node.make("oci-b", counters={TRAFFIC: "Unavailable"})
    node.count_whole({TRAFFIC: "40", OCCUPANCY: "1"})
    Path("/proc").mkdir(exist_ok=True)
    Path("/proc/cpuinfo").write_text(
        f"vendor_id\t: {'AuthenticAMD' if is_amd else 'GenuineIntel'}\n"
    )
    assert read_uncharged(node) == {"/": {TRAFFIC: "40", OCCUPANCY: "1"}}, (
        "what stays untracked is in neither"
    )
    when_counted(monkeypatch, lambda: node.count("oci-a", {TRAFFIC: "39"}))
    assert read_uncharged(node) == {"/": {TRAFFIC: "" if is_amd else "1", OCCUPANCY: "1"}}


@pytest.mark.parametrize(
    ("assignments", "is_amd", "expected"),
    [
        ("mbm_total_bytes:0=_;1=e\nmbm_local_bytes:0=e;1=_\n", False, ["", "0", "3", ""]),
        ("mbm_total_bytes:0=e;1=e\nmbm_local_bytes:0=e;1=e\n", False, ["0", "0", "3", "3"]),
        ("odd\n", False, ["0", "0", "3", "3"]),
        (None, False, ["0", "0", "3", "3"]),
        (None, True, ["", "", "3", "3"]),
    ],
    ids=["unassigned", "assigned", "of another form", "Intel", "untracked"],
)
def test_traffic_of_no_pod_is_unknown_where_the_ctrl_group_itself_is_not_counted(
    node: NodeFiles, assignments: str | None, is_amd: bool, expected: list[str]
) -> None:
    """Its counter then shows the sum of its mon_groups, or no number."""
    names = [
        f"mon_L3_0{domain}/mbm_{event}_bytes" for event in ("total", "local") for domain in (0, 1)
    ]
    node.make("oci-a", counters={**dict.fromkeys(names, "40"), ENERGY: "5"})
    node.count_whole({**dict(zip(names, ["40", "40", "43", "43"])), ENERGY: "5"})
    if assignments is not None:
        (node.root / "mbm_L3_assignments").write_text(assignments)
    Path("/proc").mkdir(exist_ok=True)
    Path("/proc/cpuinfo").write_text(
        f"vendor_id\t: {'AuthenticAMD' if is_amd else 'GenuineIntel'}\n"
    )
    assert read_uncharged(node) == {"/": {**dict(zip(names, expected)), ENERGY: "0"}}


@pytest.mark.parametrize("times", [1, 99])
def test_a_group_that_comes_meanwhile_is_not_taken_for_tasks_without_a_group(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Its RMID counted for another one before: that is in the sum at once."""
    node.count_whole({ENERGY: "20"})
    read, left = Resctrl.counters, [times]

    def read_while_groups_come(kernel: Resctrl, path: str) -> dict[str, str]:
        if path == str(node.root) and left[0]:
            left[0] -= 1
            node.make(f"oci-{left[0]}", counters={ENERGY: "4000"})
            node.count_whole({ENERGY: str(20 + 4000 * (times - left[0]))})
        return read(kernel, path)

    monkeypatch.setattr(Resctrl, "counters", read_while_groups_come)
    assert read_uncharged(node) == ({"/": {ENERGY: "20"}} if times == 1 else {})


# --- Rates


def test_a_part_of_the_rate_of_a_taken_key_is_unknown(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.live("c1")
    node.take()
    ((_, use),) = two_looks(node, monkeypatch, lambda: node.count("oci-c1", {ENERGY: "10.75"})).keys
    assert use["core_energy"] == Total(1 * MILLION, counted=1, unknown=1)
    monkeypatch.setattr(host, "in_host_namespaces", lambda: False)
    assert only(take_snapshot(node.options)).condition == "live", (
        "pids of another namespace are no one's"
    )


def two_looks(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]
) -> Rates:
    """The rates between two looks, 2 seconds apart, with a change between them."""
    now = [10.0]
    monkeypatch.setattr(system, "monotonic", lambda: now[0])
    first = take_snapshot(node.options)
    change()
    now[0] = 12.0
    return compare(first, take_snapshot(node.options), "now")


CACHE = Total(known=4096 * MILLION, counted=1)


@pytest.mark.parametrize(
    ("fields", "first", "second", "expected"),
    [
        (
            {},
            {},
            {ENERGY: "38.75"},
            {"core_energy": Total(15 * MILLION, 1), "mbm_total_bytes": Total(0, 1)},
        ),
        (
            {"begin": None},
            {},
            {ENERGY: "10.75"},
            {"core_energy": Total(MILLION, 1), "mbm_total_bytes": Total(0, 1)},
        ),
        (
            {},
            NO_DATA,
            {ENERGY: "4"},
            {"core_energy": Total(2 * MILLION, counted=1, from_nothing=1)},
        ),
        ({}, NO_DATA, {}, {"core_energy": Total(0, 1)}),
        (
            {},
            {},
            {ENERGY: "1", TRAFFIC: "Error"},
            dict.fromkeys(("core_energy", "mbm_total_bytes"), Total(unknown=1)),
        ),
        ({}, UNTRACKED, {TRAFFIC: "9000000000"}, {"mbm_total_bytes": Total(unknown=1)}),
        ({}, {}, UNTRACKED, {"mbm_total_bytes": Total(unknown=1)}),
        ({}, UNTRACKED, UNTRACKED, {"mbm_total_bytes": Total(unknown=1)}),
        ({"end": NOW}, {}, {}, None),
    ],
    ids=[
        *("per second", "no begin", "counted from 0", "no data", "ran backwards"),
        *("tracked again", "not tracked any more", "not tracked", "over"),
    ],
)
def test_a_rate_is_use_per_second(
    node: NodeFiles,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    first: dict[str, str],
    second: dict[str, str],
    expected: dict[str, Total] | None,
) -> None:
    node.make("oci-c1", counters={**NOW, **first})
    node.record("c1", groups=[{**HERE, **fields}])
    rates = two_looks(node, monkeypatch, lambda: node.count("oci-c1", second))
    ((_, use),) = rates.keys
    assert rates.seconds == 2.0
    assert (use == {}) if expected is None else (expected.items() <= use.items())
    assert use.get("llc_occupancy") == (None if expected is None else CACHE)


def test_a_key_in_only_one_snapshot_has_no_rate(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.live("ended")
    path = node.live("again").groups[0].path

    def change() -> None:
        node.completed("ended")
        node.record("again", groups=[{"path": path, "ctrl_group": "/", "begin": NOW}])
        node.live("new")

    uses = {key.state.key: [*use] for key, use in two_looks(node, monkeypatch, change).keys}
    assert uses == {"again": ["llc_occupancy"], "new": ["llc_occupancy"]}
