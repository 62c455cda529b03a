# SPDX-License-Identifier: Apache-2.0
"""doctor as a process, on a machine with an installation. What it finds: unit/test_doctor.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.resctrlfs import Mounted, mounted
from tests.support import machine
from tests.support.hook import PYZ, Hook
from tests.support.machine import PROGRAM, UNPRIVILEGED, ScratchMachine


class InstalledNode:
    """A machine with an installation, the model of resctrl, and a systemd whose timer is active; `watch` is off."""

    def __init__(self, directory: Path, resctrl: Mounted) -> None:
        self.resctrl = resctrl
        self.run_dir = directory / "records"
        self.machine = ScratchMachine(directory / "machine")
        self.path, self.program = self.machine.path, self.machine.put_program
        self.options = [f"--resctrl-root={resctrl.root}", f"--run-dir={self.run_dir}"]
        self.hook = Hook(resctrl.root, self.run_dir)
        self.path("/run/systemd/system").mkdir(parents=True)
        for name in ("systemctl", "systemd-tmpfiles", "crio"):
            self.program(f"/usr/local/sbin/{name}", 'case "$*" in is-failed*|is-enabled*-watch.service) exit 1; esac')
        self.program("/usr/local/sbin/podman", 'test "$*" = --version && echo podman version 5.8.6')
        done = self.machine.run("install", "--for=both", *self.options)
        assert (done.returncode, done.stderr) == (0, "")

    def write(self, path: str, text: object) -> None:
        self.machine.put(path, text if isinstance(text, str) else json.dumps(text))

    def doctor(self) -> tuple[int, list[dict[str, str]]]:
        """Its exit status, and what it found that is not well."""
        done = self.machine.run("doctor", "--json", *self.options)
        assert done.stderr == ""
        answer = json.loads(done.stdout)
        assert answer["well"] is (done.returncode == 0)
        found = [finding for finding in answer["findings"] if finding["level"] != "ok" and finding["subject"] != "root"]
        assert all(finding["remedy"] for finding in found)
        return done.returncode, found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InstalledNode]:
    if reason := machine.missing_with_model():
        pytest.skip(reason)
    with mounted(tmp_path) as resctrl:
        yield InstalledNode(tmp_path, resctrl)


def containerd(node: InstalledNode) -> None:
    """Let containerd take the place of CRI-O, with a specification that has the hook."""
    node.path("/usr/local/sbin/crio").unlink()
    node.program("/usr/local/sbin/containerd", "")
    node.write("/etc/containerd/config.toml", "base_runtime_spec = '/etc/x.json'\n")
    node.write("/etc/x.json", {"hooks": {"poststop": [{"path": PROGRAM}]}})


def test_all_is_well_with_cri_o_and_with_containerd(node: InstalledNode) -> None:
    node.hook.ask("reconcile")
    assert node.doctor() == (0, [])
    containerd(node)
    assert node.doctor() == (0, [])


def test_a_program_that_does_not_run_is_a_failure(node: InstalledNode) -> None:
    node.path(PROGRAM).write_bytes(PYZ.read_bytes().replace(b"#!/usr/bin/python3", b"#!/usr/bin/python9", 1))
    status, all_found = node.doctor()
    (found,) = [found for found in all_found if found["subject"] == "program"]
    assert (status, found["level"]) == (1, "fail")
    assert found["found"].startswith(f"{PROGRAM} does not run: cannot start: ENOENT")


def test_it_changes_nothing(node: InstalledNode) -> None:
    before = node.machine.written()
    (node.resctrl.root / "mon_groups/oci-x").mkdir()
    node.doctor()
    assert node.machine.written() == before
    assert not node.run_dir.exists()
    assert node.hook.groups() == {"oci-x"}


def test_doctor_runs_without_root(node: InstalledNode) -> None:
    """Then most cannot be seen, which is a finding."""
    done = node.machine.run(node.machine.public(), "doctor", *node.options, before=UNPRIVILEGED)
    assert done.returncode == 1
    assert "FAIL     root: not running as root" in done.stdout


def test_a_report_has_the_counters_of_the_machine(node: InstalledNode) -> None:
    (node.resctrl.root / "mon_groups/cadvisor-secret").mkdir()
    done = node.machine.run("doctor", "--report", *node.options)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["mon_groups"] == {"cAdvisor": 1}
    assert any("core_energy" in name for name in found["files"])
    assert any("core_energy" in name for name in found["counters"])
    assert "secret" not in done.stdout
    (others,) = (row["found"] for row in node.doctor()[1] if "other tools" in row["found"])
    assert others.startswith("1 group of other tools (cAdvisor: 1): ")
