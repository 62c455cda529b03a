# SPDX-License-Identifier: Apache-2.0
"""doctor as a process, on a machine with an installation. What it finds: unit/test_doctor.py."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.resctrlfs import Mounted, mounted
from tests.support import machine
from tests.support.hook import PYZ, Hook, created, stopped, task
from tests.support.machine import HOOKS_DIR, PROGRAM, UNPRIVILEGED, ScratchMachine

OTHER = f"{HOOKS_DIR}/50-x.json"


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
    assert node.doctor() == (0, [])
    containerd(node)
    assert node.doctor() == (0, [])


def test_a_program_that_does_not_run_is_a_failure(node: InstalledNode) -> None:
    node.path(PROGRAM).write_bytes(PYZ.read_bytes().replace(b"#!/usr/bin/python3", b"#!/usr/bin/python9", 1))
    status, (found,) = node.doctor()
    assert (status, found["level"], found["subject"]) == (1, "fail", "program")
    assert found["found"].startswith(f"{PROGRAM} does not run: cannot start: ENOENT")


@pytest.mark.parametrize("form", [[], ["-o", "wide"]])
def test_a_terminal_of_80x24_ends_with_what_is_wrong_in_lines_that_fit(node: InstalledNode, form: list[str]) -> None:
    node.write(OTHER, "{")
    command = shlex.join([str(PYZ), "doctor", *node.options, *form])
    shown = node.machine.run("/usr/bin/script", "-qefc", f"stty cols 80 rows 24; {command}", "/dev/null").stdout
    lines = [re.split(r"\r|\x1b\[\w*", line)[-1] for line in shown.replace("\r\n", "\n").splitlines()]
    if form:
        assert max(map(len, lines)) > 80
        return
    # A word that is longer than a line stays whole: paths of the test's own directory
    assert [line for line in lines if len(line) > 80 and len(line.split()) > 1] == []
    count = next(at for at, line in enumerate(lines) if line.endswith(" ok"))
    assert len(lines) - count < 24, "the count and all that is wrong are on the screen at the end"
    assert f"ok       program: {PROGRAM} runs" in lines[:count]
    assert lines[count + 1].startswith(f"FAIL     {OTHER}: invalid: CRI-O, ")


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


ID = "c" * 64
UIDS = ["87a3fb58-1c2d-4e5f-8a9b-0c1d2e3f4a5b", "1f0d3a52-4b6c-4d8e-9f01-23456789abcd"]


def test_a_report_has_the_counters_of_the_machine_and_no_name_of_a_pod_or_a_container(
    node: InstalledNode,
) -> None:
    names = {"io.kubernetes.pod.name": "secret-web", "io.kubernetes.container.name": "secret-app"}
    with task() as init:
        assert node.hook(created(ID, init.pid, pod_uid=UIDS[0], **names)).stderr == ""
        assert node.hook.key(UIDS[0])["members"][ID]["name"] == "secret-app"
    node.hook(stopped(ID))
    for name in (UIDS[0], f"nri-{UIDS[1]}", "cadvisor-secret-web"):
        (node.resctrl.root / "mon_groups" / name).mkdir()
    done = node.machine.run("doctor", "--report", *node.options)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["groups"]["mon_groups"]["cAdvisor"] == 1
    assert any("core_energy" in name for name in found["mon_data"])
    assert found["info"]["info/PERF_PKG_MON/num_rmids"].isdecimal()
    assert found["program"]["called"]
    assert [name for name in ("secret", ID[:12], *(uid[:8] for uid in UIDS)) if name in done.stdout] == []
    (others,) = (row["found"] for row in node.doctor()[1] if "other tools" in row["found"])
    assert others.startswith("3 groups of other tools (")
