# SPDX-License-Identifier: Apache-2.0
"""Files of info/ that are missing or no numbers; what they say otherwise: tests/fuse/test_hardware.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.observe import hardware


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


@pytest.mark.parametrize("text", ["", "\n", "0\n", "0=x;1=\n", "0=-1\n", "0=٣\n", f"0={'9' * 5000}\n"])
def test_counters_that_are_no_numbers_are_none(root: Path, text: str) -> None:
    write(root, {"L3_MON/num_mbm_cntrs": text})
    assert hardware.read_assignable(str(root)) is None


@pytest.mark.usefixtures("fs")
def test_a_machine_without_the_files_has_none() -> None:
    root = "/sys/fs/resctrl"
    assert (hardware.read_assignable(root), hardware.list_events(root)) == (None, set())


@pytest.mark.parametrize(
    ("machine", "files", "count"),
    [
        ("aarch64", {"L3_MON/num_rmids": "256\n", "L3/num_closids": "64\n", "MB/num_closids": "64\n"}, 4),
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
