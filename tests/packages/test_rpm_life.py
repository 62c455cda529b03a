"""The life of an RPM, with containers that outlive some of its states: its scriptlets, run by rpm in a root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.mark.parametrize("words", [("install", "--for=both"), ("uninstall",)], ids=" ".join)
def test_what_the_package_owns_is_left_alone(installed: Machine, words: tuple[str, ...]) -> None:
    rpm = installed.give_rpm()
    done = installed.run(NAME, *words, check=False)
    rpm.unlink()
    assert done.returncode == 2
    assert f"was installed by the package {NAME}; remedy: dnf remove {NAME} first, or --force" in done.stdout
