# SPDX-License-Identifier: Apache-2.0
"""What doctor finds on a node where all is well, and on the same with one thing wrong with it at a time."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import entry, procfs, reclaim, system
from hook.doctor import OK, Finding, Site, checks, format_findings, to_objects
from hook.doctor.checks import examine
from hook.doctor.installation import compute_longest_wait
from hook.doctor.machine import make_report
from hook.install import install, steps
from hook.models import Options
from hook.node.hooksd import ADMINISTRATOR, SYSTEM
from hook.node.paths import STUB, Places
from hook.show import Screen
from tests.unit.nodes import NodeFiles

PROGRAM = Places().program
KUBERNETES, PODMAN = (Places().json(target) for target in ("kubernetes", "podman"))
OTHER = f"{SYSTEM}/50-x.json"
THEIRS: dict[str, Any] = {
    "version": "1.0.0",
    "hook": {"path": "/bin/true"},
    "when": {"always": True},
    "stages": ["poststop"],
}
INFO = "/sys/fs/resctrl/info/L3_MON"
TEXTFILE = "/var/lib/prometheus/node-exporter/resctrl.prom"
OLD_TABLE = "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n"
SPEC = "base_runtime_spec = '/etc/x.json'\n"
VALIDATOR = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nreject_oci_hook_adjustment = true\n"


UIDS = [f"87a3fb58-1c2d-4e5f-8a9b-00000000000{digit}" for digit in range(4)]


def make_program() -> bytes:
    """What is known as a file of this project."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("hook/__init__.py", '"""resctrl-mon-hook: x."""')
    return b"#!/usr/bin/python3 -x\n" + data.getvalue()


class InstalledFiles:
    """A node with an installation, CRI-O and Podman, whose reconcile ran a minute ago."""

    def __init__(self, fs: FakeFilesystem, node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fs, self.files = fs, node
        self.problem = ""
        """Why the program does not run."""
        self.room = {"f_flag": 0, "f_blocks": 0, "f_files": 0}
        for name in ("crio", "podman"):
            self.program(name)
        self.write("/bin/true", "")
        self.write(PROGRAM, make_program(), mode=0o755)
        for path, target in ((KUBERNETES, "kubernetes"), (PODMAN, "podman")):
            self.write(path, self.make_json(target))
        node.run.mkdir()
        node.reconciled(ended_at=system.unix_time() - 60, seconds=0.5)
        monkeypatch.setattr(install, "try_program", self._try)
        monkeypatch.setattr(system, "user_id", lambda: 0)
        monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**self.room))

    def make_json(self, target: str) -> dict[str, Any]:
        """The content of a hooks.d file as `install` writes it."""
        words = ["resctrl-mon-hook", "hook", f"--containers={target}"]
        hook = {"path": PROGRAM, "args": words, "env": ["PATH=/bin"], "timeout": 60}
        return {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["createRuntime", "poststop"]}

    def _try(self, path: str) -> None:
        if self.problem:
            raise steps.Refused(f"{path} does not run: {self.problem}")

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
            (PODMAN, "containers/containers", "engine"),
            (KUBERNETES, "crio/crio", "crio.runtime"),
        ):
            self.write(f"{ADMINISTRATOR}/{os.path.basename(path)}", Path(path).read_text())
            if names_etc:
                self.write(f"/etc/{conf}.conf", f"[{table}]\nhooks_dir = ['{SYSTEM}', '{ADMINISTRATOR}']\n")

    def use_containerd(self, config: str = "", *hooks: str) -> None:
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
        return [*examine(Site(Places(), self.files.options))]

    def report(self) -> dict[str, Any]:
        """What `doctor --report` prints."""
        site = Site(Places(), self.files.options)
        return make_report(site, ((site.checking, finding) for finding in examine(site)))

    def problems(self) -> list[Finding]:
        """What it finds that is not well."""
        return [finding for finding in self.doctor() if finding.level != OK]


@pytest.fixture
def installed(fs: FakeFilesystem, node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> InstalledFiles:
    return InstalledFiles(fs, node, monkeypatch)


Change = Callable[[InstalledFiles], object]


def own(**fields: object) -> Change:
    return lambda node: node.change(PODMAN, **fields)


def written(path: str, text: object) -> Change:
    return lambda node: node.write(path, text)


def counted(**texts: str) -> Change:
    """Files of the CPU's counters, where each group needs two of four in each domain."""
    abmc = {
        "mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
        "mbm_assign_mode": "[mbm_event]\ndefault\n",
        "mbm_assign_on_mkdir": "1\n",
        "num_mbm_cntrs": "0=4;1=4\n",
        "available_mbm_cntrs": "0=2;1=2\n",
    }
    return lambda node: node.info(**{**abmc, **texts})


def uncounted(node: InstalledFiles) -> None:
    counted()(node)
    node.files.live("db")
    node.files.count("oci-db", {"mon_L3_00/mbm_total_bytes": "Unassigned"})


def untracked(node: InstalledFiles) -> None:
    node.info(mon_features="llc_occupancy\nmbm_total_bytes\n")
    node.write("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\n")


def groups(number: int, name: str = "oci-") -> Change:
    return lambda node: [node.files.make(f"{name}{count}") for count in range(number)]


def full_on_arm64(node: InstalledFiles) -> None:
    node.info(num_rmids="32\n")
    node.write("/sys/fs/resctrl/info/L3/num_closids", "8\n")
    for name in "abc":
        node.files.make(f"oci-{name}", "gold")


def refused(node: InstalledFiles) -> None:
    """An old refusal, or one for another reason, says nothing about now."""
    node.info(max_threshold_occupancy="40960\n")
    now = system.boottime()
    node.files.fail("old", "rmids_in_limbo", boottime=now - 600)
    for name, seconds in (("app", 720), ("db", 60)):
        starttime = int((now - seconds) * procfs.TICKS)
        node.files.fail(name, "rmids_in_limbo", boottime=now - 30, starttime=starttime)


def taken(node: InstalledFiles) -> None:
    node.files.live("web")
    node.files.take()


def owed(node: InstalledFiles) -> None:
    node.files.completed("web", history_file="/a", owed={"lines": ["{}"] * 2, "why": "ENOSPC"})


def full(node: InstalledFiles) -> None:
    node.room = {"f_flag": 0, "f_blocks": 9, "f_files": 9, "f_bavail": 0, "f_favail": 9, "f_frsize": 4096}


def reconciled(**fields: Any) -> Change:  # noqa: ANN401
    return lambda node: node.files.reconciled(**{"ended_at": system.unix_time(), **fields})


def remove(*paths: str) -> Change:
    def change(node: InstalledFiles) -> None:
        for path in paths:
            node.fs.remove_object(path)

    return change


def almost_full(node: InstalledFiles) -> None:
    node.write("/sys/fs/resctrl/info/PERF_PKG_MON/num_rmids", "40\n")
    node.info(num_rmids="40\n")
    groups(37)(node)


def with_old_textfile(node: InstalledFiles) -> None:
    node.write(TEXTFILE, "")
    os.utime(TEXTFILE, (9, 9))


def elsewhere(node: InstalledFiles) -> None:
    node.copy_to_etc()
    remove(PODMAN, KUBERNETES)(node)
    node.write(
        "/etc/containers/containers.conf", f"hooks_dir = ['{ADMINISTRATOR}']\n[containers]\nhooks_dir = ['/x']\n"
    )


def beside(node: InstalledFiles) -> None:
    """Groups of other tools, with a ctrl_group's; one of ours by its prefix is an orphan, and one is on record."""
    for name in (UIDS[0], UIDS[1].replace("-", ""), f"nri-{UIDS[2]}", f"pod_{UIDS[3]}", "pqos-12-0"):
        node.files.make(name)
    node.files.make("mine", "gold")
    node.files.make(f"oci-{UIDS[3]}")
    other = node.files.make(UIDS[3])
    node.files.record("kept", groups=[{"path": other, "ctrl_group": "/"}])


def called(node: InstalledFiles) -> None:
    node.write("/opt/resctrl-mon-hook.sh", "#!/bin/sh\n")
    node.write(OTHER, {**THEIRS, "hook": {"path": "/opt/resctrl-mon-hook.sh"}})


AILMENTS: dict[str, Change] = {
    "FAIL resctrl: no /sys/fs/resctrl": lambda node: shutil.rmtree(node.files.root),
    "FAIL resctrl: is mounted but does not support monitoring": remove("/sys/fs/resctrl/mon_groups"),
    "FAIL resctrl: not mounted on /sys/fs/resctrl": remove(
        "/sys/fs/resctrl/mon_groups", "/sys/fs/resctrl/info", "/sys/fs/resctrl/mon_data"
    ),
    "warning counters: L3_MON; no energy (PERF_PKG_MON)": lambda node: shutil.rmtree(
        node.files.root / "info/PERF_PKG_MON"
    ),
    "warning memory traffic: not counted: the kernel offers llc_occupancy": lambda node: node.info(
        mon_features="llc_occupancy\n"
    ),
    "warning memory traffic: counted in part: this CPU says Unavailable": untracked,
    "warning memory traffic: not counted in 1 group without a hardware counter: /sys/fs/resctrl/mon_groups/oci-db": (
        uncounted
    ),
    "warning memory traffic: mbm_assign_mode is default": counted(mbm_assign_mode="mbm_event\n[default]\n"),
    "warning memory traffic: new groups get no hardware counter": counted(mbm_assign_on_mkdir="0\n"),
    "warning memory traffic: free hardware counters: 2 of 4 (L3 0), 1 of 4 (L3 1); the next group needs 2": counted(
        available_mbm_cntrs="0=2;1=1\n"
    ),
    "FAIL RMIDs: 8 in use of 8 (7 ours, 1 of others): none left": groups(7),
    "warning RMIDs: 38 in use of 40 (37 ours, 1 of others): few left": almost_full,
    "warning RMIDs: 2 groups of other tools: /sys/fs/resctrl/mon_groups/theirs0, /sys/fs/resctrl/mon_groups/theirs1": (
        groups(2, "theirs")
    ),
    "warning RMIDs: 6 groups of other tools (the NRI plugin resctrl-mon, or Kepler: 2; ": beside,
    f"warning program: not ours, which {OTHER} calls: /opt/resctrl-mon-hook.sh is damaged, or no": called,
    "warning program: not ours: /usr/bin/resctrl-mon-hook is damaged, or no program of this project": written(
        "/usr/bin/resctrl-mon-hook", "#!/bin/sh\n"
    ),
    f"warning program: not ours, which {KUBERNETES} calls: /bin/true is damaged": lambda node: node.change(
        KUBERNETES, path="/bin/true"
    ),
    f"warning program: not ours, which {PODMAN} calls: {PROGRAM} is damaged": written(PROGRAM, "#!/bin/sh\n"),
    "FAIL RMIDs: no RMID is free: the freed ones are in limbo; without one: 2 containers for up to 12 min": refused,
    "FAIL program: is what a removal leaves, and does nothing": written(PROGRAM, STUB.decode()),
    f"FAIL program: {PROGRAM} is missing": remove(PROGRAM),
    "FAIL program: is not owned by root, or is writable by others": lambda node: node.fs.chmod(PROGRAM, 0o777),
    f"FAIL program: {PROGRAM} does not run: no such Python": lambda node: setattr(node, "problem", "no such Python"),
    f"FAIL {OTHER}: invalid: CRI-O, Podman and the NRI hook-injector reject it": written(OTHER, "{"),
    f"FAIL hooks.d: no hooks.d file in {SYSTEM} or {ADMINISTRATOR} calls resctrl-mon-hook": remove(PODMAN, KUBERNETES),
    "FAIL hooks.d: several files call the hook": lambda node: node.write(
        f"{ADMINISTRATOR}/50-mine.json", node.make_json("podman")
    ),
    f"warning {PODMAN}: no timeout: a stuck hook blocks forever": own(timeout=None),
    f"warning {PODMAN}: timeout 18 is too short: containers fail to start, for the hook may wait 18.5 s": own(
        timeout=18
    ),
    f"warning {PODMAN}: the hook may wait 77.0 s": own(args=["x", "hook", "--rmid-wait=60"]),
    f"warning {PODMAN}: a stage is missing": own(stages=["poststop"]),
    f"warning {PODMAN}: it has no condition: no container gets the hook": own(when=None),
    f"warning {PODMAN}: no env": own(env=[]),
    f"warning {PODMAN}: --strict": own(args=["x", "hook", "--strict"]),
    f"warning {PODMAN}: its args: unknown option '--lingr'": own(args=["x", "hook", "--lingr=5"]),
    f"warning {PODMAN}: its program /nowhere/resctrl-mon-hook.pyz is missing": own(
        path="/nowhere/resctrl-mon-hook.pyz"
    ),
    "warning runtimes: found none of crio, ": remove("/usr/bin/crio", "/usr/bin/podman"),
    "FAIL Podman: reads /elsewhere, and not /usr/share": written(
        "/etc/containers/containers.conf", "[engine]\nhooks_dir = ['/elsewhere']\n"
    ),
    f"FAIL Podman: reads {SYSTEM}, and not {ADMINISTRATOR}, where our file is": elsewhere,
    f"FAIL CRI-O: reads {SYSTEM}, and not {ADMINISTRATOR}, where our file is": InstalledFiles.copy_to_etc,
    "warning Podman: unclear which hooks directories it reads: /etc/containers/containers.conf: not TOML": written(
        "/etc/containers/containers.conf", "[engine"
    ),
    "FAIL CRI-O: reads /else/where, and not": written(
        "/etc/crio/crio.conf.d/50-x.conf", "[crio.runtime]\nhooks_dir = [\n  '/else/where/',\n]\n"
    ),
    "FAIL containerd: its base_runtime_spec is in a table that containerd ignores": lambda node: node.use_containerd(
        f"version = 3\n{OLD_TABLE}{SPEC}", PROGRAM
    ),
    "FAIL containerd: NRI's default_validator has reject_oci_hook_adjustment": lambda node: node.use_containerd(
        VALIDATOR
    ),
    "warning containerd: cannot read /etc/containerd/no.toml of containerd's": lambda node: node.use_containerd(
        "imports = ['no.toml']\n"
    ),
    "FAIL records: the file system of /run/resctrl-mon-hook is full": full,
    "warning failures: at least 3 failures since boot could not be recorded": lambda node: node.files.write(
        "runs", "unrecorded", "..."
    ),
    "warning history: 2 lines wait to be written to /a: ENOSPC": owed,
    "warning history: at least 1 line dropped since boot": lambda node: node.files.write("runs", "dropped_lines", "."),
    "warning groups/x.json: Expecting": lambda node: node.files.write("groups", "x.json", "{"),
    "warning taken: 1 container in groups of other tools: web in /sys/fs/resctrl/mon_groups/theirs": taken,
    "warning failures: 1 container: task_gone: web": lambda node: node.files.fail("web", "task_gone"),
    "FAIL unhooked: 1 running container never got the hook": lambda node: node.files.unhooked("web"),
    "warning unhooked: could not check 2 containers without a record": lambda node: node.files.unhooked(unchecked=2),
    "warning reconcile: it has not run since boot": remove("/run/resctrl-mon-hook/reconcile.json"),
    "warning reconcile: it has started since boot, but not ended": reconciled(started_at=9.0, ended_at=None),
    "warning reconcile: it last ended 301 s ago": lambda node: node.files.reconciled(ended_at=system.unix_time() - 301),
    "warning reconcile: 2 of its actions failed": reconciled(failed=2),
    "warning reconcile: it could not read 2 of the keys, cgroups and processes": reconciled(unread=2),
    "warning watch: it last wrote its record 1000 s ago": lambda node: node.files.watched(
        alive_at=system.unix_time() - 1000
    ),
    f"warning textfile: {TEXTFILE} is ": with_old_textfile,
}


@pytest.mark.parametrize("expected", AILMENTS)
def test_what_is_wrong_is_found(installed: InstalledFiles, expected: str) -> None:
    AILMENTS[expected](installed)
    head, text = expected.split(": ", 1)
    level, subject = head.split(" ", 1)
    found = installed.problems()
    assert any(one.level == level and one.subject.endswith(subject) and text in one.found for one in found), found
    assert all(one.remedy and "{" not in one.found + one.subject + one.remedy.replace("{}", "") for one in found)


def use_spec(node: InstalledFiles) -> None:
    node.use_containerd(SPEC, PROGRAM)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda _node: None, "ok       Podman: reads /usr/share/containers/oci/hooks.d"),
        (use_spec, "ok       containerd: /etc/x.json names the hook"),
        (InstalledFiles.use_containerd, "ok       runtimes: containerd, podman"),
        (
            lambda node: node.copy_to_etc(names_etc=True),
            f"ok       {ADMINISTRATOR}: 2 files; read by OpenShift's CRI-O",
        ),
        (counted(), "ok       memory traffic: free hardware counters: 2 of 4 (L3 0), 2 of 4 (L3 1)"),
        (counted(mbm_assign_mode="[mbm_cntr_assign]\ndefault\n"), "ok       memory traffic: free hardware counters"),
        (
            lambda node: node.info(mon_features="llc_occupancy\nmbm_total_bytes\n"),
            "ok       counters: L3_MON, PERF_PKG_MON",
        ),
        (remove("/run/resctrl-mon-hook"), "ok       records: no /run/resctrl-mon-hook"),
        (lambda node: node.files.unhooked(), "ok       reconcile: it last ended 60 s ago, after 0.5 s"),
    ],
)
def test_all_is_well(installed: InstalledFiles, change: Change, shown: str) -> None:
    change(installed)
    assert installed.problems() == []
    assert any(line.startswith(shown) for line in format_findings(installed.doctor(), Screen()))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("change", ["user", "user namespace", "pid namespace"])
def test_doctor_elsewhere_than_on_the_host_as_root_is_a_failure(
    installed: InstalledFiles, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "user":
        monkeypatch.setattr(system, "user_id", lambda: 1000)
    elif change == "user namespace":
        monkeypatch.setattr(procfs, "in_user_namespace", lambda: True)
    else:
        monkeypatch.setattr(procfs, "in_host_pid_namespace", lambda: False)
    assert [(found.level, found.subject) for found in installed.problems()] == [("FAIL", "root")]


def test_a_full_ctrl_group_on_arm64_is_named_though_another_one_has_rmids(
    installed: InstalledFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "node", "7.3", "#1", "aarch64")))
    full_on_arm64(installed)
    (found,) = installed.problems()
    assert found.found.startswith("no RMID is left in ctrl_group gold: each has 4 (MPAM: the PMGs of its PARTID)")


def test_the_longest_wait_is_the_sum_of_the_waits_of_a_hook() -> None:
    options = Options(lock_timeout=2.0, rmid_wait=3.0)
    assert compute_longest_wait(options) == entry.STDIN_PATIENCE + 2 * 2.0 + reclaim.LONGEST_SEARCH + 3.0


ENV = 'add "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] to its hook'
BY_CHART = (
    "kubectl delete the chart's pod on this node: the next one writes its files again; change options by helm upgrade"
)
COPY = f"{ADMINISTRATOR}/{os.path.basename(PODMAN)}"


@pytest.mark.parametrize(
    ("owner", "path", "remedy"),
    [
        ("", PODMAN, f"edit {PODMAN}: {ENV}"),
        ("deb", PODMAN, "apt install --reinstall resctrl-mon-hook"),
        ("rpm", PODMAN, "dnf reinstall resctrl-mon-hook"),
        ("chart", PODMAN, BY_CHART),
        ("deb", COPY, f"edit {COPY}: {ENV}"),
        ("chart", COPY, f"edit {COPY}: {ENV}"),
    ],
)
def test_remedy_of_a_hooks_d_file_is_its_owners_and_a_copy_is_edited(
    installed: InstalledFiles, owner: str, path: str, remedy: str
) -> None:
    if owner:
        installed.write(Places().owner, f"{owner}\n")
    if path == COPY:
        installed.copy_to_etc(names_etc=True)
    installed.change(path, env=[])
    (found,) = installed.problems()
    assert (found.subject, found.remedy) == (path, remedy)


def test_a_check_that_fails_is_a_finding_and_the_same_error_is_reported_once(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_site: Site) -> Iterator[Finding]:
        yield Finding("ok", "a", "well")
        raise PermissionError(13, "Permission denied", "/x")

    monkeypatch.setattr(checks, "CHECKS", [("a", find)] * 2)
    found = [*examine(Site(Places(), node.options))]
    problem = "cannot check: a file could not be read; tried: Permission denied '/x': EACCES"
    failed = Finding("FAIL", "a", problem, "run doctor as root")
    assert found == [Finding("ok", "a", "well"), failed, Finding("ok", "a", "well")]


def test_a_run_directory_that_others_may_write_to_is_one_failure_with_its_own_remedy(installed: InstalledFiles) -> None:
    installed.fs.chmod("/run/resctrl-mon-hook", 0o777)
    (found,) = installed.problems()
    found_mode = "its owner is uid 0, its mode 0777"
    problem = f"cannot check: the run directory /run/resctrl-mon-hook is not ours alone: {found_mode}"
    assert (found.subject, found.found) == ("records", problem)
    assert found.remedy == "run it as root; remove the directory, or make it root's with mode 0755"


FINDINGS = [
    Finding("warning", "b", "odd", "look"),
    Finding("ok", "a", "well"),
    Finding("FAIL", "c", "bad", "fix it"),
]
LINES = """\
ok       a: well
1 failure, 1 warning, 1 ok
FAIL     c: bad
           fix it
warning  b: odd
           look
""".splitlines()


def test_findings_end_with_what_is_wrong_worst_first_after_a_count() -> None:
    assert format_findings(FINDINGS, Screen()) == LINES
    assert format_findings([], Screen()) == ["0 failures, 0 warnings, 0 ok"]
    assert format_findings(FINDINGS * 2, Screen())[2] == "2 failures, 2 warnings, 2 ok"


def test_lines_are_wrapped_with_an_indent_and_long_words_stay_whole() -> None:
    path = "/usr/share/containers/oci/hooks.d"
    found = [Finding("FAIL", path, "no file calls it: use\n--hooks-dir=DIR", f"see {path} and install it again")]
    assert format_findings(found, Screen(40))[1:] == [
        f"FAIL     {path}:",
        "         no file calls it:",
        "         use\\n--hooks-dir=DIR",
        "           see",
        f"           {path}",
        "           and install it again",
    ]


def test_findings_are_objects_in_the_order_of_the_checks() -> None:
    assert to_objects(FINDINGS)[1:] == [
        {"level": "ok", "subject": "a", "found": "well", "remedy": None},
        {"level": "fail", "subject": "c", "found": "bad", "remedy": "fix it"},
    ]


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("5f3c9d0b" * 8, "the OCI runtime (enableMonitoring)"),
        (f"pod{UIDS[0]}", "kubelet (katalyst)"),
        ("crio-5f3c", "CRI-O"),
        ("cadvisor-kubepods-x", "cAdvisor"),
        ("cri-resmgr.a", "CRI Resource Manager"),
        (f"{UIDS[0]}-x", "unknown"),
        ("5f3c9d0b" * 7, "unknown"),
    ],
)
def test_a_group_is_known_by_the_names_that_its_tool_gives(name: str, tool: str) -> None:
    assert checks.name_tool(name) == tool


# --- doctor --report


def test_a_report_has_what_the_kernel_shows(installed: InstalledFiles) -> None:
    installed.write("/proc/cpuinfo", "model\t: 173\nflags\t: fpu cqm rdt_a abmc mbar\n\nmodel\t: 9\n")
    installed.write("/proc/cmdline", "root=/dev/vda1 rdt=energy,!mba\n")
    installed.write("/proc/mounts", "a / ext4 rw 0 0\nresctrl /sys/fs/resctrl resctrl rw,debug 0 0\n")
    installed.files.count_whole({"mon_PERF_PKG_00/core_energy": "5.5"})
    installed.info(**{"event_configs/mbm_total_bytes/event_filter": "local_reads", "mon_features": "llc_occupancy\n"})
    installed.files.live(UIDS[0])
    installed.files.make(UIDS[1], counters={"mon_PERF_PKG_00/core_energy": "Unavailable"})
    installed.files.fail("app")
    found = installed.report()
    assert found["cpu"]["flags"] == ["cqm", "rdt_a", "abmc", "mbar"]
    assert (found["cpu"]["model"], found["boot"], found["mounts"]) == ("173", ["rdt=energy,!mba"], ["rw,debug"])
    assert found["mon_data"] == {"mon_data/mon_PERF_PKG_00/core_energy": "5.5"}
    assert found["info"]["info/PERF_PKG_MON/num_rmids"] == "8"
    assert found["info"]["info/L3_MON/event_configs/mbm_total_bytes/event_filter"] == "local_reads"
    assert found["groups"]["mon_groups"] == {"ours": 1, "the NRI plugin resctrl-mon, or Kepler": 1}
    energy = {name: count for name, count in found["groups"]["counters"].items() if "core_energy" in name}
    assert energy == {
        "mon_PERF_PKG_00/core_energy: a number": 1,
        "mon_PERF_PKG_00/core_energy: Unavailable": 1,
    }
    assert (found["groups"]["rmids"], found["groups"]["unmonitored"]) == (8, {"no_rmids": 1})
    assert found["program"]["called"] == ["pyz"]
    assert {"level": "ok", "check": "counters", "found": "L3_MON, PERF_PKG_MON"} in found["findings"]
    assert {"level": "warning", "check": "failures"} in found["findings"]


@pytest.mark.parametrize("text", ["#!/bin/true\n", "#!/bin/sh\n", None])
def test_a_report_of_a_node_without_our_program_says_so(installed: InstalledFiles, text: str | None) -> None:
    if text is None:
        installed.fs.remove(PROGRAM)
    else:
        installed.write(PROGRAM, text)
    shutil.rmtree(installed.files.root)
    found = installed.report()
    assert found["program"]["called"] == ["not ours"]
    assert (found["info"], found["mon_data"], found["groups"]["ctrl_groups"]) == ({}, {}, 0)


def name_all(node: InstalledFiles) -> None:
    """Put the names of pods and of Podman's containers where a node has them."""
    for name in (UIDS[0], f"nri-{UIDS[1]}", "cadvisor-secret-c", "secret-d", "crio-secret-e"):
        node.files.make(name)
    node.files.make(f"oci-{UIDS[2]}", "secret-class")
    taken(node)
    node.files.live("secret-key", name="secret-name", pod_name="secret-pod", pod_namespace="secret-ns")
    node.files.fail("secret-failed", namespace="secret-ns", pod="secret-pod", name="secret-name")
    node.files.unhooked("secret-unhooked")
    node.files.write("groups", f"{UIDS[3]}.json", "{")
    node.info(last_cmd_status="mkdir secret-group\n")
    node.write("/sys/fs/resctrl/info/last_cmd_status", "mkdir secret-group\n")
    node.write(f"{SYSTEM}/secret.json", "{")


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_report_has_no_name_of_a_pod_container_or_group(installed: InstalledFiles, mode: int) -> None:
    """Also if each check of the records fails, with a message of its own."""
    name_all(installed)
    installed.fs.chmod("/run/resctrl-mon-hook", mode)
    unmade = Finding("FAIL", "reconcile", "cannot check: groups/secret.json")
    shown = json.dumps(
        [installed.report(), make_report(Site(Places(), installed.files.options), [(unmade.subject, unmade)])]
    )
    assert [name for name in ("secret", "web", "shop", *(uid[:8] for uid in UIDS)) if name in shown] == []
