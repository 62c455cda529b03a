# SPDX-License-Identifier: Apache-2.0
"""The demo where no container can be run. With real containers: tests/podman/test_try.py."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import build
from fetch import provision
from pyz import archive
from tests.unit.documents import ROOT

DEMO = """\
import sys
from tests import demo
demo.missing = lambda: "not root"
status = demo.main([])
assert "pydantic" not in sys.modules, "the demo's own venv does not have it"
sys.exit(status)
"""


def test_demo_without_root_shows_the_same_in_the_simulator_and_says_what_is_not_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEMO], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *scenes = done.stdout.split("\n> ")
    assert "(not root)" in first
    groups = [
        re.findall("mon_groups/oci-.*  (pod [a-z]+|container), inode ([0-9]+)", scene)
        for scene in scenes
    ]
    containers = [
        re.findall("^    ([a-z-]+) .* put in by its createRuntime", scene, re.M) for scene in scenes
    ]
    shop, batch, alone = groups[0]
    assert groups == [[shop, batch, alone], [shop, batch, alone], [shop, alone], []]
    assert [len(names) for names in containers] == [5, 4, 2, 0]
    assert "Not shown" in scenes[-1]


def test_demo_without_apt_names_the_packages_of_fedora_and_opensuse_and_goes_on_in_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(provision, "_present", lambda name: name == "fuse3")
    monkeypatch.setattr(archive, "build", lambda **_: None)
    assert build.main(["demo"]) == 0
    shown = capfd.readouterr()
    assert "not installed: busybox-static podman runc; " in shown.err
    assert "on Fedora: `dnf install busybox podman runc`" in shown.err
    assert "on openSUSE: `zypper install busybox-static podman runc`" in shown.err
    assert "is the hook in the simulator" in shown.out.splitlines()[0]
    assert "Not shown" in shown.out


def test_static_busybox_under_its_name_on_opensuse_is_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that needs libraries does not run in a container's empty root."""

    def which(command: str, path: str) -> str | None:
        assert path
        return str(tmp_path / command) if (tmp_path / command).exists() else None

    monkeypatch.setattr(shutil, "which", which)
    for name, content, is_present in (
        ("busybox-static", b"\x7fELF /lib64/ld-linux", False),
        ("busybox", b"\x7fELF", True),
        ("busybox-static", b"\x7fELF", True),
    ):
        for program in tmp_path.iterdir():
            program.unlink()
        (tmp_path / name).write_bytes(content)
        assert provision._present("busybox-static") is is_present, name
