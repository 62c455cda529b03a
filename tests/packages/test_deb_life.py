# SPDX-License-Identifier: Apache-2.0
"""The life of a .deb on a fresh Debian, with containers that outlive some of its states."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from tests.packages.machine import SHARED
from tests.support.containers import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.packages.conftest import Packages
    from tests.packages.machine import Machine

NAME = "resctrl-mon-hook"
TIMER = f"{NAME}-reconcile.timer"
HOOKS = "/usr/libexec/oci/hooks.d"
PROGRAM = f"{HOOKS}/{NAME}.pyz"
APT = "apt install ./dist/resctrl-mon-hook_*.deb"
LIST = "resctrl-mon-hook list"
LISTEN = "resctrl-mon-hook metrics --listen=127.0.0.1:9753"
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
PODMAN = f"/usr/share/containers/oci/hooks.d/10-{NAME}-podman.json"


def ours(machine: Machine) -> list[str]:
    """Every file of the machine's that is named after us, or stands in a directory that is."""
    podmans = ["-not", "-path", "/var/lib/containers/*"]
    return machine.run("find", "/", "/run", "-xdev", "-path", f"*{NAME}*", *podmans).stdout.split()


def is_enabled(machine: Machine) -> bool:
    return machine.run("systemctl", "is-enabled", TIMER, check=False).stdout == "enabled\n"


def test_on_a_fresh_debian_the_words_of_the_readme_lead_to_joules(fresh: Machine, packages: Packages) -> None:
    """Python comes with it: what is declared to be needed is what is needed, if apt brings no more than that.

    It prints how long each step takes from the start on: docs/performance.md has these figures.
    """
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert all(words in readme for words in (APT, LIST, LISTEN))
    assert not fresh.has_python()
    (fresh.shared / "dist").mkdir()
    shutil.copy(packages.deb, fresh.shared / "dist")
    since = time.monotonic()
    fresh.run("sh", "-c", APT)
    installed = time.monotonic() - since
    container = fresh.podman_run("web")
    assert fresh.groups() == {f"oci-{container}": [fresh.pid("web")]}
    fresh.spend(container, 5)
    (row,) = [line.split() for line in fresh.run(*LIST.split()).stdout.splitlines() if container in line]
    assert row[:3] == ["web", container, "live"]
    assert "5.00*" in row
    listed = time.monotonic() - since
    with fresh.started(*LISTEN.split()) as line:
        served = fresh.run("python3", "-c", FETCH, line.split()[-1]).stdout.splitlines()
    joules = [line for line in served if line.startswith("resctrl_mon_core_energy_joules_total{") and container in line]
    assert [float(line.split()[-1]) for line in joules if not line.endswith(" 0")] == [5]
    scraped = time.monotonic() - since
    release = fresh.at("/etc/debian_version").read_text().strip()
    print(
        f"Debian {release}: installed after {installed:.1f} s, joules on list {listed:.1f} s, /metrics {scraped:.1f} s"
    )

    assert container in fresh.run(NAME, "show", "web").stdout
    assert fresh.run(NAME, "reconcile").stdout == ""
    assert "FAIL" not in fresh.run(NAME, "doctor").stdout
    fresh.podman_rm()
    assert fresh.groups() == {}
    fresh.apt("purge", NAME)
    assert ours(fresh) == []


def test_the_timer_is_enabled(machine: Machine, packages: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    assert is_enabled(machine)


def test_a_timer_that_was_disabled_stays_so(machine: Machine, packages: Packages, newer: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    machine.run("systemctl", "disable", TIMER)
    machine.dpkg("-i", newer.deb.name)
    assert not is_enabled(machine)


def test_an_upgrade_leaves_a_live_container_in_its_group_and_its_poststop_is_the_new_one(
    machine: Machine, packages: Packages, newer: Packages
) -> None:
    machine.dpkg("-i", packages.deb.name)
    container = machine.podman_run("web")
    before = machine.resctrl.groups()[f"/mon_groups/oci-{container}"]
    machine.dpkg("-i", newer.deb.name)
    assert machine.run(NAME, "--version").stdout == f"{NAME} {newer.version}\n"
    assert machine.resctrl.groups()[f"/mon_groups/oci-{container}"] == before
    machine.podman_rm("web")
    assert machine.groups() == {}


def test_a_removal_keeps_the_file_for_those_who_call_it(machine: Machine, packages: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    container = machine.podman_run("web")
    said = machine.dpkg("-r", NAME)
    assert f"kept: container {container} calls the program" in said
    assert [path for path in ours(machine) if path.startswith("/usr/")] == [PROGRAM]
    machine.podman_run("later")
    assert set(machine.groups()) == {f"oci-{container}"}
    machine.podman_rm("web")
    assert machine.groups() == {}
    machine.run(PROGRAM, "uninstall")
    assert not machine.at(PROGRAM).exists()


def test_a_removal_that_nobody_minds_leaves_nothing_in_usr_and_no_group(machine: Machine, packages: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    hooks = machine.at(PODMAN)
    hooks.write_text(hooks.read_text().replace('"--containers=podman"', '"--containers=podman", "--linger=600"'))
    container = machine.podman_run("web")
    machine.podman_rm("web")
    assert machine.groups() == {f"oci-{container}": []}, "it is to linger"
    machine.dpkg("-r", NAME)
    assert machine.groups() == {}
    assert [path for path in ours(machine) if path.startswith("/usr/")] == []
    assert not machine.at(HOOKS).exists()


def test_what_a_removal_kept_is_the_packages_again_once_it_is_back(
    machine: Machine, packages: Packages, newer: Packages
) -> None:
    machine.dpkg("-i", packages.deb.name)
    machine.podman_run("web")
    machine.dpkg("-r", NAME)
    machine.dpkg("-i", newer.deb.name)
    machine.podman_rm("web")
    assert machine.groups() == {}
    machine.dpkg("-r", NAME)
    assert not machine.at(PROGRAM).exists()


def test_a_removal_that_does_not_come_about_changes_nothing(machine: Machine, packages: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    before = ours(machine)
    for script, why in ("prerm", "remove"), ("postinst", "abort-remove"):
        machine.run(f"/var/lib/dpkg/info/{NAME}.{script}", why)
    assert ours(machine) == before
    assert is_enabled(machine)


def test_a_purge_leaves_no_file_of_ours_whoever_lives(machine: Machine, packages: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    machine.podman_run("web")
    conf = machine.at("/etc") / NAME / "reconcile.conf"
    conf.write_text("OPTIONS=--linger=5\n")
    machine.dpkg("-r", NAME)
    assert conf.read_text() == "OPTIONS=--linger=5\n"
    machine.dpkg("--purge", NAME)
    assert ours(machine) == []


# --- Bytecode, which the newer package does not contain


def test_an_installation_makes_bytecode_that_hooks_run(machine: Machine, newer: Packages) -> None:
    machine.dpkg("-i", newer.deb.name)
    found = machine.bytecode().stat()
    assert (found.st_uid, found.st_gid, found.st_mode) == (0, 0, 0o100644)
    assert not machine.runs_sources()
    assert "this node has compiled the program for it" in machine.run(NAME, "doctor", check=False).stdout
    assert machine.run("dpkg", "--verify", NAME).stdout == ""
    assert f"oci-{machine.podman_run('web')}" in machine.groups()


def test_a_package_that_contains_bytecode_makes_none(machine: Machine, packages: Packages, newer: Packages) -> None:
    machine.dpkg("-i", newer.deb.name)
    machine.dpkg("-i", "--force-downgrade", packages.deb.name)
    assert list(machine.at(HOOKS).glob("*.cpython-*")) == []
    assert not machine.runs_sources()


def test_another_python_has_bytecode_made_again(machine: Machine, newer: Packages) -> None:
    """As far as dpkg can tell, a package that is unpacked again brings another one."""
    machine.dpkg("-i", newer.deb.name)
    made = machine.bytecode()
    right = made.read_bytes()
    made.rename(made.with_name(f"{NAME}.pyz.cpython-38"))
    assert machine.runs_sources()
    machine.apt("install", "--reinstall", "python3-minimal")
    assert machine.bytecode() == made
    assert made.read_bytes() == right


@pytest.mark.parametrize("words", [("-r",), ("--purge",)], ids=" ".join)
def test_a_removal_takes_the_bytecode_along(machine: Machine, newer: Packages, words: tuple[str, ...]) -> None:
    machine.dpkg("-i", newer.deb.name)
    machine.dpkg(*words, NAME)
    assert not machine.at(HOOKS).exists()


def test_a_removal_keeps_the_bytecode_with_the_program(machine: Machine, newer: Packages) -> None:
    machine.dpkg("-i", newer.deb.name)
    machine.podman_run("web")
    machine.dpkg("-r", NAME)
    assert not machine.runs_sources()
    machine.podman_rm("web")
    machine.dpkg("--purge", NAME)
    assert ours(machine) == []


BASE_SPEC = {"hooks": {"createRuntime": [{"path": PROGRAM}]}}


def test_a_removal_keeps_the_file_for_a_containerd_that_imports_a_file_that_names_it(
    machine: Machine, packages: Packages
) -> None:
    """It would start no container any more."""
    machine.dpkg("-i", packages.deb.name)
    conf = machine.at("/etc") / "containerd"
    conf.mkdir()
    (conf / "config.toml").write_text('imports = ["more/*.toml"]\n')
    (conf / "more").mkdir()
    (conf / "more/hook.toml").write_text('base_runtime_spec = "/etc/containerd/spec.json"\n')
    (conf / "spec.json").write_text(json.dumps(BASE_SPEC))
    assert "kept: base_runtime_spec /etc/containerd/spec.json of containerd calls the program" in machine.dpkg(
        "-r", NAME
    )
    assert machine.at(PROGRAM).exists()
    shutil.rmtree(conf)
    machine.run(PROGRAM, "uninstall")
    assert not machine.at(PROGRAM).exists()


# --- Whose the files are


@pytest.mark.parametrize("words", [("install", "--for=both"), ("uninstall",)], ids=" ".join)
def test_what_the_package_owns_is_left_alone(machine: Machine, packages: Packages, words: tuple[str, ...]) -> None:
    machine.dpkg("-i", packages.deb.name)
    before = ours(machine)
    done = machine.run(NAME, *words, check=False)
    assert done.returncode == 2
    assert f"was installed by the package {NAME}; remedy: apt remove {NAME} first, or --force" in done.stdout
    assert ours(machine) == before
    assert machine.run("dpkg", "--verify", NAME).stdout == ""
    assert f"installed by: the package {NAME}" in machine.run(NAME, "doctor", check=False).stdout


def test_with_force_they_are_taken_away_all_the_same(machine: Machine, packages: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    machine.run(NAME, "uninstall", "--force")
    assert not machine.at(PROGRAM).exists()


def test_files_of_the_chart_are_the_packages_from_then_on(machine: Machine, packages: Packages) -> None:
    owner = machine.at("/usr/libexec") / f"oci/hooks.d/{NAME}.owner"
    owner.parent.mkdir(parents=True)
    owner.write_text("chart\n")
    machine.dpkg("-i", packages.deb.name)
    assert owner.read_text() == "deb\n"


# --- In which order


def test_the_program_is_there_before_the_json(machine: Machine, packages: Packages) -> None:
    """Also in an upgrade: that is the same."""
    order = machine.changes("chroot", machine.root, "dpkg", "-i", f"{SHARED}/{packages.deb.name}")
    assert order.index(f"{NAME}.pyz") < order.index(f"10-{NAME}-podman.json")


def test_the_json_is_gone_before_the_program(machine: Machine, packages: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    order = machine.changes("chroot", machine.root, "dpkg", "-r", NAME)
    assert order.index(f"10-{NAME}-podman.json") < order.index(f"{NAME}.pyz")


# --- Where systemd runs


@pytest.fixture
def systemctl(machine: Machine) -> Iterator[Path]:
    """systemd runs, as far as can be seen: its systemctl logs what it is asked for, and no unit is active."""
    log = machine.shared / "systemctl"
    log.touch()
    program = machine.at("/usr/local/bin") / "systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$*" >>{SHARED}/{log.name}\n'
        'case "$*" in *is-active*) exit 3 ;; *--root=/* | *is-enabled*) exec /usr/bin/systemctl --root=/ "$@" ;; esac\n'
    )
    program.chmod(0o755)
    (machine.at("/run/systemd") / "system").mkdir(parents=True)
    yield log
    program.unlink()
    log.unlink()
    (machine.at("/run/systemd") / "system").rmdir()


def test_the_timer_is_started_and_stopped(machine: Machine, systemctl: Path, packages: Packages) -> None:
    machine.dpkg("-i", packages.deb.name)
    assert machine.at(f"/run/{NAME}").is_dir(), "tmpfiles.d makes it"
    assert f"restart {TIMER}\n" in systemctl.read_text()
    machine.dpkg("-r", NAME)
    assert f"stop {TIMER} " in systemctl.read_text()


def test_what_a_removal_leaves_has_a_timer_until_the_next_boot(
    machine: Machine, systemctl: Path, packages: Packages
) -> None:
    """The groups of the containers that live may linger, and the package's own timer is gone."""
    program = machine.at("/usr/local/bin") / "systemd-run"
    program.symlink_to("systemctl")
    machine.dpkg("-i", packages.deb.name)
    machine.podman_run("web")
    machine.dpkg("-r", NAME)
    (line,) = [line for line in systemctl.read_text().splitlines() if "--unit=resctrl-mon-hook-left" in line]
    assert f"{PROGRAM} reconcile " in line
    machine.dpkg("-i", packages.deb.name)
    assert systemctl.read_text().splitlines()[-1].endswith("stop resctrl-mon-hook-left.timer")
    program.unlink()


def test_a_disabled_timer_is_not_started(
    machine: Machine, systemctl: Path, packages: Packages, newer: Packages
) -> None:
    machine.dpkg("-i", packages.deb.name)
    machine.run("/usr/bin/systemctl", "--root=/", "disable", TIMER)
    systemctl.write_text("")
    machine.dpkg("-i", newer.deb.name)
    assert f"restart {TIMER}\n" not in systemctl.read_text()
