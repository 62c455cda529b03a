# SPDX-License-Identifier: Apache-2.0
"""What `list` and `doctor` say on other hardware: assignable counters (AMD), occupancy only, and MPAM (arm64)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.resctrlfs import Mounted, shapes
from tests.support.hook import PYZ, Hook, created, task

ON_ARM64 = """
import os, runpy, sys
os.uname = lambda: os.uname_result(("Linux", "node", "7.3", "#1", "aarch64"))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ARM64 = (sys.executable, "-c", ON_ARM64)
"""The shipped file on a machine that says that it is one."""
TRAFFIC = "memory traffic"


class PodNode:
    """A node on which the pods of these tests live."""

    def __init__(self, resctrl: Mounted, run_dir: Path) -> None:
        self.root = resctrl.root
        self.info = resctrl.root / "info" / "L3_MON"
        self.hook = Hook(resctrl.root, run_dir)

    def start(self, name: str, pid: int) -> None:
        assert self.hook(created(name, pid)).status == 0

    def ask(self, *words: str, python: Sequence[str] = ()) -> str:
        places = [f"--resctrl-root={self.root}", f"--run-dir={self.hook.run_dir}"]
        command = [*python, str(PYZ), *words, *places]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout

    def lines(self, python: Sequence[str] = ()) -> list[str]:
        """The lines of `list`, but for the table."""
        return [line for line in self.ask("list", python=python).splitlines() if " " in line.strip()]

    def doctor(self, subject: str, python: Sequence[str] = ()) -> list[tuple[str, str, str]]:
        """Level, finding and remedy of each finding on a subject."""
        found = json.loads(self.ask("doctor", "--json", python=python))["findings"]
        return [(it["level"], it["found"], it["remedy"] or "") for it in found if it["subject"] == subject]


@pytest.fixture
def node(resctrl: Mounted, tmp_path: Path) -> PodNode:
    return PodNode(resctrl, tmp_path / "run")


@pytest.fixture
def pids() -> Iterator[list[int]]:
    with task() as first, task() as second:
        yield [first.pid, second.pid]


# --- Assignable counters


@pytest.mark.knobs.with_args(**shapes.AMD_ABMC)
def test_enough_counters_are_well(node: PodNode, pids: list[int]) -> None:
    node.start("web", pids[0])
    assert node.doctor(TRAFFIC) == [("ok", "free hardware counters: 28 of 32 (L3 0), 28 of 32 (L3 1)", "")]
    assert not any(TRAFFIC in line for line in node.lines())


@pytest.mark.knobs.with_args(**shapes.AMD | {"mbm_cntrs": 4})
def test_a_group_without_a_counter_is_reported_and_the_remedy_helps(node: PodNode, pids: list[int]) -> None:
    """The root ctrl_group has two of the four, and the first pod the others."""
    node.start("web", pids[0])
    (level, found, remedy) = node.doctor(TRAFFIC)[0]
    assert (level, found) == (
        "warning",
        "free hardware counters: 0 of 4 (L3 0), 0 of 4 (L3 1); the next group needs 2 in each",
    )
    node.start("db", pids[1])
    path = f"{node.root}/mon_groups/oci-db"
    problem = f"{TRAFFIC} is not counted in 1 group without a hardware counter: {path}"
    assert f"{problem}; remedy: {remedy}" in node.lines()
    assert json.loads(node.ask("list", "--json"))["unassigned"] == [path]
    assert ("warning", problem, remedy) in node.doctor(TRAFFIC)
    commands = remedy.partition("root ctrl_group: ")[2]
    assert subprocess.run(["sh", "-ec", commands], timeout=300, check=False).returncode == 0
    assert (node.info / "available_mbm_cntrs").read_text() == "0=2;1=2\n"
    ((_, found, remedy),) = node.doctor(TRAFFIC)
    assert (found, remedy) == (problem, "counters are free now: restart their pods")
    restart(node, "db", pids[1])
    assert not any(TRAFFIC in line for line in node.lines())


def restart(node: PodNode, name: str, pid: int) -> None:
    """Its group is made again."""
    (node.root / "mon_groups" / f"oci-{name}").rmdir()
    node.start(name, pid)


@pytest.mark.knobs.with_args(**shapes.AMD_ABMC)
def test_no_assignment_on_mkdir_is_reported_and_the_remedy_helps(node: PodNode, pids: list[int]) -> None:
    (node.info / "mbm_assign_on_mkdir").write_text("0\n")
    command = f"echo 1 > {node.info}/mbm_assign_on_mkdir"
    assert node.doctor(TRAFFIC) == [("warning", "new groups get no hardware counter", command)]
    node.start("web", pids[0])
    assert any(line.endswith(f"oci-web; remedy: {command}, then restart their pods") for line in node.lines())
    assert subprocess.run(["sh", "-ec", command], timeout=300, check=False).returncode == 0
    restart(node, "web", pids[0])
    assert [level for level, _, _ in node.doctor(TRAFFIC)] == ["ok"]


@pytest.mark.knobs.with_args(**shapes.AMD_ABMC)
def test_the_mode_in_which_the_cpu_moves_counters_is_reported(node: PodNode) -> None:
    (node.info / "mbm_assign_mode").write_text("default\n")
    ((level, found, remedy),) = node.doctor(TRAFFIC)
    assert (level, found.partition(":")[0]) == ("warning", "mbm_assign_mode is default")
    command = remedy.partition("before pods start: ")[2]
    assert subprocess.run(["sh", "-ec", command], timeout=300, check=False).returncode == 0
    assert [level for level, _, _ in node.doctor(TRAFFIC)] == ["ok"]


def test_the_use_of_a_group_without_a_counter_is_unknown_and_not_zero(
    node: PodNode, resctrl: Mounted, pids: list[int]
) -> None:
    """Of a machine where all groups have counters, nothing is said."""
    resctrl.control(do="grow", amount=7)
    node.start("web", pids[0])
    for domain in ("mon_L3_00", "mon_L3_01"):
        resctrl.control(
            do="set_counter", group="/mon_groups/oci-web", domain=domain, event="mbm_total_bytes", value="Unassigned"
        )
    (key,) = json.loads(node.ask("list", "--json"))["keys"]
    assert key["use"]["mbm_total_bytes"]["value"] is None
    assert node.doctor(TRAFFIC) == []


# --- Occupancy only


@pytest.mark.knobs.with_args(**shapes.OCCUPANCY_ONLY)
def test_nobody_is_told_that_memory_traffic_is_counted_where_it_is_not(node: PodNode, pids: list[int]) -> None:
    node.start("web", pids[0])
    ((level, found, remedy),) = node.doctor(TRAFFIC)
    assert (level, found) == ("warning", "not counted: the kernel offers llc_occupancy")
    assert "rdt=" in remedy
    ((_, _, remedy),) = node.doctor("counters")
    assert remedy.endswith("; cache is counted without it")
    (key,) = json.loads(node.ask("list", "--json"))["keys"]
    assert "mbm_total_bytes" not in key["use"]


@pytest.mark.knobs.with_args(**shapes.AMD)
def test_a_machine_without_energy_counts_the_rest(node: PodNode) -> None:
    ((_, _, remedy),) = node.doctor("counters")
    assert remedy.endswith("cache and memory traffic are counted without it")


# --- MPAM


@pytest.mark.knobs.with_args(**shapes.MPAM_OCCUPANCY)
def test_on_arm64_remedies_have_its_own_names(node: PodNode) -> None:
    for subject in (TRAFFIC, "counters"):
        ((_, _, remedy),) = node.doctor(subject, ARM64)
        assert "rdt=" not in remedy
    assert "MPAM" in node.doctor(TRAFFIC, ARM64)[0][2]


@pytest.mark.knobs(rmids=0)
@pytest.mark.parametrize("python", [ARM64, ()], ids=["arm64", "x86"])
def test_without_resctrl_or_monitoring_the_remedy_is_this_architectures(node: PodNode, python: Sequence[str]) -> None:
    ((without_monitoring, _, how),) = node.doctor("resctrl", python)
    node.root = node.root.parent / "none"
    ((without_resctrl, _, remedy),) = node.doctor("resctrl", python)
    assert without_monitoring == without_resctrl == "fail"
    assert ("mpam_resctrl.c" if python else "rdt=") in how
    assert ("MPAM" if python else "Intel RDT or AMD QoS") in remedy
    assert ("CONFIG_ARM64_MPAM" in remedy) is bool(python)


@pytest.mark.knobs.with_args(**shapes.MPAM)
def test_on_arm64_rmids_are_those_of_each_ctrl_group(node: PodNode, pids: list[int]) -> None:
    """num_rmids is 32, all pairs of 8 PARTIDs and 4 PMGs; a pod can have one of 3 in its ctrl_group."""
    node.start("web", pids[0])
    assert node.lines(ARM64)[0] == "RMIDs: 2 in use of 4 (1 ours, 1 of others)"
    assert node.doctor("RMIDs", ARM64) == [("ok", "2 in use of 4 (1 ours, 1 of others)", "")]
    (node.root / "gold").mkdir()
    assert node.lines(ARM64)[0] == "RMIDs: 3 in use of 8 (1 ours, 2 of others)"
    assert node.lines()[0] == "RMIDs: 3 in use of 32 (1 ours, 2 of others)", "on x86 all ctrl_groups share them"


@pytest.mark.knobs.with_args(**shapes.MPAM)
def test_on_arm64_a_full_ctrl_group_is_named_though_another_one_has_rmids(node: PodNode) -> None:
    (node.root / "gold").mkdir()
    for name in "abc":
        (node.root / "gold" / "mon_groups" / f"oci-{name}").mkdir()
    assert not [it for it in node.doctor("RMIDs", ARM64) if it[0] == "fail" and "none left" in it[1]]
    problem = "no RMID is left in ctrl_group gold: each has 4 (MPAM: the PMGs of its PARTID), one of them for itself"
    remedy = "use fewer pods in it, or remove groups of other tools"
    assert ("fail", problem, remedy) in node.doctor("RMIDs", ARM64)
    node.hook.run_dir.mkdir(exist_ok=True)
    assert f"{problem}; remedy: {remedy}" in node.lines(ARM64)


@pytest.mark.knobs.with_args(**shapes.MPAM | {"rmids": 16})
def test_on_arm64_a_pod_finds_no_rmid_and_the_full_ctrl_group_is_named(node: PodNode, pids: list[int]) -> None:
    """Two PMGs for each PARTID: one for the root ctrl_group, one for a pod."""
    node.start("web", pids[0])
    node.start("db", pids[1])
    assert node.hook.reasons() == {"db": "no_rmids"}
    assert "on arm64 the PMGs of one ctrl_group" in node.ask("list", "unmonitored", python=ARM64)
    ((_, _, remedy),) = [it for it in node.doctor("RMIDs", ARM64) if "none left" in it[1]]
    assert remedy.startswith("use fewer pods in each ctrl_group, ")
    assert any(line.startswith("no RMID is left in ctrl_group /: each has 2") for line in node.lines(ARM64))


@pytest.mark.knobs.with_args(**shapes.MPAM_ASSIGNED)
def test_on_arm64_a_group_needs_one_counter(node: PodNode, pids: list[int]) -> None:
    """Of two, the root ctrl_group has one."""
    assert node.doctor(TRAFFIC, ARM64)[0][0] == "ok"
    node.start("web", pids[0])
    ((level, found, remedy),) = node.doctor(TRAFFIC, ARM64)
    assert (level, found.partition("; ")[2]) == ("warning", "the next group needs 1 in each")
    assert "mbm_local_bytes" not in remedy
