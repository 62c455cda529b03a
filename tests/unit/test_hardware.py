# SPDX-License-Identifier: Apache-2.0
"""What is read of other hardware: assignable counters (AMD), and MPAM (arm64).

What doctor finds: test_doctor.

The files of info/ are as the kernel's documentation and source have them: filesystems/resctrl.rst
and arch/arm64/mpam.rst of Documentation, fs/resctrl and drivers/resctrl of Linux 7.2 and 7.3.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook.cli import command_line as cli
from hook.show import snapshot
from tests.unit.nodes import NOW, NodeFiles

TOTAL = "mon_L3_00/mbm_total_bytes"
ALL_EVENTS = {"L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"}
ASSIGNABLE = {
    **ALL_EVENTS,
    "L3_MON/mbm_assign_mode": "[mbm_event]\ndefault\n",
    "L3_MON/mbm_assign_on_mkdir": "1\n",
    "L3_MON/num_mbm_cntrs": "0=4;1=4\n",
    "L3_MON/available_mbm_cntrs": "0=2;1=2\n",
}
"""AMD QoS with ABMC: a group takes two of the four counters in each domain."""
MPAM = {
    "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\n",
    "L3_MON/num_rmids": "32\n",
    "L3/num_closids": "8\n",
    "MB/num_closids": "8\n",
}
"""arm64: 8 PARTIDs (CLOSIDs) with 4 PMGs each. It counts all traffic,
and none separately as local.
"""


@pytest.fixture
def node(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> NodeFiles:
    """A CPU that does not count energy."""
    monkeypatch.setattr(
        os, "statvfs", lambda _path: SimpleNamespace(f_flag=0, f_blocks=0, f_files=0)
    )
    shutil.rmtree(node.root / "info/PERF_PKG_MON")
    node.run.mkdir()
    return node


@pytest.fixture
def arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "uname", lambda: os.uname_result(("Linux", "node", "7.3", "#1", "aarch64"))
    )


def write(node: NodeFiles, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = node.root / "info" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def list_lines(capsys: pytest.CaptureFixture[str], node: NodeFiles, *words: str) -> list[str]:
    assert cli.main(["list", *node.places, *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_groups_without_a_hardware_counter_are_in_json(
    node: NodeFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their use is unknown, and not 0."""
    write(node, ASSIGNABLE)
    node.live("web")
    node.live("db", begin=NOW)
    node.count("oci-db", {TOTAL: "Unassigned"})
    (text,) = list_lines(capsys, node, "--json")
    answer = json.loads(text)
    assert answer["unassigned"] == [str(node.path("oci-db"))]
    assert [
        key["use"]["mbm_total_bytes"]["value"] for key in answer["keys"] if key["key"] == "db"
    ] == [None]


@pytest.mark.parametrize(
    ("vendor", "mode", "expected"),
    [
        ("AuthenticAMD", None, True),
        ("HygonGenuine", None, True),
        ("AuthenticAMD", "mbm_event\n[default]\n", True),
        ("AuthenticAMD", "[mbm_event]\ndefault\n", False),
        ("AuthenticAMD", "[mbm_cntr_assign]\ndefault\n", False),
        ("GenuineIntel", None, False),
        (None, None, False),
    ],
)
def test_amd_tracks_few_rmids_unless_the_kernel_assigns_counters(
    node: NodeFiles, vendor: str | None, mode: str | None, expected: bool
) -> None:
    write(node, {**ALL_EVENTS, **({"L3_MON/mbm_assign_mode": mode} if mode is not None else {})})
    head = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 25\n"
        if vendor
        else "processor\t: 0\n"
    )
    Path("/proc/cpuinfo").write_text(head + "flags\t\t: cqm\n" * 1000)
    assert snapshot.tracks_few(str(node.root)) is expected


# --- RMIDs of MPAM


def test_on_arm64_rmids_are_those_of_each_ctrl_group(
    node: NodeFiles, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """num_rmids is 32, all pairs of 8 PARTIDs and 4 PMGs;
    a pod can have one of 3 in its ctrl_group.
    """
    write(node, MPAM)
    node.live("web")
    (node.root / "gold/mon_groups").mkdir(parents=True)
    assert list_lines(capsys, node)[0] == "RMIDs: 3 in use of 32 (1 ours, 2 of others)", (
        "on x86 all ctrl_groups share"
    )
    request.getfixturevalue("arm64")
    assert list_lines(capsys, node)[0] == "RMIDs: 3 in use of 8 (1 ours, 2 of others)"


@pytest.mark.usefixtures("arm64")
def test_rmids_of_a_ctrl_group(node: NodeFiles) -> None:
    for texts, count in (
        ({"L3_MON/num_rmids": "256\n"}, None),
        ({"L3/num_closids": "64\n", "L3_MON/num_rmids": "\n"}, None),
        ({"L3_MON/num_rmids": "256\n", "L3/num_closids": "0\n"}, None),
        ({"L3_MON/num_rmids": "x\n", "L3/num_closids": "y\n"}, None),
        ({"L3_MON/num_rmids": "256\n", "L3/num_closids": "64\n", "MB/num_closids": "64\n"}, 4),
    ):
        write(node, texts)
        assert snapshot.count_rmids(str(node.root), {"/": []}, 0).limit == count, texts
