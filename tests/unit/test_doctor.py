# SPDX-License-Identifier: Apache-2.0
"""What doctor finds on a node where all is well,
and on the same with one thing wrong with it at a time.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.helpers import reset_ids, set_uid

from hook import entry, host, reclaim, system
from hook.doctor import checks, format_findings, to_objects
from hook.doctor.checks import Found, Site, examine
from hook.doctor.machine import make_report
from hook.install.install import Refused
from hook.node.hooksd import ADMINISTRATOR, READERS, SYSTEM
from hook.node.paths import JOBS_MARK, STUB, Places
from hook.show.findings import OK, Finding, list_findings
from hook.show.snapshot import take_snapshot
from tests.unit.nodes import NodeFiles, add_process

PROGRAM = Places().program
KUBERNETES, PODMAN = (Places().json(target) for target in ("kubernetes", "podman"))
OTHER = f"{SYSTEM}/50-x.json"
THEIRS: dict[str, Any] = {
    "version": "1.0.0",
    "hook": {"path": "/bin/true"},
    "when": {"always": True},
    "stages": ["poststop"],
}
RESCTRL, RUN = "/sys/fs/resctrl", "/run/resctrl-mon-hook"
LOGS = "/var/log/resctrl-mon-hook"
INFO = f"{RESCTRL}/info/L3_MON"
CONF = "/etc/containers/containers.conf"
TEXTFILE = "/var/lib/prometheus/node-exporter/resctrl.prom"
SPEC = "base_runtime_spec = '/etc/x.json'\n"
OLD_SPEC = f"version = 3\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n{SPEC}"
VALIDATOR = (
    "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nreject_oci_hook_adjustment = true\n"
)


UIDS = [f"87a3fb58-1c2d-4e5f-8a9b-00000000000{digit}" for digit in range(4)]


def make_program() -> bytes:
    """What is known as a file of this project."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("hook/__init__.py", '"""resctrl-mon-hook: x."""')
    return b"#!/usr/bin/python3 -x\n" + data.getvalue()


class InstalledFiles:
    """A node with an installation, CRI-O and Podman, whose reconcile ran a minute ago."""

    def __init__(
        self, fs: FakeFilesystem, node: NodeFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fs, self.files = fs, node
        self.problem = ""
        """Why the program does not run."""
        self.room = {"f_flag": 0, "f_blocks": 0, "f_files": 0}
        now = system.unix_time()
        monkeypatch.setattr(system, "unix_time", lambda: now)
        set_uid(0)  # what is made from here on is root's, whoever runs the test
        for name in ("crio", "podman"):
            self.program(name)
        self.write("/bin/true", "")
        fs.create_dir("/var/log/resctrl-mon-hook")
        self.write(PROGRAM, make_program(), mode=0o755)
        for path, target in ((KUBERNETES, "kubernetes"), (PODMAN, "podman")):
            self.write(path, self.make_json(target))
        node.run.mkdir()
        node.reconciled(ended_at=system.unix_time() - 60, seconds=0.5)
        monkeypatch.setattr(checks, "try_program", self._try)
        monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**self.room))

    def make_json(self, target: str) -> dict[str, Any]:
        """The content of a hooks.d file as `install` writes it."""
        words = ["resctrl-mon-hook", "hook", f"--containers={target}"]
        hook = {"path": PROGRAM, "args": words, "env": ["PATH=/bin"], "timeout": 60}
        return {
            "version": "1.0.0",
            "hook": hook,
            "when": {"always": True},
            "stages": ["createRuntime", "poststop"],
        }

    def _try(self, path: str) -> None:
        if self.problem:
            raise Refused(f"{path} does not run: {self.problem}")

    def program(self, name: str) -> None:
        self.write(f"/usr/bin/{name}", "", mode=0o755)

    def write(self, path: str, text: object, mode: int = 0o644) -> None:
        if self.fs.exists(path):
            self.fs.remove(path)
        content = text if isinstance(text, (str, bytes)) else json.dumps(text)
        self.fs.create_file(path, contents=content, st_mode=0o100000 | mode)

    def change(self, file: str, **fields: object) -> None:
        """Change fields of a hooks.d file, and of the hook in it. None removes a field."""
        content = json.loads(Path(file).read_text())
        for name, value in fields.items():
            place = content if name in ("when", "stages") else content["hook"]
            place[name] = value
        self.write(file, content)

    def copy_to_etc(self, names_etc: bool = False) -> None:
        for path, conf, table in (
            (PODMAN, CONF, "engine"),
            (KUBERNETES, "/etc/crio/crio.conf", "crio.runtime"),
        ):
            self.write(f"{ADMINISTRATOR}/{os.path.basename(path)}", Path(path).read_text())
            if names_etc:
                self.write(conf, f"[{table}]\nhooks_dir = ['{SYSTEM}', '{ADMINISTRATOR}']\n")

    def use_containerd(self, config: str, *hooks: str) -> None:
        """Replace CRI-O by containerd, whose specification has these hooks."""
        self.fs.remove("/usr/bin/crio")
        self.program("containerd")
        self.write("/etc/containerd/config.toml", config)
        self.write("/etc/x.json", {"hooks": {"poststop": [{"path": path} for path in hooks]}})

    def info(self, **texts: str) -> None:
        """Write files of info/L3_MON."""
        for name, text in texts.items():
            self.write(f"{INFO}/{name}", text)

    def doctor(self) -> list[Finding]:
        """Everything that it finds."""
        return [*examine(Site(Places(), self.files.options, tuple(READERS), PROGRAM))]

    def problems(self) -> list[Finding]:
        """What it finds that is not well."""
        return [finding for finding in self.doctor() if finding.level != OK]


@pytest.fixture
def installed(
    fs: FakeFilesystem, node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InstalledFiles]:
    yield InstalledFiles(fs, node, monkeypatch)
    reset_ids()


Change = Callable[[InstalledFiles], object]


def with_hook(**fields: object) -> Change:
    return lambda node: node.change(PODMAN, **fields)


def refuse(pattern: str) -> Change:
    return lambda node: node.write(OTHER, {**THEIRS, "when": {"annotations": {"a": pattern}}})


def written_by_a_group(node: InstalledFiles) -> None:
    node.write(OTHER, THEIRS)
    node.fs.chmod(OTHER, 0o664)


def elsewhere(content: bytes, args: list[str]) -> Change:
    """Let hand-written JSON call our program by another name."""

    def change(node: InstalledFiles) -> None:
        for path in (KUBERNETES, PODMAN):
            node.fs.remove(path)
        node.write("/opt/meter", content, mode=0o755)
        node.write(
            OTHER,
            {
                **node.make_json("podman"),
                "hook": {"path": "/opt/meter", "args": args, "timeout": 60},
            },
        )

    return change


def containerd(config: str, *hooks: str) -> Change:
    return lambda node: node.use_containerd(config, *hooks)


def written(path: str, text: object) -> Change:
    return lambda node: node.write(path, text)


def uncounted(node: InstalledFiles) -> None:
    node.info(
        mon_features="llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
        mbm_assign_mode="[mbm_event]\n",
    )
    node.files.live("db")
    node.files.count("oci-db", {"mon_L3_00/mbm_total_bytes": "Unassigned"})


def untracked(node: InstalledFiles) -> None:
    node.info(mon_features="llc_occupancy\nmbm_total_bytes\n")
    node.write("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\n")


def groups(number: int, name: str = "oci-") -> Change:
    return lambda node: [node.files.make(f"{name}{count}") for count in range(number)]


def taken(node: InstalledFiles) -> None:
    node.files.live("web")
    node.files.take()


def owed(node: InstalledFiles) -> None:
    node.files.completed("web", history_file="/a", owed={"lines": ["{}"] * 2, "why": "ENOSPC"})


def full(node: InstalledFiles) -> None:
    node.room = {
        "f_flag": 0,
        "f_blocks": 9,
        "f_files": 9,
        "f_bavail": 0,
        "f_favail": 9,
        "f_frsize": 4096,
    }


def reconciled(**fields: Any) -> Change:  # noqa: ANN401
    return lambda node: node.files.reconciled(**{"ended_at": system.unix_time(), **fields})


def remove(*paths: str) -> Change:
    def change(node: InstalledFiles) -> None:
        for path in paths:
            node.fs.remove_object(path)

    return change


def for_jobs(node: InstalledFiles) -> None:
    """What `install --for=jobs` leaves, where CRI-O and Podman run, too."""
    remove(KUBERNETES, PODMAN)(node)
    node.write(Places().timer, f"{JOBS_MARK}\n")
    node.fs.create_symlink(Places().link, PROGRAM)


def adopting(node: InstalledFiles) -> None:
    """What `install --adopt` leaves of the timer's unit."""
    node.write(Places().units[0], f"[Service]\nExecStart={Places().link} reconcile --adopt\n")


def for_jobs_without_history(node: InstalledFiles) -> None:
    for_jobs(node)
    node.fs.remove_object("/var/log/resctrl-mon-hook")


def for_jobs_with_a_file(node: InstalledFiles) -> None:
    for_jobs(node)
    node.write(KUBERNETES, node.make_json("kubernetes"))


def with_old_textfile(node: InstalledFiles) -> None:
    node.write(TEXTFILE, "")
    os.utime(TEXTFILE, (9, 9))


VIEW_ENABLED = "/etc/systemd/system/multi-user.target.wants/resctrl-mon-hook-view.service"


def with_old_view(node: InstalledFiles) -> None:
    node.files.kept_view(alive_at=system.unix_time() - 1000)


def with_old_view_of_service(node: InstalledFiles) -> None:
    with_old_view(node)
    node.write(VIEW_ENABLED, "")


def held(node: InstalledFiles) -> None:
    """A process of no container is in a group of ours without a record."""
    add_process(4712, cgroup="0::/user.slice/x")
    node.write(f"{node.files.make('oci-x')}/tasks", "4712\n")


def recovering(node: InstalledFiles) -> None:
    """The same once reconcile has tried to rebuild the record."""
    held(node)
    node.files.record(
        "x", recovering=True, groups=[{"path": f"{RESCTRL}/mon_groups/oci-x", "ctrl_group": "/"}]
    )


def for_no_container(**when: object) -> Change:
    return lambda node: node.change(PODMAN, when=when)


def without_link(node: InstalledFiles) -> None:
    """The units are there, and not the link that they call the program by."""
    node.write(Places().timer, "")


def beside(node: InstalledFiles) -> None:
    """Groups of other tools, with a ctrl_group's; one of ours by its prefix is an orphan,
    and one is on record.
    """
    for name in (
        UIDS[0],
        UIDS[1].replace("-", ""),
        f"nri-{UIDS[2]}",
        f"pod_{UIDS[3]}",
        "pqos-12-0",
    ):
        node.files.make(name)
    node.files.make("mine", "gold")
    node.files.make(f"oci-{UIDS[3]}")
    other = node.files.make(UIDS[3])
    node.files.record("kept", groups=[{"path": other, "ctrl_group": "/"}])


def filling(node: InstalledFiles) -> None:
    for_jobs(node)
    node.room |= {"f_blocks": 1 << 20, "f_bavail": 20 << 8, "f_frsize": 4096}


def not_rotated(node: InstalledFiles) -> None:
    with_hook(args=["x", "hook", f"--history={LOGS}/history.jsonl"])(node)
    node.fs.create_file(f"{LOGS}/history.jsonl", st_size=150 << 20)


def called(node: InstalledFiles) -> None:
    node.write("/opt/resctrl-mon-hook.sh", "#!/bin/sh\n")
    node.write(OTHER, {**THEIRS, "hook": {"path": "/opt/resctrl-mon-hook.sh"}})


AILMENTS: dict[str, Change] = {
    "FAIL resctrl: no /sys/fs/resctrl": remove(RESCTRL),
    "FAIL resctrl: /sys/fs/resctrl is mounted but does not support monitoring": remove(
        f"{RESCTRL}/mon_groups"
    ),
    "FAIL resctrl: /sys/fs/resctrl is mounted read-only": lambda node: node.room.update(
        f_flag=os.ST_RDONLY
    ),
    "FAIL resctrl: not mounted on": remove(
        f"{RESCTRL}/mon_groups", f"{RESCTRL}/info", f"{RESCTRL}/mon_data"
    ),
    "warning counters: L3_MON; no energy (PERF_PKG_MON)": remove(f"{RESCTRL}/info/PERF_PKG_MON"),
    "warning memory traffic: not counted: the kernel offers llc_occ": written(
        f"{INFO}/mon_features", "llc_occupancy"
    ),
    "warning memory traffic: counted in part: this CPU says Unavailable": untracked,
    f"warning memory traffic: not counted in 1 group without a hardware counter: {RESCTRL}": (
        uncounted
    ),
    "FAIL RMIDs: 8 in use of 8 (7 ours, 1 of others): none left": groups(7),
    f"warning RMIDs: 1 group of ours that no record names: {RESCTRL}/mon_groups/oci-x": groups(
        1, "oci-x"
    ),
    f"warning RMIDs: 1 group of ours held by processes of no known container: {RESCTRL}": (held),
    "warning RMIDs: 1 group of ours held by processes of no known": recovering,
    f"warning RMIDs: 2 groups of other tools (unknown: 2): {RESCTRL}/mon_groups/theirs0, ": groups(
        2, "theirs"
    ),
    "warning RMIDs: 6 groups of other tools (the NRI plugin resctrl-mon, or Kepler: 2; ": beside,
    "warning program: not ours: /opt/resctrl-mon-hook.sh is damaged, or no": called,
    "warning program: not ours: /usr/bin/resctrl-mon-hook is damaged, or": written(
        "/usr/bin/resctrl-mon-hook", "#!/"
    ),
    f"warning program: not ours: {PROGRAM} is damaged": written(PROGRAM, "#!/bin/sh\n"),
    f"FAIL program: {PROGRAM} is missing, or only the stub that a removal leaves": written(
        PROGRAM, STUB.decode()
    ),
    f"FAIL program: {PROGRAM} is missing, or": remove(PROGRAM),
    "FAIL program: /usr/bin/resctrl-mon-hook is missing, or leads nowhere: the units": without_link,
    f"FAIL program: {PROGRAM} is not owned by root, or is": lambda node: node.fs.chmod(
        PROGRAM, 0o777
    ),
    "FAIL program: /usr/libexec/oci is not owned by root, or is": lambda node: node.fs.chmod(
        "/usr/libexec/oci", 0o757
    ),
    f"FAIL hooks.d: {PODMAN} is not owned by root, or is writable by others": lambda node: (
        node.fs.chmod(PODMAN, 0o666)
    ),
    f"FAIL hooks.d: {KUBERNETES} is not owned by root, or": lambda _node: os.chown(
        KUBERNETES, 1000, 0
    ),
    f"FAIL hooks.d: {OTHER} is not owned by root, or is": written_by_a_group,
    f"FAIL hooks.d: {SYSTEM} is not owned by root, or is writable": lambda _node: os.chown(
        SYSTEM, 1000, 0
    ),
    f"FAIL hooks.d: {OTHER}: invalid: CRI-O, Podman and the NRI hook-injector reject it: '": (
        refuse("(?=x)")
    ),
    f"FAIL hooks.d: {PODMAN}: its args: 'run' is no verb of a hook: containers fail, or": with_hook(
        args=["x", "run"]
    ),
    f"FAIL hooks.d: {PODMAN}: its args: 'metrics' is no verb of a hook": with_hook(
        args=["x", "metrics", "--listen=1"]
    ),
    f"FAIL hooks.d: {PODMAN}: its args: '--linger=5' is no verb of a hook": with_hook(
        args=["x", "--linger=5"]
    ),
    f"FAIL hooks.d: {PODMAN}: its args: None is no verb of a hook": with_hook(args=None),
    f"warning hooks.d: {PODMAN}: its `when` matches no container, or": for_no_container(
        always=False
    ),
    f"warning hooks.d: {PODMAN}: its `when` matches no container, o": for_no_container(),
    f"warning hooks.d: {PODMAN}: its `when` matches no container, ": for_no_container(
        annotations={"^io\\.none": ".*"}
    ),
    f"warning hooks.d: {PODMAN}: its `when` matches no container,": for_no_container(
        annotations={"^io\\.kubernetes": ".*", "^io\\.container\\.manager$": "libpod"}
    ),
    "warning history: /var/log/resctrl-mon-hook is not owned by root, or is": lambda node: (
        node.fs.chmod(LOGS, 0o777)
    ),
    "warning history: the file system of /var/log/resctrl-mon-hook fills: 20 MiB are left": filling,
    "warning history: /var/log/resctrl-mon-hook/history.jsonl has 150 MiB, and reconcile": (
        not_rotated
    ),
    "warning history: /var/log/x is no directory: no": with_hook(
        args=["x", "hook", "--history=/var/log/x/h.jsonl"]
    ),
    "warning history: /var/log/resctrl-mon-hook is no directory: no history": (
        for_jobs_without_history
    ),
    f"warning history: {PROGRAM} is no directory: no history": with_hook(
        args=["x", "hook", f"--history={PROGRAM}/h"]
    ),
    f"FAIL program: {PROGRAM} does not run: no such Python": lambda node: setattr(
        node, "problem", "no such Python"
    ),
    f"FAIL hooks.d: {OTHER}: invalid: CRI-O, Podman and the NRI hook-injector reject it": written(
        OTHER, "{"
    ),
    f"FAIL hooks.d: no file in {SYSTEM} or {ADMINISTRATOR} calls resctrl-mon-hook": remove(
        PODMAN, KUBERNETES
    ),
    "FAIL hooks.d: several files call": lambda node: node.write(
        f"{ADMINISTRATOR}/50.json", node.make_json("podman")
    ),
    f"warning hooks.d: {PODMAN}: no timeout: a stuck hook blocks forever": with_hook(timeout=None),
    f"warning hooks.d: {PODMAN}: timeout 20 is too short: containers fail to start, for": (
        with_hook(timeout=20)
    ),
    f"warning hooks.d: {PODMAN}: a stage is missing": with_hook(stages=["poststop"]),
    f"warning hooks.d: {PODMAN}: its args: unknown option '--lingr'": with_hook(
        args=["x", "hook", "--lingr=5"]
    ),
    f"warning hooks.d: {PODMAN}: its program /no/resctrl-mon-hook.pyz is": with_hook(
        path="/no/resctrl-mon-hook.pyz"
    ),
    "FAIL runtimes: Podman reads /else, and not /usr/share": written(
        CONF, "[engine]\nhooks_dir = ['/else']\n"
    ),
    f"FAIL runtimes: CRI-O reads {SYSTEM}, and not {ADMINISTRATOR}, where our file is": (
        InstalledFiles.copy_to_etc
    ),
    f"warning runtimes: unclear which hooks directories Podman reads: {CONF}: not TOML": written(
        CONF, "[engine"
    ),
    "FAIL containerd: /etc/x.json names the hook, but its base_runtime_spec is in": containerd(
        OLD_SPEC, PROGRAM
    ),
    "FAIL containerd: /etc/containerd/config.toml: NRI's default_validator has reject_o": (
        containerd(VALIDATOR)
    ),
    "warning containerd: cannot read /etc/containerd/no.toml of": containerd(
        "imports = ['no.toml']\n"
    ),
    "FAIL records: more containers may be unmonitored: the file system of the run dir": (full),
    "warning history: not in the history yet: 2 lines for /a: ENOSPC": owed,
    f"warning records: unreadable: {RUN}/groups/x.json: Expecting": lambda node: node.files.write(
        "groups", "x.json", "{"
    ),
    "warning taken: taken by other tools, which count what they use: 1 container: web in /sys": (
        taken
    ),
    "warning failures: not monitored: task_gone: 1 container: web": lambda node: node.files.fail(
        "web", "task_gone"
    ),
    "FAIL unhooked: never hooked, as of ": lambda node: node.files.unhooked("web"),
    "warning unhooked: could not check 2 containers without a record": lambda node: (
        node.files.unhooked(unchecked=2)
    ),
    "warning reconcile: it has not ended since boot": remove(f"{RUN}/reconcile.json"),
    "warning reconcile: it last ended 301 s ago": lambda node: node.files.reconciled(
        ended_at=system.unix_time() - 301
    ),
    "warning reconcile: 2 of its actions failed; of keys, cgroups and processes 0 co": (
        reconciled(failed=2)
    ),
    "warning reconcile: 0 of its actions failed; of keys, cgroups and processes 2 co": (
        reconciled(unread=2)
    ),
    "warning watch: it last wrote its": lambda node: node.files.watched(
        alive_at=system.unix_time() - 1000
    ),
    f"warning view: nothing keeps {RUN}/mon_groups: it was last right 1000 s ago": with_old_view,
    "warning view: its service is enabled, and has not made it": lambda node: node.write(
        VIEW_ENABLED, ""
    ),
    "warning view: nothing keeps ": with_old_view_of_service,
    f"warning textfile: {TEXTFILE} is ": with_old_textfile,
}
"""What each change of the node leads to: the beginning of a finding."""


TYPED = {
    "mount -t",
    "mount -o",
    "chown root",
    "chmod go-w",
    "mv FILE",
    "mkdir -p",
    "rm FILE",
    "FILE install",
    "FILE reconcile",
}
TYPED |= {"rm -rf", "python3 FILE", "systemctl enable", "systemctl restart"}
"""How the commands of remedies begin; they are between backquotes,
and fuse/test_doctor.py types each of them.
"""
PROGRAMS = (
    "mount chown chmod mv rm rmdir mkdir journalctl systemctl kubectl helm apt dnf podman "
    "resctrl-mon-hook"
)
LIKE_A_COMMAND = rf"(^|[ ;,(])({PROGRAMS.replace(' ', '|')})[^ ]* [-/a-z]"
"""Without backquotes a remedy is for people: another machine, an edit,
a decision about another tool or its file.
"""


@pytest.mark.parametrize("expected", AILMENTS)
def test_what_is_wrong_is_found(installed: InstalledFiles, expected: str) -> None:
    AILMENTS[expected](installed)
    findings = installed.problems()
    assert any(
        f"{one.level} {one.subject}: {one.found}".startswith(expected) for one in findings
    ), findings
    assert all(one.remedy and "{" not in one.found + one.remedy for one in findings)
    for one in findings:
        commands = re.findall("`([^`]+)`", one.remedy)
        assert {
            " ".join(re.sub("(?<![a-z.])/[^ ]+", "FILE", command).split()[:2])
            for command in commands
        } <= TYPED
        assert not re.search(LIKE_A_COMMAND, re.sub("`[^`]+`", "", one.remedy))


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda _node: None, f"ok       runtimes: Podman reads {SYSTEM}"),
        (containerd(SPEC, PROGRAM), "ok       containerd: /etc/x.json names the hook"),
        (
            lambda node: node.copy_to_etc(names_etc=True),
            f"ok       runtimes: CRI-O reads {SYSTEM}, {ADMINISTRATOR}",
        ),
        (
            written(Places().owner, "deb\n"),
            f"ok       program: {PROGRAM} runs, installed by the package resctrl-mon-h",
        ),
        (with_hook(timeout=21), "ok       counters: L3_MON, PERF_PKG_MON"),
        (
            for_jobs,
            "ok       hooks.d: no file calls resctrl-mon-hook, which was installed for jobs alone",
        ),
        (
            lambda node: node.files.unhooked(),
            "ok       reconcile: it last ended 60 s ago, after 0.5 s",
        ),
        (elsewhere(b"", ["resctrl-mon-hook-x86_64", "hook"]), "ok       program: /opt/meter runs"),
        (elsewhere(make_program(), ["meter", "hook"]), "ok       program: /opt/meter runs"),
        (
            elsewhere(make_program(), ["meter", "createRuntime"]),
            "ok       program: /opt/meter runs",
        ),
        (
            lambda node: node.fs.chmod("/usr/libexec/oci", 0o775),
            f"ok       program: {PROGRAM} runs",
        ),
        (lambda node: node.fs.chmod("/usr/libexec", 0o1777), f"ok       program: {PROGRAM} runs"),
    ],
)
def test_all_is_well(installed: InstalledFiles, change: Change, shown: str) -> None:
    change(installed)
    assert installed.problems() == []
    assert any(line.startswith(shown) for line in format_findings(installed.doctor()))


def test_doctor_has_each_finding_that_list_shows(installed: InstalledFiles) -> None:
    taken(installed)
    full(installed)
    files = installed.files
    files.completed("c0", history_file="/a", owed={"lines": ["{}"], "why": "ENOSPC"})
    files.fail("c1")
    files.unhooked("c2", unchecked=1)
    files.reconciled(outside={"c3": 1}, outside_total=1, elsewhere={"/x": 1})
    for name in ("unrecorded", "dropped_lines"):
        files.write("runs", name, ".")
    files.write("groups", "torn.json", "{")
    shown = [finding.found for finding in list_findings(take_snapshot(files.options))]
    assert len(shown) == 11
    assert set(shown) <= {finding.found for finding in installed.problems()}


@pytest.mark.parametrize(
    ("where", "name", "answer"),
    [
        (system, "user_id", 1000),
        (system, "in_user_namespace", True),
        (host, "in_host_namespaces", False),
    ],
)
def test_doctor_elsewhere_than_on_the_host_as_root_is_a_failure(
    installed: InstalledFiles,
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    answer: object,
) -> None:
    monkeypatch.setattr(where, name, lambda: answer)
    assert [(finding.level, finding.subject) for finding in installed.problems()] == [
        ("FAIL", "root")
    ]


def test_a_timeout_is_longer_than_the_sum_of_the_waits_of_a_hook(installed: InstalledFiles) -> None:
    longest = entry.STDIN_PATIENCE + 3 * 2.0 + reclaim.LONGEST_SEARCH + 60.0 + 1.0
    installed.change(PODMAN, args=["x", "hook", "--lock-timeout=2", "--rmid-wait=60"], timeout=60)
    (finding,) = installed.problems()
    assert finding.found.endswith(f"the hook may wait {longest:.1f} s")


@pytest.mark.parametrize(
    ("owner", "remedy"),
    [
        ("", "edit"),
        ("deb", "`apt install --reinstall resctrl-mon-hook`; or, "),
        ("chart", "delete the chart's pod"),
    ],
)
def test_remedy_of_a_hooks_d_file_is_its_owners(
    installed: InstalledFiles, owner: str, remedy: str
) -> None:
    """What `install` wrote is the administrator's."""
    if owner:
        installed.write(Places().owner, f"{owner}\n")
    installed.change(PODMAN, timeout=None)
    (finding,) = installed.problems()
    assert finding.remedy.startswith(remedy)
    assert finding.remedy.endswith(f"edit {PODMAN}")


ENGINES = ("/usr/bin/crio", "/usr/bin/podman")


@pytest.mark.parametrize(
    ("change", "without", "words"),
    [
        (lambda _node: None, [PROGRAM], "install --for=same"),
        (lambda _node: None, [PROGRAM, *ENGINES], "install --for=same"),
        (adopting, [KUBERNETES, PODMAN], "install --adopt"),
        (for_jobs, [PROGRAM], "install --for=jobs"),
        (for_jobs, [PROGRAM, *ENGINES], "install --for=jobs"),
        (for_jobs, [Places().timer], "install"),
        (for_jobs, [Places().timer, *ENGINES], "install --for=jobs"),
        (for_jobs_with_a_file, [PROGRAM], "install --for=same"),
    ],
)
def test_remedy_installs_for_what_the_node_is_for(
    installed: InstalledFiles, change: Change, without: list[str], words: str
) -> None:
    """No remedy brings the hook to the containers of a node for jobs,
    or takes the hook from those of another one.
    """
    change(installed)
    remove(*without)(installed)
    failures = [finding for finding in installed.problems() if finding.level == "FAIL"]
    assert [re.findall("`[^`]* (install[^`]*)`", finding.remedy) for finding in failures] == [
        [words]
    ]


def test_a_check_that_fails_is_a_finding_and_the_same_error_is_reported_once(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_site: Site) -> Found:
        yield "ok", "well", ""
        raise PermissionError(13, "Permission denied", "/x")

    monkeypatch.setattr(system, "user_id", lambda: 0)
    monkeypatch.setattr(checks, "CHECKS", [("a", find)] * 2)
    findings = [*examine(Site(Places(), node.options, (), PROGRAM))]
    problem = "cannot check: a file could not be read; tried: Permission denied '/x': EACCES"
    failed = Finding("FAIL", "a", problem, "see what is at that path")
    assert findings == [Finding("ok", "a", "well"), failed, Finding("ok", "a", "well")]
    monkeypatch.setattr(system, "user_id", lambda: 1000)
    assert [*examine(Site(Places(), node.options, (), PROGRAM))][1].remedy == "run it as root"


def test_a_run_directory_that_is_a_file_or_a_link_is_one_failure_with_the_command(
    installed: InstalledFiles,
) -> None:
    shutil.move(RUN, "/elsewhere")
    for make, what in (
        (lambda: installed.fs.create_symlink(RUN, "/elsewhere"), "a link to /elsewhere"),
        (lambda: installed.write(RUN, ""), "a file"),
    ):
        make()
        (finding,) = installed.problems()
        assert (
            finding.found == f"cannot check: the run directory {RUN} cannot be used: "
            f"{RUN} is {what}, not a directory"
        )
        assert re.findall("`([^`]+)`", finding.remedy) == [f"mv {RUN} {RUN}.moved"]
        os.unlink(RUN)


def test_a_run_directory_that_others_may_write_to_is_one_failure_with_its_own_remedy(
    installed: InstalledFiles,
) -> None:
    installed.fs.chmod("/run/resctrl-mon-hook", 0o777)
    (finding,) = installed.problems()
    problem = (
        f"cannot check: the run directory {RUN} is not ours alone: its owner is uid 0, its mode "
        "0777"
    )
    assert (finding.subject, finding.found) == ("records", problem)
    assert (
        finding.remedy == "run it as root; remove the directory, or make it root's with mode 0755"
    )


FINDINGS = [
    Finding("warning", "b", "odd", "look"),
    Finding("ok", "a", "well"),
    Finding("FAIL", "c", "bad", "fix it"),
]
LINES = """\
ok       a: well
warning  b: odd
           look
FAIL     c: bad
           fix it
1 failure, 1 warning, 1 ok
""".splitlines()


def test_findings_end_with_what_is_worst_and_a_count() -> None:
    assert format_findings(FINDINGS) == LINES
    assert format_findings([]) == ["0 failures, 0 warnings, 0 ok"]
    assert format_findings(FINDINGS * 2)[-1] == "2 failures, 2 warnings, 2 ok"


def test_findings_are_objects_in_the_order_of_the_checks() -> None:
    assert to_objects(FINDINGS)[1:] == [
        {"level": "ok", "subject": "a", "found": "well", "remedy": None},
        {"level": "fail", "subject": "c", "found": "bad", "remedy": "fix it"},
    ]


def test_a_group_is_known_by_the_names_that_its_tool_gives() -> None:
    tools = {
        "5f3c9d0b" * 8: "the OCI runtime (enableMonitoring)",
        f"pod{UIDS[0]}": "kubelet (katalyst)",
        "crio-5f3c": "CRI-O",
        "cadvisor-kubepods-x": "cAdvisor",
        "cri-resmgr.a": "CRI Resource Manager",
        f"{UIDS[0]}-x": "unknown",
        "5f3c9d0b" * 7: "unknown",
    }
    assert {name: checks.name_tool(name) for name in tools} == tools


# --- doctor --report


def test_a_report_has_what_the_kernel_shows(installed: InstalledFiles) -> None:
    installed.write("/proc/cpuinfo", "model\t: 173\nflags\t: cqm\n\nmodel\t: 9\n")
    installed.write("/proc/cmdline", "root=/dev/vda1 rdt=energy,!mba\n")
    installed.write("/sys/class/intel_pmt/telem1/guid", "0x26696143\n")
    installed.files.count_whole({"mon_PERF_PKG_00/core_energy": "5.5"})
    installed.info(**{"event_configs/mbm_total_bytes/event_filter": "local_reads"})
    installed.files.live(UIDS[0])
    installed.files.make(UIDS[1], counters={"mon_PERF_PKG_00/core_energy": "Unavailable"})
    content = make_report(installed.files.options)
    assert (content["cpu"], content["boot"]) == (
        ["model\t: 173", "flags\t: cqm"],
        ["rdt=energy,!mba"],
    )
    assert content["files"] == {
        f"{INFO}/event_configs/mbm_total_bytes/event_filter": "local_reads",
        f"{INFO}/num_rmids": "16",
        "/sys/fs/resctrl/info/PERF_PKG_MON/num_rmids": "8",
        "/sys/fs/resctrl/mon_data/mon_PERF_PKG_00/core_energy": "5.5",
        "/sys/class/intel_pmt/telem1/guid": "0x26696143",
    }
    assert content["mon_groups"] == {"ours": 1, "the NRI plugin resctrl-mon, or Kepler": 1}
    energy = {name: count for name, count in content["counters"].items() if "core_energy" in name}
    assert energy == {
        "mon_PERF_PKG_00/core_energy: a number": 1,
        "mon_PERF_PKG_00/core_energy: Unavailable": 1,
    }
    shutil.rmtree(installed.files.root)
    (installed.files.root / "info").mkdir(parents=True)
    content = make_report(installed.files.options)
    assert (list(content["files"]), content["mon_groups"]) == (
        ["/sys/class/intel_pmt/telem1/guid"],
        {},
    )


def test_a_report_has_no_name_of_a_pod_container_or_group(installed: InstalledFiles) -> None:
    """Of records, which have most names, it reads none."""
    for name in (UIDS[0], f"nri-{UIDS[1]}", "cadvisor-secret-c", "secret-d", "crio-secret-e"):
        installed.files.make(name)
    installed.files.make(f"oci-{UIDS[2]}", "secret-class")
    installed.files.live(
        "secret-key", name="secret-name", pod_name="secret-pod", pod_namespace="secret-ns"
    )
    installed.write("/sys/fs/resctrl/info/last_cmd_status", "mkdir secret-group\n")
    shown = json.dumps(make_report(installed.files.options))
    assert [
        name for name in ("secret", "web", "shop", *(uid[:8] for uid in UIDS)) if name in shown
    ] == []
