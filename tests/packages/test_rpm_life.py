# SPDX-License-Identifier: Apache-2.0
"""The life of an RPM, with containers that outlive some of its states: its scriptlets, run by rpm in a root."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.packages.conftest import Packages
    from tests.packages.machine import Machine

NAME = "resctrl-mon-hook"
TIMER = f"{NAME}-reconcile.timer"
HOOKS = "/usr/libexec/oci/hooks.d"
PROGRAM = f"{HOOKS}/{NAME}.pyz"
JSON = f"/usr/share/containers/oci/hooks.d/10-{NAME}-podman.json"


def test_the_program_is_there_before_the_json_and_gone_after_it(machine: Machine, packages: Packages) -> None:
    rpm = ("rpm", *machine.rpm_options, "--nodeps")
    order = machine.changes(*rpm, "-i", str(machine.shared / packages.rpm.name))
    assert order.index(f"{NAME}.pyz") < order.index(f"10-{NAME}-podman.json")
    order = machine.changes(*rpm, "-e", NAME)
    assert order.index(f"10-{NAME}-podman.json") < order.index(f"{NAME}.pyz")


@pytest.fixture
def installed(machine: Machine, packages: Packages) -> Iterator[Machine]:
    """A machine that has it, with what rpm calls an installation."""
    machine.rpm("-i", str(machine.shared / packages.rpm.name))
    yield machine
    machine.podman_rm()
    machine.rpm("-e", NAME, check=False)
    machine.at(PROGRAM).unlink(missing_ok=True)


def test_containers_are_monitored(installed: Machine) -> None:
    container = installed.podman_run("web")
    assert installed.groups() == {f"oci-{container}": [installed.pid("web")]}
    installed.podman_rm("web")
    assert installed.groups() == {}


def test_the_timer_is_enabled(installed: Machine) -> None:
    assert installed.run("systemctl", "is-enabled", TIMER).stdout == "enabled\n"


def test_an_upgrade_leaves_a_live_container_in_its_group(installed: Machine, newer: Packages) -> None:
    container = installed.podman_run("web")
    before = installed.resctrl.groups()[f"/mon_groups/oci-{container}"]
    installed.rpm("-U", str(installed.shared / newer.rpm.name))
    assert installed.run(NAME, "--version").stdout == f"{NAME} {newer.version}\n"
    assert installed.resctrl.groups()[f"/mon_groups/oci-{container}"] == before
    installed.podman_rm("web")
    assert installed.groups() == {}


PYTHON = """
Name: python3
Version: 4
Release: 1
Summary: Stands for another Python
License: None
BuildArch: noarch
%description
A file of its standard library.
%install
mkdir -p %{buildroot}/usr/lib64/python3.99
touch %{buildroot}/usr/lib64/python3.99/os.py
%files
/usr/lib64/python3.99/os.py
"""


def test_an_installation_makes_bytecode_and_another_python_has_it_made_again(
    machine: Machine, newer: Packages, tmp_path: Path
) -> None:
    """The newer package does not contain it."""
    (tmp_path / "python3.spec").write_text(PYTHON)
    build = ["rpmbuild", "-bb", "--target=noarch", f"--define=_topdir {tmp_path}", f"{tmp_path}/python3.spec"]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    machine.rpm("-i", str(machine.shared / newer.rpm.name))
    made = machine.bytecode()
    found = made.stat()
    assert (found.st_uid, found.st_gid, found.st_mode) == (0, 0, 0o100644)
    assert not machine.runs_sources()
    made.unlink()
    machine.rpm("-i", str(*tmp_path.glob("RPMS/noarch/*.rpm")))
    assert not machine.runs_sources()
    machine.rpm("-e", "python3", NAME)
    assert not machine.at(HOOKS).exists()


def test_an_erasure_keeps_the_file_for_those_who_call_it(installed: Machine) -> None:
    container = installed.podman_run("web")
    said = installed.rpm("-e", NAME)
    assert f"kept: container {container} calls the program" in said
    assert not installed.at(JSON).exists()
    installed.podman_run("later")
    assert set(installed.groups()) == {f"oci-{container}"}
    installed.podman_rm("web")
    assert installed.groups() == {}
    installed.run(PROGRAM, "uninstall")
    assert not installed.at(PROGRAM).exists()


def test_an_erasure_that_nobody_minds_leaves_nothing(installed: Machine) -> None:
    installed.rpm("-e", NAME)
    assert installed.run("find", "/usr", "/etc", "-path", f"*{NAME}*").stdout == ""
    assert not installed.at(HOOKS).exists()


def test_an_erasure_leaves_the_files_of_the_administrator(installed: Machine) -> None:
    conf = installed.at("/etc") / NAME / "reconcile.conf"
    conf.write_text("OPTIONS=--linger=5\n")
    installed.rpm("-e", NAME)
    assert conf.read_text() == "OPTIONS=--linger=5\n"


@pytest.mark.parametrize("words", [("install", "--for=both"), ("uninstall",)], ids=" ".join)
def test_what_the_package_owns_is_left_alone(installed: Machine, words: tuple[str, ...]) -> None:
    done = installed.run(NAME, *words, check=False)
    assert done.returncode == 2
    assert f"was installed by the package {NAME}; remedy: dnf remove {NAME} first, or --force" in done.stdout
