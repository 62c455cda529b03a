# SPDX-License-Identifier: Apache-2.0
"""The targets of an installation, and what is reported where something blocks its program."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.node import paths, programs

PATH = "/usr/libexec/x"


@pytest.fixture
def flags(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The flags of the file system of PATH: pyfakefs has no statvfs(3)."""
    fs.create_file(PATH)
    found = [0]
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_flag=found[0]))
    return found


@pytest.mark.parametrize("top", ["", "/mnt"])
def test_targets_are_found_by_their_programs(fs: FakeFilesystem, top: str) -> None:
    assert paths.find_targets(top) == []
    fs.create_file(f"{top}/usr/bin/podman", st_mode=0o100755)
    fs.create_dir(f"{top}/usr/bin/crio")
    fs.create_file(f"{top}/usr/bin/containerd", st_mode=0o100644)
    assert paths.find_targets(top) == ["podman"]
    fs.create_file(f"{top}/usr/local/bin/k3s", st_mode=0o100755)
    assert paths.find_targets(top) == ["kubernetes", "podman"]
    assert programs.find_program("k3s", top) == "/usr/local/bin/k3s"


@pytest.mark.parametrize(
    ("mode", "label", "is_wrong"),
    [
        ("1", "user_home_t", True),
        ("1", "unlabeled_t", True),
        ("1", "bin_t", False),
        ("1", "container_runtime_exec_t", False),
        ("1", None, False),
        ("0", "user_home_t", False),
        (None, "user_home_t", False),
    ],
)
def test_a_label_that_selinux_blocks_has_a_remedy(
    fs: FakeFilesystem, flags: list[int], mode: str | None, label: str | None, is_wrong: bool
) -> None:
    flags[0] = os.ST_NOSUID
    if mode is not None:
        fs.create_file("/sys/fs/selinux/enforce", contents=mode)
    if label is not None:
        os.setxattr(PATH, "security.selinux", f"system_u:object_r:{label}:s0\0".encode())
    problem = paths.find_label_problem(PATH)
    assert (problem is not None) is is_wrong
    assert problem is None or f"{PATH} has type {label}" in problem
    blockers = paths.list_blockers(PATH)
    assert blockers == (
        f"SELinux: {PATH} has type {label or 'none'}: run restorecon on it, or see ausearch -m avc"
        if mode == "1"
        else ""
    )


@pytest.mark.parametrize("name", ["fapolicyd/fapolicyd.fifo", "fapolicyd.pid"])
def test_fapolicyd_and_noexec_have_a_remedy(fs: FakeFilesystem, flags: list[int], name: str) -> None:
    fs.create_file(f"/run/{name}")
    assert paths.list_blockers(PATH) == f"fapolicyd: run fapolicyd-cli --file add {PATH} && fapolicyd-cli --update"
    flags[0] = os.ST_NOEXEC | os.ST_NOSUID
    assert paths.list_blockers(PATH).startswith(f"the file system of {PATH} is mounted noexec: choose another --prefix")
