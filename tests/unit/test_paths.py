# SPDX-License-Identifier: Apache-2.0
"""An installation: its targets, which files are ours, and its owner."""

from __future__ import annotations

import json

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.node import paths, programs
from hook.node.hooksd import PROGRAM
from hook.node.paths import STUB, Places, find_origin

PLACES = Places()
HOOK = {
    "version": "1.0.0",
    "hook": {"path": "/bin/true"},
    "when": {"always": True},
    "stages": ["poststop"],
}


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


def test_a_file_with_other_content_is_foreign(fs: FakeFilesystem) -> None:
    for path in PLACES.files():
        assert not PLACES.is_foreign(path)
        file = fs.create_file(path)
        for content in (json.dumps(HOOK), "#!/bin/sh\n", ""):
            file.set_contents(content)
            assert PLACES.is_foreign(path)


def test_what_an_installation_has_is_ours_and_a_link_in_its_place_is_foreign(
    fs: FakeFilesystem,
) -> None:
    hook = {**HOOK, "hook": {"path": PLACES.program}}
    ours = {path: "resctrl-mon-hook" for path in PLACES.files() if path != PLACES.link}
    ours |= {
        PLACES.program: "#!/usr/bin/python3 ...hook/__init__.py",
        PLACES.json("podman"): json.dumps(hook),
    }
    ours |= {PLACES.json("kubernetes"): json.dumps(hook)}
    for path, content in ours.items():
        fs.create_file(path, contents=content)
        assert not PLACES.is_foreign(path), path
        fs.rename(path, f"{path}.away")
        fs.create_symlink(path, f"{path}.away")
        assert PLACES.is_foreign(path), path
    fs.create_symlink(PLACES.link, f"elsewhere/{PROGRAM}")
    assert not PLACES.is_foreign(PLACES.link)
    fs.remove(PLACES.program)
    fs.create_file(PLACES.program, contents=STUB.decode())
    assert not PLACES.is_foreign(PLACES.program)


@pytest.mark.parametrize(
    ("content", "name", "away"),
    [
        ("deb\n", "the package resctrl-mon-hook", "apt remove resctrl-mon-hook"),
        ("rpm\n", "the package resctrl-mon-hook", "dnf remove resctrl-mon-hook"),
        ("chart\nmonitoring/hook\n", "the Helm chart", "helm uninstall"),
        ("machineconfig", "a MachineConfig", "remove it (see the documentation on OpenShift)"),
        ("nix\n", "nix", "remove it with nix"),
        ("", "an unknown owner", "remove it as it was installed"),
        (b"\xff", "an unknown owner", "remove it as it was installed"),
    ],
)
def test_owner_is_named_with_how_to_remove_it(
    fs: FakeFilesystem, content: str | bytes, name: str, away: str
) -> None:
    fs.create_file(PLACES.owner, contents=content)
    assert (find_origin(PLACES).name, find_origin(PLACES).away) == (name, away)


def test_the_owner_of_a_program_that_only_hooks_d_names_is_found(fs: FakeFilesystem) -> None:
    """The chart with its prefix /usr/local, and the usual directory of hooks.d:
    our JSON would replace the chart's.
    """
    theirs = Places("/usr/local", PLACES.hooks_dir)
    fs.create_file(
        theirs.json("kubernetes"), contents=json.dumps({**HOOK, "hook": {"path": theirs.program}})
    )
    assert find_origin(PLACES) is paths.INSTALL
    fs.create_file(theirs.owner, contents="chart\n")
    assert find_origin(PLACES).name == "the Helm chart"
