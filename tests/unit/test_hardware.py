# SPDX-License-Identifier: Apache-2.0
"""What the hardware can count, as info/ tells it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.observe import hardware

ABMC = {
    "L3_MON/num_mbm_cntrs": "0=32;1=32\n",
    "L3_MON/available_mbm_cntrs": "0=30;1=0\n",
    "L3_MON/mbm_assign_mode": "[mbm_event]\ndefault\n",
    "L3_MON/mbm_assign_on_mkdir": "1\n",
    "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config\nmbm_local_bytes\n",
}


@pytest.fixture
def root(fs: FakeFilesystem) -> Path:
    fs.create_dir("/sys/fs/resctrl/info/L3_MON")
    return Path("/sys/fs/resctrl")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / "info" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def on(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "node", "7.3", "#1", machine)))


def test_assignable_counters_are_read(root: Path) -> None:
    write(root, ABMC)
    found = hardware.read_assignable(str(root))
    assert found == hardware.AssignableCounters(
        directory=f"{root}/info/L3_MON",
        events=("mbm_total_bytes", "mbm_local_bytes"),
        enabled=True,
        on_mkdir=True,
        limits={"0": 32, "1": 32},
        free={"0": 30, "1": 0},
    )


@pytest.mark.parametrize("text", ["", "\n", "0\n", "0=x;1=\n", "0=-1\n", "0=٣\n", f"0={'9' * 5000}\n"])
def test_counters_that_are_no_numbers_are_none(root: Path, text: str) -> None:
    write(root, {"L3_MON/num_mbm_cntrs": text})
    assert hardware.read_assignable(str(root)) is None


@pytest.mark.usefixtures("fs")
def test_a_machine_without_the_files_has_none() -> None:
    root = "/sys/fs/resctrl"
    assert (hardware.read_assignable(root), hardware.list_events(root)) == (None, set())


def test_default_mode_is_not_enabled(root: Path) -> None:
    write(root, ABMC | {"L3_MON/mbm_assign_mode": "[default]\nmbm_event\n"})
    found = hardware.read_assignable(str(root))
    assert found is not None
    assert not found.enabled


@pytest.mark.parametrize(
    ("machine", "files", "count"),
    [
        ("aarch64", {"L3_MON/num_rmids": "256\n", "L3/num_closids": "64\n", "MB/num_closids": "64\n"}, 4),
        ("x86_64", {"L3_MON/num_rmids": "256\n", "L3/num_closids": "64\n"}, None),
        ("aarch64", {"L3_MON/num_rmids": "256\n"}, None),
        ("aarch64", {"L3/num_closids": "64\n"}, None),
        ("aarch64", {"L3_MON/num_rmids": "256\n", "L3/num_closids": "0\n"}, None),
        ("aarch64", {"L3_MON/num_rmids": "x\n", "L3/num_closids": "y\n"}, None),
    ],
)
def test_rmids_of_a_ctrl_group(
    root: Path, monkeypatch: pytest.MonkeyPatch, machine: str, files: dict[str, str], count: int | None
) -> None:
    on(monkeypatch, machine)
    write(root, files)
    assert hardware.count_rmids(str(root), {}, 0).each == count
