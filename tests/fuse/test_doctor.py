# SPDX-License-Identifier: Apache-2.0
"""doctor as a process, on a machine with an installation. What it finds: unit/test_doctor.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.resctrlfs import Mounted
from tests.support import machine
from tests.support.hook import PYZ, Hook, shipped
from tests.support.machine import (
    HOOKS_DIR,
    LEFT,
    LINK,
    PROGRAM,
    UNITS,
    UNPRIVILEGED,
    ScratchMachine,
)


class InstalledNode:
    """A machine with an installation, the model of resctrl,
    and a systemd whose timer is active; `watch` is off.

    `installed`: a copy of such a machine's files, which was installed in this directory.
    """

    def __init__(self, directory: Path, resctrl: Mounted, installed: Path | None = None) -> None:
        self.resctrl = resctrl
        self.run_dir = directory / "records"
        if installed is not None:
            copy(installed, directory / "machine")
        (directory / "machine/var/lib").mkdir(parents=True, exist_ok=True)
        self.machine = ScratchMachine(
            directory / "machine", f"mount --bind {directory}/machine/var/lib /var/lib"
        )
        self.path, self.program = self.machine.path, self.machine.put_program
        self.options = [f"--resctrl-root={resctrl.root}", f"--run-dir={self.run_dir}"]
        self.hook = Hook(resctrl.root, self.run_dir)
        if installed is not None:
            return
        self.path("/run/systemd/system").mkdir(parents=True)
        for name in ("systemctl", "systemd-tmpfiles", "crio"):
            self.program(
                f"/usr/local/sbin/{name}",
                'case "$*" in is-failed*|is-enabled*-watch.service) exit 1; esac',
            )
        self.program("/usr/local/sbin/podman", 'test "$*" = --version && echo podman version 5.8.6')
        done = self.machine.run("install", "--for=both", *self.options)
        assert (done.returncode, done.stderr) == (0, "")

    def write(self, path: str, text: object) -> None:
        self.machine.put(path, text if isinstance(text, str) else json.dumps(text))

    def doctor(self, *program: str, before: str = "") -> tuple[int, list[dict[str, str]]]:
        """Its exit status, and what it found that is not well, after commands typed `before`.

        `program` calls the file that runs.
        """
        call = shlex.join([*(program or [str(shipped())]), "doctor", "--json", *self.options])
        done = self.machine.run("/bin/sh", "-ec", f"{{ {before or 'true'}\n}} >&2\n{call}")
        assert before or done.stderr == ""
        assert done.returncode in (0, 1), done.stderr
        answer = json.loads(done.stdout)
        assert answer["well"] is (done.returncode == 0)
        problems = [
            finding
            for finding in answer["findings"]
            if finding["level"] != "ok" and finding["subject"] != "root"
        ]
        assert all(finding["remedy"] for finding in problems)
        return done.returncode, problems


def copy(what: Path, to: Path) -> None:
    """Copy a directory with all that overlayfs keeps in it, and the owners."""
    subprocess.run(["cp", "-a", what, to], check=True)


@pytest.fixture(scope="module")
def installed(
    models: Callable[..., Mounted], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Where a node was installed, and what that wrote."""
    if reason := machine.missing_with_model():
        pytest.skip(reason)
    directory, kept = tmp_path_factory.mktemp("node"), tmp_path_factory.mktemp("kept") / "machine"
    InstalledNode(directory, models())
    copy(directory / "machine", kept)
    return directory, kept


@pytest.fixture
def node(resctrl: Mounted, installed: tuple[Path, Path]) -> InstalledNode:
    directory, kept = installed
    subprocess.run(["rm", "-rf", *directory.iterdir()], check=True)
    return InstalledNode(directory, resctrl, kept)


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
    node.path(PROGRAM).write_bytes(
        PYZ.read_bytes().replace(b"#!/usr/bin/python3", b"#!/usr/bin/python9", 1)
    )
    status, all_found = node.doctor()
    (finding,) = [finding for finding in all_found if finding["subject"] == "program"]
    assert (status, finding["level"]) == (1, "fail")
    assert finding["found"].startswith(f"{PROGRAM} does not run: cannot start: ENOENT")


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
    answer = json.loads(done.stdout)
    assert answer["mon_groups"] == {"cAdvisor": 1}
    assert any("core_energy" in name for name in answer["files"])
    assert any("core_energy" in name for name in answer["counters"])
    assert "secret" not in done.stdout
    (others,) = (row["found"] for row in node.doctor()[1] if "other tools" in row["found"])
    assert others.startswith("1 group of other tools (cAdvisor: 1): ")


# --- Remedies

JSON = f"{HOOKS_DIR}/10-resctrl-mon-hook-podman.json"
OF_KUBERNETES = f"{HOOKS_DIR}/10-resctrl-mon-hook-kubernetes.json"
HISTORY = "/var/log/resctrl-mon-hook"
TEXTFILE = "/var/lib/prometheus/node-exporter/resctrl.prom"
PYTHON = "/usr/bin/python3"
Harm = Callable[[InstalledNode], object]


def cut(size: int) -> Harm:
    def harm(node: InstalledNode) -> None:
        os.truncate(
            node.path(PROGRAM), node.path(PROGRAM).stat().st_size // 2 if size < 0 else size
        )

    return harm


def chmod(path: str, mode: int) -> Harm:
    return lambda node: node.path(path).chmod(mode)


def remove(*paths: str) -> Harm:
    def harm(node: InstalledNode) -> None:
        for path in paths:
            node.path(path).unlink()

    return harm


def owned(owner: str, program: str) -> Harm:
    """A package whose program is not executable,
    and a package manager that would install it again.
    """

    def harm(node: InstalledNode) -> None:
        node.path(PROGRAM).chmod(0o644)
        node.write(f"{os.path.dirname(PROGRAM)}/resctrl-mon-hook.owner", owner)
        node.program(
            f"/usr/local/sbin/{program}",
            f'case "$*" in *reinstall*resctrl-mon-hook) chmod 755 {PROGRAM}; esac',
        )

    return harm


def unmounted(node: InstalledNode) -> None:
    """The directory of resctrl is there, and mount(8) mounts the model."""
    root = node.machine.directory / "resctrl"
    root.mkdir()
    node.options[0] = f"--resctrl-root={root}"
    node.program("/usr/sbin/mount.resctrl", f'mount --bind {node.resctrl.root} "$2"')


def recorded(place: str, **fields: object) -> Harm:
    def harm(node: InstalledNode) -> None:
        path = node.run_dir / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": 1, **fields}) if fields else "{")

    return harm


def hung(node: InstalledNode) -> None:
    """A watch that hangs: systemd's SIGTERM ends it,
    and the next one has not written its record yet.
    """
    recorded("watch.json", alive_at=1.0)(node)
    node.program(
        "/usr/local/sbin/systemctl",
        f'test "$*" != "restart resctrl-mon-hook-watch.service" || rm {node.run_dir}/watch.json',
    )


def enabled(node: InstalledNode) -> None:
    """A view that its service has not made: once it starts, it has."""
    node.write("/etc/systemd/system/multi-user.target.wants/resctrl-mon-hook-view.service", "")
    node.program(
        "/usr/local/sbin/systemctl",
        f'test "$*" != "restart resctrl-mon-hook-view.service" || {{ mkdir -p {node.run_dir}; '
        f'printf %s "{{\\"alive_at\\": $(date +%s).0}}" >{node.run_dir}/view.json; }}',
    )


def for_jobs(harm: Harm) -> Harm:
    """The same harm to a node that was installed for jobs alone, though it has runtimes."""

    def install(node: InstalledNode) -> None:
        done = node.machine.run("install", "--for=jobs")
        assert (done.returncode, done.stderr, node.path(JSON).exists()) == (0, "", False)
        harm(node)

    return install


def with_options(harm: Harm) -> Harm:
    """The same harm to a node that was installed for Podman alone, with options."""

    def install(node: InstalledNode) -> None:
        words = ["--for=podman", "--key=sandbox", "--linger=30", "--adopt", *node.options]
        done = node.machine.run("install", *words)
        assert (done.returncode, done.stderr, node.path(OF_KUBERNETES).exists()) == (0, "", False)
        harm(node)

    return install


def with_a_foreign_name(node: InstalledNode) -> None:
    """The administrator's own file calls the program, and ours are gone."""
    node.write(
        f"{HOOKS_DIR}/50-meter.json", node.path(JSON).read_text().replace("podman", "all", 1)
    )
    remove(JSON, OF_KUBERNETES, PROGRAM)(node)


def read_only(node: InstalledNode) -> None:
    """mount(8) calls the program of a FUSE file system, which resctrl is not."""
    root = node.resctrl.root
    node.program("/usr/local/sbin/resctrlfs", f"mount -i -o remount,rw {root}")
    node.machine.mount(f"mount --bind {root} {root}", f"mount -o remount,bind,ro {root}")


def read_only_history(node: InstalledNode) -> None:
    node.machine.mount(f"mount --bind {HISTORY} {HISTORY}", f"mount -o remount,bind,ro {HISTORY}")


def run_directory_elsewhere(node: InstalledNode) -> None:
    node.run_dir.symlink_to(node.machine.directory)


def without_history(node: InstalledNode) -> None:
    node.path(HISTORY).rmdir()


def with_a_file_for_a_history(node: InstalledNode) -> None:
    without_history(node)
    node.write(HISTORY, "")


def with_an_old_textfile(node: InstalledNode) -> None:
    node.write(TEXTFILE, "")
    os.utime(node.path(TEXTFILE), (9, 9))


FAILED = {
    "pid": 4194303,
    "starttime": 1,
    "container": "web",
    "reason": "task_gone",
    "stage": "createRuntime",
    "problem": "x",
    "time": "2026-01-02T03:04:05Z",
}
NOW = {"completed_at": "2026-01-02T03:04:05Z", "completed_boottime": 1.0}
OWED = {
    "history_file": f"{HISTORY}/history.jsonl",
    "owed": {"lines": ["{}"], "why": "ENOSPC"},
    **NOW,
}
Remedy = tuple[Harm, str, tuple[str, ...]]
OF_THE_FILE: dict[str, Remedy] = {
    "not executable": (chmod(PROGRAM, 0o644), "cannot start: EACCES", ()),
    "not executable, by Python": (chmod(PROGRAM, 0o644), "cannot start: EACCES", (PYTHON, PROGRAM)),
    "cut to a half": (cut(-1), f"{PROGRAM} is damaged", ()),
    "cut to its beginning": (cut(100), "does not run", ()),
    "with options: cut to a half": (with_options(cut(-1)), f"{PROGRAM} is damaged", ()),
}
OF_THE_NODE: dict[str, Remedy] = {
    "empty": (cut(0), "does not run", ()),
    "a stub": (
        lambda node: node.path(PROGRAM).write_text(LEFT[PROGRAM]),
        "is missing, or only",
        (),
    ),
    "no hooks.d file": (remove(JSON, OF_KUBERNETES), "calls resctrl-mon-hook", ()),
    "no hooks.d file, by the link": (
        remove(JSON, OF_KUBERNETES),
        "calls resctrl-mon-hook",
        (LINK,),
    ),
    "no hooks.d file, by the program": (
        remove(JSON, OF_KUBERNETES),
        "calls resctrl-mon-hook",
        (PROGRAM,),
    ),
    "no program": (remove(PROGRAM), "is missing, or only", ()),
    "of a package of Debian": (owned("deb", "apt"), "cannot start: EACCES", ()),
    "of an RPM": (owned("rpm", "dnf"), "cannot start: EACCES", ()),
    "reconcile has not run": (lambda _node: None, "it has not ended since boot", ()),
    "reconcile has not run, by the link": (
        lambda _node: None,
        "it has not ended since boot",
        (LINK,),
    ),
    "with options: no program": (with_options(remove(PROGRAM)), "is missing, or only", ()),
    "with options: no link": (
        with_options(remove(LINK)),
        f"{LINK} is missing, or leads nowhere",
        (),
    ),
    "a hooks.d file of the administrator's": (with_a_foreign_name, "is missing, or only", ()),
    "no link": (remove(LINK), f"{LINK} is missing, or leads nowhere", ()),
    "for jobs: no link": (for_jobs(remove(LINK)), f"{LINK} is missing, or leads nowhere", ()),
    "for jobs: no program": (for_jobs(remove(PROGRAM)), "is missing, or only", ()),
    "for jobs: cut to its beginning": (for_jobs(cut(100)), "does not run", ()),
    "for jobs: reconcile has not run": (
        for_jobs(lambda _node: None),
        "it has not ended since boot",
        (),
    ),
    "a program that all may write": (
        chmod(PROGRAM, 0o777),
        f"{PROGRAM} is not owned by root, or",
        (),
    ),
    "a program of a user": (
        lambda node: os.chown(node.path(PROGRAM), 1000, 1000),
        f"{PROGRAM} is not owned by",
        (),
    ),
    "a hooks.d file that all may write": (
        chmod(JSON, 0o666),
        f"{JSON} is not owned by root, or",
        (),
    ),
    "a hooks.d file of a user": (
        lambda node: os.chown(node.path(JSON), 1000, 1000),
        f"{JSON} is not owned by root",
        (),
    ),
    "a directory that all may write": (
        chmod(HOOKS_DIR, 0o777),
        f"{HOOKS_DIR} is not owned by root, or",
        (),
    ),
    "not mounted": (unmounted, "not mounted on", ()),
    "mounted read-only": (read_only, "resctrl is mounted read-only", ()),
    "a read-only history": (read_only_history, f"{HISTORY} is mounted read-only", ()),
    "no timer": (remove(f"{UNITS}.timer"), "it has not ended since boot", ()),
    "a file for a run directory": (
        lambda node: node.run_dir.touch(),
        "is a file, not a directory",
        (),
    ),
    "a link for a run directory": (run_directory_elsewhere, "is a link to /", ()),
    "a group without a record": (
        lambda node: (node.resctrl.root / "mon_groups/oci-x").mkdir(),
        "1 group of ours that no record names",
        (),
    ),
    "a history that all may change": (
        chmod(HISTORY, 0o777),
        f"{HISTORY} is not owned by root, or",
        (),
    ),
    "a damaged record": (recorded("groups/x.json"), "groups/x.json: ", ()),
    "a line of history that waits": (
        recorded("groups/x.json", key="x", kind="container", **OWED),
        "1 line for",
        (),
    ),
    "no directory of the history": (without_history, f"{HISTORY} is no directory", ()),
    "a file for a directory": (with_a_file_for_a_history, f"{HISTORY} is no directory", ()),
    "a container that is not monitored": (
        recorded("unmonitored/web.json", **FAILED),
        "1 container: web",
        (),
    ),
    "for jobs: no directory of the history": (
        for_jobs(without_history),
        f"{HISTORY} is no directory",
        (),
    ),
    "a watch that hangs": (hung, "it last wrote its record", ()),
    "a view that nothing keeps": (recorded("view.json", alive_at=1.0), "nothing keeps", ()),
    "a view whose service does not run": (enabled, "its service is enabled", ()),
    "an old textfile": (with_an_old_textfile, f"{TEXTFILE} is", ()),
}
"""As OF_THE_FILE: what is done to a node, what doctor finds, and how it is called."""
ON_BOTH_FORMS = [pytest.param(case, marks=pytest.mark.both_forms) for case in OF_THE_FILE]


def list_hook_files(node: InstalledNode) -> dict[str, str]:
    """The hooks.d files; with one of them, also whether the timer's reconcile adopts."""
    files = {
        path.name: path.read_text()
        for path in node.path(HOOKS_DIR).glob("*.json")
        if path.is_file()
    }
    return (
        {**files, "unit": str("--adopt" in node.path(f"{UNITS}.service").read_text())}
        if files
        else {}
    )


@pytest.mark.parametrize("case", [*ON_BOTH_FORMS, *OF_THE_NODE])
def test_the_commands_of_a_remedy_cure_what_was_found_and_harm_nothing(
    node: InstalledNode, case: str
) -> None:
    harm, text, program = {**OF_THE_FILE, **OF_THE_NODE}[case]
    harm(node)
    before = list_hook_files(node)
    _, findings = node.doctor(*program)
    (finding,) = [row for row in findings if text in row["found"]] or [pytest.fail(str(findings))]
    commands = re.findall("`([^`]+)`", finding["remedy"])
    assert commands
    _, left = node.doctor(*program, before="\n".join(commands))
    assert not before or list_hook_files(node) == before, "a remedy keeps targets and options"
    # This machine's own containers, once reconcile ran.
    left = [row for row in left if row["subject"] != "unhooked"]
    # While the run directory cannot be used, the last finding does not show
    known = {row["found"] for row in findings if row is not finding} | {
        "it has not ended since boot"
    }
    assert {row["found"] for row in left} <= known - {finding["found"]}
