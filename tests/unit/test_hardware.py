# SPDX-License-Identifier: Apache-2.0
"""What `list` and `doctor` say on other hardware: assignable counters (AMD), occupancy only, and MPAM (arm64).

The files of info/ are as the kernel's documentation and source have them: filesystems/resctrl.rst and
arch/arm64/mpam.rst of Documentation, fs/resctrl and drivers/resctrl of Linux 7.2 and 7.3.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook import procfs, system
from hook.cli import command_line as cli
from hook.doctor import Site, kernel
from hook.explain import make_error
from hook.node.paths import Places
from hook.resctrl import Resctrl
from hook.show import hardware
from tests.unit.nodes import NOW, NodeFiles

INFO = "/sys/fs/resctrl/info/L3_MON"
TRAFFIC = "memory traffic"
TOTAL = "mon_L3_00/mbm_total_bytes"
OCCUPANCY_ONLY = {"L3_MON/mon_features": "llc_occupancy\n"}
ALL_EVENTS = {"L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"}
ASSIGNABLE = {
    **ALL_EVENTS,
    "L3_MON/mbm_assign_mode": "[mbm_event]\ndefault\n",
    "L3_MON/mbm_assign_on_mkdir": "1\n",
    "L3_MON/num_mbm_cntrs": "0=4;1=4\n",
    "L3_MON/available_mbm_cntrs": "0=2;1=2\n",
}
"""AMD QoS with ABMC: a group takes two of the four counters in each domain."""
NONE_FREE = {**ASSIGNABLE, "L3_MON/available_mbm_cntrs": "0=0;1=0\n"}
TOO_FEW = {**ASSIGNABLE, "L3_MON/available_mbm_cntrs": "0=2;1=1\n"}
NO_ASSIGNMENT = {**ASSIGNABLE, "L3_MON/mbm_assign_on_mkdir": "0\n"}
DEFAULT_MODE = {**ASSIGNABLE, "L3_MON/mbm_assign_mode": "mbm_event\n[default]\n"}
OLD_NAME = {**ASSIGNABLE, "L3_MON/mbm_assign_mode": "[mbm_cntr_assign]\ndefault\n"}
MPAM = {
    "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\n",
    "L3_MON/num_rmids": "32\n",
    "L3/num_closids": "8\n",
    "MB/num_closids": "8\n",
}
"""arm64: 8 PARTIDs (CLOSIDs) with 4 PMGs each. It counts all traffic, and none separately as local."""


@pytest.fixture
def node(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> NodeFiles:
    """A CPU that does not count energy."""
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_flag=0, f_blocks=0, f_files=0))
    shutil.rmtree(node.root / "info/PERF_PKG_MON")
    node.run.mkdir()
    return node


@pytest.fixture
def arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "node", "7.3", "#1", "aarch64")))


def write(node: NodeFiles, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = node.root / "info" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def check(node: NodeFiles, subject: str) -> list[tuple[str, ...]]:
    """Level, finding and remedy of each finding of doctor's on a subject."""
    site = Site(Places(), node.options)
    found = [*kernel.check_resctrl(site), *kernel.check_rmids(site), *kernel.check_traffic(site)]
    return [(it.level, it.found, it.remedy) for it in found if it.subject == subject]


def list_lines(capsys: pytest.CaptureFixture[str], node: NodeFiles, *words: str) -> list[str]:
    assert cli.main(["list", *node.places, *words]) == 0
    return capsys.readouterr().out.splitlines()


# --- Assignable counters

FREE = "; ".join(f"echo '{event}:*=_' > /sys/fs/resctrl/mbm_L3_assignments" for event in hardware.TRAFFIC)
USE_FEWER = f"use fewer pods, or take counters from groups that do not need them, such as the root ctrl_group: {FREE}"
TURN_ON = f"echo 1 > {INFO}/mbm_assign_on_mkdir"
UNCOUNTED = f"{TRAFFIC} is not counted in 1 group without a hardware counter: /sys/fs/resctrl/mon_groups/oci-db"
NEXT = "free hardware counters: 0 of 4 (L3 0), 0 of 4 (L3 1); the next group needs 2 in each"
NEXT_IN_ONE = "free hardware counters: 2 of 4 (L3 0), 1 of 4 (L3 1); the next group needs 2 in each"
RESTART = "counters are free now: restart their pods"
MODE = "mbm_assign_mode is default: the CPU takes counters from groups between reads, and their use is lost"


@pytest.mark.parametrize(
    ("files", "shortage", "remedy_of_unassigned"),
    [
        (ASSIGNABLE, None, RESTART),
        (NONE_FREE, (NEXT, USE_FEWER), USE_FEWER),
        (TOO_FEW, (NEXT_IN_ONE, USE_FEWER), RESTART),
        (NO_ASSIGNMENT, ("new groups get no hardware counter", TURN_ON), f"{TURN_ON}, then restart their pods"),
        (DEFAULT_MODE, (MODE, f"at boot, before pods start: echo mbm_event > {INFO}/mbm_assign_mode"), None),
        (OLD_NAME, None, RESTART),
    ],
)
def test_want_of_hardware_counters_is_reported_with_what_helps(
    node: NodeFiles,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    shortage: tuple[str, str] | None,
    remedy_of_unassigned: str | None,
) -> None:
    write(node, files)
    node.live("web")
    expected = [("warning", *shortage)] if shortage else []
    free = "free hardware counters: 2 of 4 (L3 0), 2 of 4 (L3 1)"
    assert check(node, TRAFFIC) == (expected or [("ok", free, "")])
    assert not any(TRAFFIC in line for line in list_lines(capsys, node))
    if remedy_of_unassigned is not None:
        node.live("db")
        node.count("oci-db", {TOTAL: "Unassigned"})
        assert check(node, TRAFFIC) == [("warning", UNCOUNTED, remedy_of_unassigned), *expected]
        assert f"{UNCOUNTED}; remedy: {remedy_of_unassigned}" in list_lines(capsys, node)
        (text,) = list_lines(capsys, node, "--json")
        assert json.loads(text)["unassigned"] == [str(node.path("oci-db"))]


@pytest.mark.usefixtures("arm64")
def test_on_arm64_a_group_needs_one_counter(node: NodeFiles) -> None:
    write(node, {**NONE_FREE, **MPAM})
    ((level, found, remedy),) = check(node, TRAFFIC)
    assert (level, found.partition("; ")[2]) == ("warning", "the next group needs 1 in each")
    assert "mbm_local_bytes" not in remedy


def test_use_of_a_group_without_a_counter_is_unknown_and_not_zero(
    node: NodeFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a machine where all groups have counters, nothing is said."""
    write(node, ALL_EVENTS)
    node.live("web", begin=NOW)
    node.count("oci-web", {TOTAL: "Unassigned"})
    (text,) = list_lines(capsys, node, "--json")
    assert json.loads(text)["keys"][0]["use"]["mbm_total_bytes"]["value"] is None
    assert check(node, TRAFFIC) == []


@pytest.mark.parametrize("text", ["", "\n", "0\n", "0=x;1=\n", "0=-1\n", "0=٣\n", f"0={'9' * 5000}\n"])
def test_counters_that_are_no_numbers_are_none(node: NodeFiles, text: str) -> None:
    write(node, {"L3_MON/num_mbm_cntrs": text})
    assert hardware.read_assignable(str(node.root)) is None


@pytest.mark.usefixtures("fs")
def test_a_machine_without_the_files_has_none() -> None:
    root = "/sys/fs/resctrl"
    assert (hardware.read_assignable(root), hardware.list_events(root)) == (None, set())


# --- What is not counted


def test_nobody_is_told_that_memory_traffic_is_counted_where_it_is_not(node: NodeFiles) -> None:
    write(node, OCCUPANCY_ONLY)
    ((level, found, remedy),) = check(node, TRAFFIC)
    assert (level, found) == ("warning", "not counted: the kernel offers llc_occupancy")
    assert "rdt=" in remedy
    assert check(node, "counters")[0][2].endswith("; cache is counted without it")
    write(node, ALL_EVENTS)
    assert check(node, TRAFFIC) == []
    assert check(node, "counters")[0][2].endswith("cache and memory traffic are counted without it")


@pytest.mark.parametrize(
    ("vendor", "mode", "is_whole"),
    [
        ("AuthenticAMD", None, False),
        ("HygonGenuine", None, False),
        ("AuthenticAMD", "mbm_event\n[default]\n", False),
        ("AuthenticAMD", "[mbm_event]\ndefault\n", True),
        ("AuthenticAMD", "[mbm_cntr_assign]\ndefault\n", True),
        ("GenuineIntel", None, True),
        (None, None, True),
    ],
)
def test_doctor_says_that_amd_counts_memory_traffic_in_part(
    node: NodeFiles, vendor: str | None, mode: str | None, is_whole: bool
) -> None:
    """Its hardware tracks fewer RMIDs than there are, unless the kernel assigns counters (ABMC)."""
    write(node, {**ALL_EVENTS, **({"L3_MON/mbm_assign_mode": mode} if mode is not None else {})})
    head = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 25\n" if vendor else "processor\t: 0\n"
    Path("/proc").mkdir(exist_ok=True)
    Path("/proc/cpuinfo").write_text(head + "flags\t\t: cqm\n" * 1000)
    assert hardware.tracks_few(str(node.root)) is not is_whole
    found = check(node, TRAFFIC)
    assert [level for level, *_ in found] == ([] if is_whole else ["warning"])
    assert all("Unavailable" in text and ">=" in text for _, text, _ in found)
    part = "" if is_whole else " (in part)"
    assert check(node, "counters")[0][2].endswith(f"cache and memory traffic{part} are counted without it")


@pytest.mark.usefixtures("arm64")
def test_on_arm64_remedies_have_its_own_names(node: NodeFiles) -> None:
    write(node, {**MPAM, **OCCUPANCY_ONLY})
    assert "MPAM" in check(node, TRAFFIC)[0][2]
    assert not any("rdt=" in found[-1] for it in (TRAFFIC, "counters") for found in check(node, it))


@pytest.mark.parametrize("is_arm64", [True, False], ids=["arm64", "x86"])
def test_without_resctrl_or_monitoring_the_remedy_is_this_architectures(
    node: NodeFiles, request: pytest.FixtureRequest, is_arm64: bool
) -> None:
    if is_arm64:
        request.getfixturevalue("arm64")
    node.root.joinpath("mon_groups").rmdir()
    ((without_monitoring, _, how),) = check(node, "resctrl")
    shutil.rmtree(node.root)
    ((without_resctrl, _, remedy),) = check(node, "resctrl")
    assert without_monitoring == without_resctrl == "FAIL"
    assert ("mpam_resctrl.c" if is_arm64 else "rdt=") in how
    assert ("MPAM" if is_arm64 else "Intel RDT or AMD QoS") in remedy
    assert ("CONFIG_ARM64_MPAM" in remedy) is is_arm64


# --- RMIDs in limbo


def test_rmids_in_limbo_are_no_free_ones(node: NodeFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel showed it when it refused a new group. An old refusal, or another reason, says nothing of now."""
    write(node, {"L3_MON/max_threshold_occupancy": "40960\n"})
    node.live("web")
    used = list_lines(capsys, node)[0].removeprefix("RMIDs: ")
    now = system.boottime()
    node.fail("old", "rmids_in_limbo", boottime=now - 600)
    node.fail("other", "denied", boottime=now)
    assert check(node, "RMIDs") == [("ok", used, "")]
    node.fail("app", "rmids_in_limbo", boottime=now - 30, starttime=int((now - 720) * procfs.TICKS))
    node.fail("db", "rmids_in_limbo", boottime=now - 30, starttime=int((now - 60) * procfs.TICKS))
    problem = "no RMID is free: the freed ones are in limbo; without one: 2 containers for up to 12 min"
    why = "the kernel reuses a freed RMID once it has less of the cache than that, now 40960 bytes"
    remedy = f"echo 81920 > {INFO}/max_threshold_occupancy ({why})"
    assert check(node, "RMIDs") == [("FAIL", f"{used}: {problem}", remedy)]
    assert f"{problem}; remedy: {remedy}" in list_lines(capsys, node)


# --- RMIDs of MPAM


def test_on_arm64_rmids_are_those_of_each_ctrl_group(
    node: NodeFiles, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """num_rmids is 32, all pairs of 8 PARTIDs and 4 PMGs; a pod can have one of 3 in its ctrl_group."""
    write(node, MPAM)
    node.live("web")
    (node.root / "gold/mon_groups").mkdir(parents=True)
    assert list_lines(capsys, node)[0] == "RMIDs: 3 in use of 32 (1 ours, 2 of others)", "on x86 all ctrl_groups share"
    request.getfixturevalue("arm64")
    found = "3 in use of 8 (1 ours, 2 of others)"
    assert list_lines(capsys, node)[0] == f"RMIDs: {found}"
    assert check(node, "RMIDs") == [("ok", found, "")]


@pytest.mark.usefixtures("arm64")
def test_on_arm64_a_full_ctrl_group_is_named_though_another_one_has_rmids(
    node: NodeFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    write(node, MPAM)
    for name in "abc":
        node.make(f"oci-{name}", "gold")
    problem = "no RMID is left in ctrl_group gold: each has 4 (MPAM: the PMGs of its PARTID), one of them for itself"
    remedy = "use fewer pods in it, or remove groups of other tools"
    assert [it for it in check(node, "RMIDs") if it[0] == "FAIL"] == [("FAIL", problem, remedy)]
    assert f"{problem}; remedy: {remedy}" in list_lines(capsys, node)


@pytest.mark.usefixtures("arm64")
def test_on_arm64_without_rmids_fewer_pods_in_each_ctrl_group_help(
    node: NodeFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two PMGs for each PARTID: one for the root ctrl_group, one for a pod."""
    write(node, {**MPAM, "L3_MON/num_rmids": "16\n"})
    node.live("web")
    refused = make_error(Resctrl(str(node.root)), "/x", OSError(errno.ENOSPC, ""))
    assert "on arm64 the PMGs of one ctrl_group" in str(refused.hint)
    ((_, _, remedy),) = [it for it in check(node, "RMIDs") if "none left" in it[1]]
    assert remedy.startswith("use fewer pods in each ctrl_group, ")
    assert any(line.startswith("no RMID is left in ctrl_group /: each has 2") for line in list_lines(capsys, node))


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"L3_MON/num_rmids": "256\n", "L3/num_closids": "64\n", "MB/num_closids": "64\n"}, 4),
        ({"L3_MON/num_rmids": "256\n"}, None),
        ({"L3/num_closids": "64\n", "L3_MON/num_rmids": "\n"}, None),
        ({"L3_MON/num_rmids": "256\n", "L3/num_closids": "0\n"}, None),
        ({"L3_MON/num_rmids": "x\n", "L3/num_closids": "y\n"}, None),
    ],
)
@pytest.mark.usefixtures("arm64")
def test_rmids_of_a_ctrl_group(node: NodeFiles, files: dict[str, str], count: int | None) -> None:
    write(node, files)
    assert hardware.count_rmids(str(node.root), {}, 0).each == count
