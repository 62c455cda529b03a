# SPDX-License-Identifier: Apache-2.0
"""The lives of the .deb and the RPM on a fresh Debian,
with containers that outlive some of their states.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.packages.conftest import Packages
from tests.packages.machine import ENERGY, SHARED, Machine
from tests.support import watching
from tests.support.containers import REPOSITORY
from tests.support.machine import AT_BOOT, HOOKS_DIR, PROGRAM
from tests.support.waiting import wait

NAME = "resctrl-mon-hook"
TIMER = f"{NAME}-reconcile.timer"
APT = "apt install ./resctrl-mon-hook_*.deb"
LIST = "resctrl-mon-hook list"
LISTEN = "resctrl-mon-hook metrics --listen=127.0.0.1:9753"
FETCH = r"""exec 3<>/dev/tcp/127.0.0.1/9753; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3"""


class Manager(NamedTuple):
    """dpkg or rpm, on a machine."""

    machine: Machine
    kind: str

    def command(self, packages: Packages | None = None) -> list[str]:
        """The command on the host that installs a package, whatever version is there;
        without one, that removes it.
        """
        if self.kind == "deb":
            words = (
                ["-r", NAME]
                if packages is None
                else ["-i", "--force-downgrade", f"{SHARED}/{packages.deb.name}"]
            )
            return ["chroot", self.machine.root, "dpkg", *words]
        shared = self.machine.shared
        words = ["-e", NAME]
        if packages is not None:
            words = ["-U", "--oldpackage", "--replacepkgs", str(shared / packages.rpm.name)]
        return ["rpm", *self.machine.rpm_options, "--nodeps", *words]

    def install(self, packages: Packages) -> None:
        self.machine.from_outside(*self.command(packages))

    def remove(self) -> str:
        return self.machine.from_outside(*self.command()).stdout


@pytest.fixture(params=["deb", "rpm"])
def manager(request: pytest.FixtureRequest, machine: Machine) -> Iterator[Manager]:
    yield Manager(machine, request.param)
    if request.param == "rpm":  # of a .deb the machine's fixture takes care
        machine.podman_rm()
        machine.rpm("-e", NAME, check=False)
        machine.run("rm", "-rf", f"/etc/{NAME}", f"/var/log/{NAME}")


def ours(machine: Machine) -> list[str]:
    """Every file of the machine's that is named after us, or lies in a directory that is."""
    podmans = ["-not", "-path", "/var/lib/containers/*", "-not", "-path", "/var/lib/rpm/*"]
    return machine.run("find", "/", "/run", "-xdev", "-path", f"*{NAME}*", *podmans).stdout.split()


def is_stub(machine: Machine) -> bool:
    """Whether the program's path has what a removal leaves,
    for containers that live and until the next boot.
    """
    line = machine.at(AT_BOOT)
    is_kept = machine.at(PROGRAM).read_bytes() == b"#!/bin/true\n"
    assert line.exists() is is_kept
    assert not is_kept or machine.at(PROGRAM).stat().st_mode & 0o7777 == 0o755
    assert not is_kept or line.read_text().splitlines() == [f"r! {PROGRAM}", f"r! {AT_BOOT}"]
    return is_kept


def in_usr(machine: Machine) -> list[str]:
    return [path for path in ours(machine) if path.startswith("/usr/")]


def list_needing(machine: Machine) -> list[str]:
    """The hooks.d files for which containers need a program that is not there, or only the stub.

    Of a program that is not there some versions of runtimes skip the file,
    and others start no container.
    """
    program = machine.at(PROGRAM)
    is_there = program.exists() and program.stat().st_size > len(b"#!/bin/true\n")
    return [] if is_there else [path.name for path in machine.at(HOOKS_DIR).glob("*.json")]


def is_enabled(machine: Machine) -> bool:
    return machine.run("systemctl", "is-enabled", TIMER, check=False).stdout == "enabled\n"


def test_on_a_fresh_debian_the_words_of_the_readme_lead_to_joules(
    fresh: Machine, packages: Packages
) -> None:
    """It needs no other package, and no Python.

    It prints how long each step takes from the start on.
    """
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert all(words in readme for words in (APT, LIST, LISTEN))
    assert not fresh.has_python()
    (fresh.shared / "download").mkdir()
    shutil.copy(packages.deb, fresh.shared / "download")
    since = time.monotonic()
    fresh.run("sh", "-c", f"cd download && {APT}")
    installed = time.monotonic() - since
    container = fresh.podman_run("web")
    assert fresh.groups() == {f"oci-{container}": [fresh.pid("web")]}
    fresh.spend(container, 5)
    (row,) = [
        line.split() for line in fresh.run(*LIST.split()).stdout.splitlines() if container in line
    ]
    assert row[:3] == ["web", container, "live"]
    assert "5.00*" in row
    listed = time.monotonic() - since
    with fresh.started(*LISTEN.split()):
        served = fresh.run("bash", "-c", FETCH).stdout.splitlines()
    joules = [
        line
        for line in served
        if line.startswith("resctrl_mon_core_energy_joules_total{") and container in line
    ]
    assert [float(line.split()[-1]) for line in joules if not line.endswith(" 0")] == [5]
    scraped = time.monotonic() - since
    release = fresh.at("/etc/debian_version").read_text().strip()
    print(
        f"Debian {release}: installed after {installed:.1f} s, joules on list {listed:.1f} s, "
        f"/metrics {scraped:.1f} s"
    )

    assert container in fresh.run(NAME, "show", "web").stdout
    assert fresh.run(NAME, "reconcile").stdout == ""
    assert "FAIL" not in fresh.run(NAME, "doctor").stdout
    fresh.podman_rm()
    assert fresh.groups() == {}
    fresh.apt("purge", NAME)
    assert is_stub(fresh)
    assert set(ours(fresh)) == {PROGRAM, AT_BOOT}
    assert not fresh.has_python()


@pytest.mark.parametrize("by", ["the package", "install"])
def test_all_of_the_hook_works_on_a_debian_without_python(
    machine: Machine, packages: Packages, program: Path, by: str
) -> None:
    if by == "install":
        shutil.copy(program, machine.shared)
        machine.run(f"{SHARED}/{program.name}", "install", "--for=podman")
    else:
        machine.dpkg("-i", packages.deb.name)
    assert not machine.has_python()
    job = machine.podman_run("job-17")
    assert machine.groups() == {f"oci-{job}": [machine.pid("job-17")]}
    machine.spend(job, 5)
    assert list_keys(machine) == {job: ("live", 5)}
    assert f'key="{job}"' in machine.run(NAME, "metrics").stdout
    assert "FAIL" not in machine.run(NAME, "doctor").stdout

    (machine.resctrl.root / "mon_groups" / f"oci-{job}").rmdir()
    assert machine.groups() == {}
    assert machine.run(*read_start(machine, "reconcile")).stdout.startswith("remake job-17 ")
    assert machine.groups() == {f"oci-{job}": [machine.pid("job-17")]}
    if watching.missing() is None:
        words = shlex.join(read_start(machine, "watch"))
        net = f"--net=/proc/{os.getpid()}/ns/net"  # the kernel's connector is in the host's alone
        with machine.started("nsenter", net, "sh", "-c", f"exec {words} 2>&1") as line:
            assert "listening to execs" in line
            machine.run("podman", "exec", "-d", "job-17", "sleep", "1000")
            wait(lambda: len(machine.groups()[f"oci-{job}"]) > 1)

    machine.podman_rm("job-17")
    assert machine.groups() == {}
    (line,) = json.loads(machine.run(NAME, "history", "--json").stdout)["jobs"]
    assert (line["name"], line["key"]) == ("job-17", job)
    if by == "install":
        machine.run(NAME, "uninstall")
    else:
        machine.dpkg("-r", NAME)
    assert is_stub(machine)
    assert in_usr(machine) == [PROGRAM]


def read_start(machine: Machine, unit: str) -> list[str]:
    """Return the command of a unit's ExecStart line."""
    text = (machine.at("/usr/lib/systemd/system") / f"{NAME}-{unit}.service").read_text()
    (command,) = (
        line.partition("=")[2] for line in text.splitlines() if line.startswith("ExecStart=")
    )
    return command.split()


def test_upgrades_and_downgrades_keep_live_containers_in_their_groups_and_their_use(
    manager: Manager, packages: Packages, newer: Packages
) -> None:
    """A container of each lives through it."""
    machine = manager.machine
    manager.install(packages)
    assert is_enabled(machine)
    web = machine.podman_run("web")
    machine.spend(web, 5)
    manager.install(newer)
    db = machine.podman_run("db")
    machine.spend(db, 7)
    before = {path: group for path, group in machine.resctrl.groups().items() if path != "/"}
    assert [before[f"/mon_groups/oci-{key}"]["tasks"] for key in (web, db)] == [
        [machine.pid("web")],
        [machine.pid("db")],
    ]

    for version in packages, newer, packages:
        manager.install(version)
        assert machine.run(NAME, "--version").stdout == f"{NAME} {version.version}\n"
        assert machine.run(NAME, "reconcile").stdout == "", "there is nothing to repair"
        machine.spend(db, 1)
        assert {key: state for key, (state, _) in list_keys(machine).items()} == {
            web: "live",
            db: "live",
        }
        assert {
            path: group for path, group in machine.resctrl.groups().items() if path != "/"
        } == before
    assert list_keys(machine) == {web: ("live", 5), db: ("live", 10)}

    machine.podman_rm("web", "db")
    assert machine.groups() == {}
    assert list_keys(machine) == {web: ("completed", 5), db: ("completed", 10)}


def list_keys(machine: Machine) -> dict[str, tuple[str, float]]:
    """Return the state of each key and what it used, as `list` shows them;
    no record may be unreadable.
    """
    listed = json.loads(machine.run(NAME, "list", "--json").stdout)
    assert listed["unreadable"] == []
    return {
        record["key"]: (record["state"], record["use"][ENERGY]["value"])
        for record in listed["keys"]
    }


def test_a_removal_ends_all_keys_and_containers_that_live_end_with_a_stub(
    manager: Manager, packages: Packages, newer: Packages
) -> None:
    machine = manager.machine
    manager.install(packages)
    conf = machine.at("/etc") / NAME / "metrics.conf"
    conf.write_text("LISTEN=127.0.0.1:9999\n")
    machine.podman_run("web")
    assert len(machine.groups()) == 1
    manager.remove()
    assert conf.read_text() == "LISTEN=127.0.0.1:9999\n", "it is the administrator's"
    assert is_stub(machine)
    assert in_usr(machine) == [PROGRAM]
    assert not machine.at(f"/run/{NAME}").exists()
    assert machine.groups() == {}
    machine.podman_run("later")
    assert machine.groups() == {}
    machine.podman_rm("later")
    manager.install(newer)  # over the stub, while a container that had the hook lives
    assert not is_stub(machine)
    assert f"oci-{machine.podman_run('again')}" in machine.groups()
    machine.podman_rm("again", "web")
    assert machine.groups() == {}
    manager.remove()
    assert in_usr(machine) == [PROGRAM]


def test_a_key_that_a_removal_cannot_end_is_named_and_uninstall_ends_it(
    manager: Manager, newer: Packages
) -> None:
    machine = manager.machine
    manager.install(newer)
    container = machine.podman_run("web")
    machine.resctrl.control(do="inject", op="rmdir", error="EPERM", times=1)
    printed = manager.remove()
    assert f"kept: key {container}: " in printed
    assert "run uninstall again" in printed
    assert set(machine.groups()) == {f"oci-{container}"}
    assert machine.at(AT_BOOT).exists()
    assert machine.at(PROGRAM).stat().st_size > len(b"#!/bin/true\n"), (
        "the program is there until the next boot"
    )
    machine.run(PROGRAM, "uninstall")
    assert machine.groups() == {}
    assert is_stub(machine)
    assert in_usr(machine) == [PROGRAM]


def test_a_removal_that_does_not_come_about_changes_nothing(
    machine: Machine, packages: Packages
) -> None:
    machine.dpkg("-i", packages.deb.name)
    before = ours(machine)
    for script, why in ("prerm", "remove"), ("postinst", "abort-remove"):
        machine.run(f"/var/lib/dpkg/info/{NAME}.{script}", why)
    assert ours(machine) == before
    assert is_enabled(machine)


def test_the_program_is_there_before_the_json_and_the_stub_comes_after_its_end(
    manager: Manager, packages: Packages, newer: Packages
) -> None:
    """And no step of any of it unlinks the program's path."""
    program, hook_file = f"hooks.d/{NAME}.pyz", f"hooks.d/10-{NAME}-podman.json"
    install, upgrade, remove = (
        manager.machine.changes(*command)
        for command in (manager.command(packages), manager.command(newer), manager.command())
    )
    # A shell takes an empty file for a script, and the kernel for nothing.
    manager.machine.at(PROGRAM).write_bytes(b"")
    again = manager.machine.changes(*manager.command(packages))
    assert install.index(program) < install.index(hook_file)
    assert program in upgrade
    assert remove.index(f"unlink {hook_file}") < remove.index(program)
    assert again.index(program) < again.index(hook_file), (
        "a file that cannot run is not left there either"
    )
    assert f"unlink {program}" not in [*install, *upgrade, *remove, *again]


def test_an_upgrade_from_a_package_that_shipped_the_path_only_renames_the_new_program_over_it(
    manager: Manager, older: Packages, packages: Packages
) -> None:
    """And what that version made beside the program goes, so that a purge leaves nothing of it."""
    machine = manager.machine
    manager.install(older)
    machine.at(f"{PROGRAM}.cpython-311").touch()
    container = machine.podman_run("web")
    program = f"hooks.d/{NAME}.pyz"
    changes = [
        line for line in machine.changes(*manager.command(packages)) if line.split()[-1] == program
    ]
    assert changes == [program]
    assert machine.run(NAME, "--version").stdout == f"{NAME} {packages.version}\n"
    assert machine.groups() == {f"oci-{container}": [machine.pid("web")]}
    machine.podman_rm("web")
    manager.remove()
    assert in_usr(machine) == [PROGRAM]
    assert NAME not in machine.run("dpkg-divert", "--list").stdout


@pytest.mark.parametrize("step", ["no script", PROGRAM, "kubernetes.json", "podman.json"])
def test_an_install_that_is_cut_short_stops_no_container_and_the_next_one_completes_it(
    manager: Manager, packages: Packages, step: str
) -> None:
    """Also one that runs no script, as an image's build may, and its removal.

    A script is killed before this rename.
    """
    machine = manager.machine
    command = manager.command(packages)
    if step == "no script":
        if manager.kind == "deb":
            command[command.index("-i")] = "--unpack"
        else:
            command.append("--noscripts")
        machine.from_outside(*command)
        assert list_needing(machine) == []
        manager.remove()
        assert list_needing(machine) == []
        machine.from_outside(*command)
    else:
        killer = machine.at("/usr/sbin") / "mv"  # where scripts of both look first
        killer.write_text(
            f'#!/bin/sh\ncase "$*" in *{step}) kill -KILL $PPID ;; *) exec /usr/bin/mv "$@" ;; '
            "esac\n"
        )
        killer.chmod(0o755)
        machine.from_outside(*command, check=False)
        killer.unlink()
    assert list_needing(machine) == []
    machine.podman_run("before")
    manager.install(packages)
    container = machine.podman_run("web")
    assert machine.groups()[f"oci-{container}"] == [machine.pid("web")]
    machine.podman_rm()
    assert machine.groups() == {}


# --- What cannot run


@contextmanager
def noexec(machine: Machine) -> Iterator[None]:
    """No program can run in the directory of the hooks' programs."""
    place = os.path.dirname(PROGRAM)
    machine.run("mkdir", "-p", place)
    machine.run("mount", "--bind", place, place)
    machine.run("mount", "-o", "remount,bind,noexec", place)
    try:
        yield
    finally:
        machine.run("umount", place)


def test_where_no_program_can_run_the_package_is_refused_and_containers_start(
    manager: Manager, packages: Packages, newer: Packages
) -> None:
    """Until the remedy that it names. A version of before stays, and runs again after that."""
    machine = manager.machine
    with noexec(machine):
        outcome = machine.from_outside(*manager.command(packages), check=False)
        assert outcome.returncode != 0
        assert (
            f"no program runs as {PROGRAM}: Permission denied: containers would fail"
            in outcome.stdout
        )
        assert ours(machine) == []
        machine.podman_run("before")
        assert machine.groups() == {}
        remedy = re.search(
            r"remedy: .* is mounted noexec: (.*); then install the package again", outcome.stdout
        )
        assert remedy is not None
        machine.run(*remedy[1].split())
        manager.install(packages)
    kept = ours(machine)
    with noexec(machine):
        assert machine.from_outside(*manager.command(newer), check=False).returncode != 0
    assert ours(machine) == kept
    assert machine.run(NAME, "--version").stdout == f"{NAME} {packages.version}\n"
    container = machine.podman_run("web")
    assert machine.groups() == {f"oci-{container}": [machine.pid("web")]}
    manager.install(newer)
    assert machine.run(NAME, "--version").stdout == f"{NAME} {newer.version}\n"


@pytest.mark.parametrize("damage", ["head -c -1", "sed s/hook/hooj/"])
def test_a_copy_that_is_cut_or_changed_is_refused_and_the_program_of_before_stays(
    manager: Manager, packages: Packages, newer: Packages, damage: str
) -> None:
    """By the digest: one that lacks its last byte would run."""
    machine = manager.machine
    manager.install(packages)
    before = machine.at(PROGRAM).read_bytes()
    copy = machine.at("/usr/sbin") / "cp"  # where scripts of both look first
    copy.write_text(f'#!/bin/sh\n{damage} "$1" >"$2"\n')
    copy.chmod(0o755)
    printed = machine.from_outside(*manager.command(newer), check=False).stdout
    copy.unlink()
    assert f"/usr/lib/{NAME}/{NAME} was not put into place; remedy: " in printed
    assert machine.at(PROGRAM).read_bytes() == before
    assert [
        path.name for path in machine.at(PROGRAM).parent.iterdir() if path.suffix == ".new"
    ] == []
    assert f"oci-{machine.podman_run('web')}" in machine.groups()
    machine.podman_rm("web")
    assert machine.groups() == {}
    manager.install(newer)
    assert machine.run(NAME, "--version").stdout == f"{NAME} {newer.version}\n"


# --- Whose the files are


def test_the_files_are_the_packages(manager: Manager, packages: Packages) -> None:
    """Also where the chart had them before."""
    machine = manager.machine
    owner = machine.at("/usr/libexec") / f"oci/hooks.d/{NAME}.owner"
    owner.parent.mkdir(parents=True, exist_ok=True)
    owner.write_text("chart\n")
    manager.install(packages)
    assert owner.read_text() == f"{manager.kind}\n"
    before = ours(machine)
    away = f"{'apt' if manager.kind == 'deb' else 'dnf'} remove {NAME}"
    for words in ("install", "--for=both"), ("uninstall",):
        done = machine.run(NAME, *words, check=False)
        assert done.returncode == 2
        assert (
            f"was installed by the package {NAME}; remedy: {away} first, or --force" in done.stdout
        )
    assert ours(machine) == before
    assert manager.kind == "rpm" or machine.run("dpkg", "--verify", NAME).stdout == ""
    assert f", installed by the package {NAME}" in machine.run(NAME, "doctor", check=False).stdout
    machine.run(NAME, "uninstall", "--force")
    assert is_stub(machine)


# --- Where systemd runs


@pytest.fixture
def systemctl(machine: Machine) -> Iterator[Path]:
    """systemd runs, as far as can be seen: its systemctl logs what it is asked for,
    and no unit is active.
    """
    log = machine.shared / "systemctl"
    log.touch()
    program = machine.at("/usr/local/bin") / "systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$*" >>{SHARED}/{log.name}\n'
        'case "$*" in *is-active*) exit 3 ;; *--root=/* | *is-enabled*) exec /usr/bin/systemctl '
        '--root=/ "$@" ;; esac\n'
    )
    program.chmod(0o755)
    (machine.at("/run/systemd") / "system").mkdir(parents=True)
    yield log
    program.unlink()
    log.unlink()
    (machine.at("/run/systemd") / "system").rmdir()


def test_the_timer_is_started_and_stopped_unless_it_was_disabled(
    machine: Machine, systemctl: Path, packages: Packages, newer: Packages
) -> None:
    machine.dpkg("-i", packages.deb.name)
    assert machine.at(f"/run/{NAME}").is_dir(), "tmpfiles.d makes it"
    assert f"restart {TIMER}\n" in systemctl.read_text()
    machine.run("/usr/bin/systemctl", "--root=/", "disable", TIMER)
    systemctl.write_text("")
    machine.dpkg("-i", newer.deb.name)
    assert f"restart {TIMER}\n" not in systemctl.read_text()
    assert not is_enabled(machine)
    machine.dpkg("-r", NAME)
    assert f"stop {TIMER} " in systemctl.read_text()
