# SPDX-License-Identifier: Apache-2.0
"""doctor on a machine where all is well, and on the same with one thing wrong with it at a time."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

import pytest

from hook.node.paths import STUB
from pyz import archive
from tests.resctrlfs import Mounted, mounted
from tests.support import machine
from tests.support.hook import PYZ, UID, Hook, created, task
from tests.support.machine import CONF, HOOKS_DIR, LINK, NOBODY, OWNER, PROGRAM, UNITS, ScratchMachine

KUBERNETES, PODMAN = (f"{HOOKS_DIR}/10-resctrl-mon-hook-{name}.json" for name in ("kubernetes", "podman"))
# What this machine has, or has not, is no matter of these tests.
ASIDE = ("syslog", "containers", "lost", "root", "other resctrl tools", "/proc")
OTHER = f"{HOOKS_DIR}/50-x.json"
OLD_TABLE = "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n"
VALIDATOR = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\n  enable = true\n  "
ETC = "/etc/containers/oci/hooks.d"
THEIRS: dict[str, Any] = {
    "version": "1.0.0",
    "hook": {"path": "/bin/true"},
    "when": {"always": True},
    "stages": ["poststop"],
}


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

    def change(self, path: str, change: Callable[[Any], object]) -> None:
        content = json.loads(self.path(path).read_text())
        change(content)
        self.write(path, content)

    def doctor(self, *words: str, before: Sequence[str] = ()) -> tuple[int, list[dict[str, str]]]:
        """Its exit status, and what it found that is not well. `before`: what it is started by."""
        done = self.machine.run("doctor", "--json", *self.options, *words, before=before)
        assert done.stderr == ""
        answer = json.loads(done.stdout)
        assert answer["well"] is (done.returncode == 0)
        found = [it for it in answer["findings"] if it["level"] != "ok" and it["subject"] not in ASIDE]
        assert all(it["remedy"] for it in found)
        return done.returncode, found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InstalledNode]:
    if reason := machine.missing_with_model():
        pytest.skip(reason)
    with mounted(tmp_path) as resctrl:
        yield InstalledNode(tmp_path, resctrl)


def test_a_program_that_runs_from_sources_is_reported_until_the_node_has_compiled_it(
    node: InstalledNode, tmp_path: Path
) -> None:
    shutil.copy(archive.build(output=tmp_path / "bare.pyz"), node.path(PROGRAM))
    (finding,) = node.doctor()[1]
    assert finding["level"] == "warning"
    assert "so each hook runs from sources" in finding["found"]
    assert finding["remedy"] == f"{PROGRAM} bytecode"
    node.machine.run(*finding["remedy"].split())
    assert node.doctor() == (0, [])
    (made,) = node.path(PROGRAM).parent.glob("*.cpython-*")
    made.chmod(0o666)
    assert "runs from sources" in node.doctor()[1][0]["found"]


def test_an_annotation_that_containerd_passes_on_is_well(node: InstalledNode) -> None:
    opting_in(node)
    passed = "pod_annotations = [\n  'monitor.resctrl-mon.io', # of the pod\n  'monitor.resctrl-mon.io/*',\n]\n"
    node.write("/etc/containerd/config.toml", f"base_runtime_spec = '/etc/x.json'\n{passed}")
    findings = node.doctor()[1]
    assert [it for it in findings if it["subject"] == "containerd"] == []
    node.write("/etc/containerd/config.toml", "base_runtime_spec = '/etc/x.json'\npod_annotations = ['*']\n")
    (finding,) = [it for it in node.doctor()[1] if it["subject"] == "containerd"]
    assert "does not pass on monitor.resctrl-mon.io/CONTAINER:" in finding["found"], "`*` stops at a slash"


@pytest.mark.parametrize("form", [[], ["-o", "wide"]])
def test_a_terminal_of_80x24_ends_with_what_is_wrong_in_lines_that_fit(node: InstalledNode, form: list[str]) -> None:
    node.path(LINK).unlink()
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
    remedy = f"ln -s {os.path.relpath(PROGRAM, os.path.dirname(LINK))} {LINK}"
    assert remedy in " ".join(line.strip() for line in lines[count:])


def remove(path: str) -> Callable[[InstalledNode], object]:
    return lambda node: node.path(path).unlink()


def changed(path: str, change: Callable[[Any], object]) -> Callable[[InstalledNode], object]:
    return lambda node: node.change(path, change)


def hooks_with_other_options_alone(node: InstalledNode) -> None:
    """As the files of a package are, and those of hooks.d changed."""
    node.path(CONF).unlink()
    for path in (PODMAN, KUBERNETES):
        node.change(path, lambda it: it["hook"]["args"].append("--snapshot-ttl=7"))


def written(path: str, text: object) -> Callable[[InstalledNode], object]:
    return lambda node: node.write(path, text)


def copied_to_etc(node: InstalledNode) -> None:
    shutil.copytree(node.path(HOOKS_DIR), node.path(ETC))


def twice_under_other_names(node: InstalledNode) -> None:
    node.write(f"{ETC}/50-mine.json", node.path(PODMAN).read_text())


def with_another_python(node: InstalledNode) -> None:
    node.path(PROGRAM).write_bytes(PYZ.read_bytes().replace(b"#!/usr/bin/python3", b"#!/usr/bin/python9", 1))


def hook_field(**fields: object) -> Callable[[InstalledNode], object]:
    return changed(PODMAN, lambda content: content["hook"].update(fields))


def systemctl(text: str) -> Callable[[InstalledNode], object]:
    return lambda node: node.program("/usr/local/sbin/systemctl", text)


def containerd(*hooks: str, config: str = "base_runtime_spec = '/etc/x.json'\n") -> Callable[[InstalledNode], object]:
    """In place of CRI-O, with a specification that has these hooks."""

    def change(node: InstalledNode) -> None:
        node.path("/usr/local/sbin/crio").unlink()
        node.program("/usr/local/sbin/containerd", "")
        node.write("/etc/containerd/config.toml", config)
        node.write("/etc/x.json", {"hooks": {"poststop": [{"path": path} for path in hooks]}})

    return change


def opting_in(node: InstalledNode) -> None:
    containerd(PROGRAM)(node)
    for path in (PODMAN, KUBERNETES):
        node.change(path, lambda it: it["hook"]["args"].append("--monitor=opt-in"))
    node.write(CONF, "OPTIONS=--linger=600 --monitor=opt-in\n")


def group(name: str) -> Callable[[InstalledNode], object]:
    return lambda node: (node.resctrl.root / "mon_groups" / name).mkdir()


def without_ours(node: InstalledNode) -> None:
    for path in (KUBERNETES, PODMAN):
        node.path(path).unlink()


def torn_record(node: InstalledNode) -> None:
    node.hook(created("web", 1 << 22 | 7))
    (node.run_dir / "groups/x.json").write_text("{")


def moved_to_where_podman_is_thought_to_read(node: InstalledNode) -> None:
    copied_to_etc(node)
    without_ours(node)
    node.write("/etc/containers/containers.conf", f'hooks_dir = ["{ETC}"]\n[containers]\nhooks_dir = ["{ETC}"]\n')


def without_systemd_and_with_a_typo(node: InstalledNode) -> None:
    node.path("/run/systemd/system").rmdir()
    node.write(CONF, node.path(CONF).read_text().replace("--linger", "--lingr"))


def copied_with_other_options(node: InstalledNode) -> None:
    copied_to_etc(node)
    node.change(f"{ETC}/{os.path.basename(PODMAN)}", lambda it: it["hook"]["args"].append("--key=sandbox"))
    for conf, table in (("containers/containers.conf", "engine"), ("crio/crio.conf", "crio.runtime")):
        node.write(f"/etc/{conf}", f'[{table}]\nhooks_dir = ["{HOOKS_DIR}", "{ETC}"]\n')


def installed_by_machine_config(node: InstalledNode) -> None:
    """It has no link."""
    node.write(OWNER, "machineconfig\n")
    node.path(LINK).unlink()


@pytest.mark.parametrize(
    "change",
    [lambda _node: None, containerd(PROGRAM), copied_with_other_options, installed_by_machine_config],
    ids=["installed", "the hook in a base_runtime_spec", "a copy with other options", "a MachineConfig"],
)
def test_all_is_well(node: InstalledNode, change: Callable[[InstalledNode], object]) -> None:
    change(node)
    assert node.doctor() == (0, [])


AILMENTS: dict[str, Callable[[InstalledNode], object]] = {
    f"fail program: {PROGRAM} is missing": remove(PROGRAM),
    "fail program: is what a removal leaves, and does nothing": written(PROGRAM, STUB.decode()),
    "fail program: is not a .pyz": lambda node: node.program(PROGRAM, ""),
    "fail program: is not owned by root, or is writable by others": lambda node: node.path(PROGRAM).chmod(0o777),
    "fail program: does not run": lambda node: node.path(PROGRAM).chmod(0o644),
    "fail Python: cannot run /usr/bin/python9 as Python": with_another_python,
    "warning program: is not a link to the installed program": remove(LINK),
    "fail hooks.d: calls resctrl-mon-hook": without_ours,
    f"fail {OTHER}: invalid: CRI-O, Podman and the NRI hook-injector reject it": written(OTHER, "{"),
    f"fail {OTHER}: reject it: '(' is not a valid regular expression": written(
        OTHER, {**THEIRS, "when": {"commands": ["("]}}
    ),
    f"warning {OTHER}: is missing, so readers skip the file": written(OTHER, {**THEIRS, "hook": {"path": "/nowhere"}}),
    f"warning {HOOKS_DIR}/05-x.json: its poststop runs before ours": written(f"{HOOKS_DIR}/05-x.json", THEIRS),
    "fail hooks.d: several files call the hook": twice_under_other_names,
    f"warning hooks.d: Podman reads {HOOKS_DIR}, not {ETC}: it uses {PODMAN}": copied_to_etc,
    f"warning hooks.d: CRI-O reads {HOOKS_DIR}, not {ETC}: it uses {KUBERNETES}": copied_to_etc,
    f"warning {PODMAN}: timeout None": changed(PODMAN, lambda it: it["hook"].pop("timeout")),
    f"warning {PODMAN}: timeout 2": hook_field(timeout=2),
    f"warning {PODMAN}: it has no condition: no container gets the hook": changed(PODMAN, lambda it: it.pop("when")),
    f"warning {PODMAN}: no env": hook_field(env=[]),
    f"warning {PODMAN}: unknown option '--lingr'": hook_field(args=["x", "hook", "--lingr=5"]),
    f"warning {PODMAN}: does not start": hook_field(args=["x", "hook", "--strict"]),
    f"warning {PODMAN}: differs from doctor's": hook_field(args=["x", "hook"]),
    f"warning {PODMAN}: a stage is missing": changed(PODMAN, lambda it: it.update(stages=["poststop"])),
    "fail Podman: reads /elsewhere": written(
        "/etc/containers/containers.conf", '[engine]\nhooks_dir = ["/elsewhere"]\n'
    ),
    f"fail Podman: reads {HOOKS_DIR}, which has none of our files": moved_to_where_podman_is_thought_to_read,
    "warning Podman: unclear which hooks directories it reads: /etc/containers/containers.conf: not TOML": written(
        "/etc/containers/containers.conf", "[engine"
    ),
    "fail CRI-O: reads /else/where,": written(
        "/etc/crio/crio.conf.d/50-x.conf", "[crio.runtime]\nhooks_dir = [\n  '/else/where/',\n]\n"
    ),
    "warning CRI-O: rdt_config_file is /etc/rdt.yaml": written(
        "/etc/crio/crio.conf", '[crio.runtime]\nrdt_config_file = "/etc/rdt.yaml"\n'
    ),
    "warning containerd: no NRI hook-injector runs on the host, and no base_runtime_spec names the hook": containerd(),
    "fail containerd: its base_runtime_spec is in a table that containerd ignores": containerd(
        PROGRAM, config=f"version = 3\n{OLD_TABLE}base_runtime_spec = '/etc/x.json'\n"
    ),
    "fail containerd: NRI's default_validator has reject_oci_hook_adjustment = true": containerd(
        config=f"{VALIDATOR}reject_oci_hook_adjustment = true\n"
    ),
    "warning containerd: cannot read /etc/containerd/nothing.toml of containerd's configuration: ENOENT": containerd(
        PROGRAM, config="imports = ['nothing.toml']\n"
    ),
    "warning containerd: not pass on monitor.resctrl-mon.io, monitor.resctrl-mon.io/CONTAINER": opting_in,
    "warning timer: is not active (exit status 3: inactive)": systemctl(
        "[ $1 != is-active ] && exit 1; echo inactive >&2; exit 3"
    ),
    "warning timer: reconcile.service failed": systemctl("exit 0"),
    "warning timer: systemd is not running": lambda node: node.path("/run/systemd/system").rmdir(),
    f"warning timer: the options in {CONF}: unknown option '--lingr'": without_systemd_and_with_a_typo,
    "warning timer: differ from those of the hook": written(CONF, "OPTIONS=--linger=1\n"),
    f"warning timer: the options in {UNITS}.service differ from those of the hook": hooks_with_other_options_alone,
    "warning groups/x.json: Expecting": torn_record,
    "warning RMIDs: 1 group of other tools: ": group("theirs"),
    "warning RMIDs: 1 group of pods (nri-resctrl-mon": group(UID),
    "warning RMIDs: 1 group of containers (linux.intelRdt.enableMonitoring": group("a1" * 32),
    "warning RMIDs: orphaned groups (no live container)": group("oci-x"),
}


@pytest.mark.parametrize("expected", AILMENTS)
def test_what_is_wrong_is_found(node: InstalledNode, expected: str) -> None:
    AILMENTS[expected](node)
    status, found = node.doctor()
    head, text = expected.split(": ", 1)
    level, subject = head.split(" ", 1)
    assert any(it["level"] == level and it["subject"].endswith(subject) and text in it["found"] for it in found), found
    assert status == int(any(it["level"] == "fail" for it in found))


@pytest.mark.parametrize(("rmids", "level"), [(4, "fail"), (40, "warning")])
def test_a_machine_without_rmids_or_counters_of_traffic(
    tmp_path: Path, node: InstalledNode, rmids: int, level: str
) -> None:
    """What is said of other hardware: unit/test_hardware.py."""
    (tmp_path / "small").mkdir()
    with mounted(tmp_path / "small", rmids=rmids, mbm_total=False, mbm_local=False) as resctrl:
        for number in range(rmids - (1 if level == "fail" else 3)):
            (resctrl.root / f"mon_groups/oci-{number}").mkdir()
        _, found = node.doctor(f"--resctrl-root={resctrl.root}")
    assert [it["level"] for it in found if it["subject"] == "memory traffic"] == ["warning"]
    assert [it["found"].partition(" in use")[2] for it in found if it["subject"] == "RMIDs" and it["level"] == level]


def test_failures_are_counted_by_their_reasons(node: InstalledNode) -> None:
    node.hook(created("web", 1 << 22 | 7))
    _, found = node.doctor()
    assert [it["found"] for it in found] == ["1 container: task_gone: web"]


def test_a_run_directory_that_others_may_write_to_has_its_own_remedy(node: InstalledNode) -> None:
    """Not that of whatever cannot be looked at, which is to be root."""
    node.run_dir.mkdir()
    node.run_dir.chmod(0o777)
    _, found = node.doctor()
    (records,) = (it for it in found if it["subject"] == "records")
    assert (
        records["found"]
        == f"cannot check: the run directory {node.run_dir} is not owned by root, or is writable by others"
    )
    assert records["remedy"] == "remove it, or make it root's with mode 0755 (it is uid 0's, mode 0777)"


def test_resctrl_is_not_mounted(node: InstalledNode, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    _, found = node.doctor(f"--resctrl-root={tmp_path}/empty")
    assert next(it["remedy"] for it in found if it["subject"] == "resctrl").startswith("mount -t resctrl resctrl ")
    _, found = node.doctor(f"--resctrl-root={tmp_path}/nothing")
    assert next(it["found"] for it in found if it["subject"] == "resctrl").endswith("does not support resctrl")
    (tmp_path / "empty/info").mkdir()
    _, found = node.doctor(f"--resctrl-root={tmp_path}/empty")
    assert "does not support monitoring" in next(it["found"] for it in found if it["subject"] == "resctrl")


@pytest.mark.parametrize("name", ["kepler", "nri-resctrl-mon", "10-resctrl-mon"])
def test_other_resctrl_tools_of_the_host_are_found(node: InstalledNode, name: str) -> None:
    before = machine.beside(f"/usr/bin/{name}", "--verbose")
    findings = json.loads(node.machine.run("doctor", "--json", *node.options, before=before).stdout)["findings"]
    (found,) = [it for it in findings if it["subject"] == "other resctrl tools"]
    assert found["remedy"]
    assert name.endswith(found["found"].split()[0])


def test_it_changes_nothing(node: InstalledNode) -> None:
    before = node.machine.written()
    (node.resctrl.root / "mon_groups/oci-x").mkdir()
    node.doctor()
    assert node.machine.written() == before
    assert not node.run_dir.exists()
    assert node.hook.groups() == {"oci-x"}


def test_doctor_runs_without_root(node: InstalledNode) -> None:
    """Then most cannot be seen, which is a finding."""
    done = node.machine.run(node.machine.public(), "doctor", *node.options, before=NOBODY)
    assert done.returncode == 1
    assert "FAIL     root: not running as root" in done.stdout


def test_an_installation_elsewhere_is_found_by_the_files_that_call_it(node: InstalledNode) -> None:
    words = ["--prefix=/usr/opt/x", f"--hooks-dir={HOOKS_DIR}"]
    assert node.machine.run("uninstall", *node.options).returncode == 0
    assert node.machine.run("install", "--for=both", *words, *node.options).returncode == 0
    status, found = node.doctor()
    assert (status, [it["found"] for it in found]) == (0, [f"{LINK} is not a link to the installed program"])
    assert node.doctor(words[0]) == (0, [])


# --- The hook-injector


def test_an_injector_of_the_host_is_well(node: InstalledNode) -> None:
    containerd()(node)
    before = machine.beside("/opt/nri/plugins/10-hook-injector", "-idx", "10")
    assert node.doctor(before=before)[1] == []


def test_an_injector_that_is_not_the_hosts_is_not_believed(node: InstalledNode) -> None:
    containerd()(node)
    before = machine.beside("/opt/nri/plugins/10-hook-injector", mounts="mount -t tmpfs x /mnt;")
    found = node.doctor(before=before)[1]
    assert [it["found"] for it in found] == [
        "no NRI hook-injector runs on the host, and no base_runtime_spec names the hook"
    ]


# --- By what means it was installed


BY_CHART = (
    "kubectl delete the chart's pod on this node: the next one writes its files again; change options by helm upgrade"
)


def installed_by_chart(node: InstalledNode) -> None:
    """What the chart has on a node: the program, the JSON for pods, and the owner's file."""
    for path in (LINK, PODMAN, CONF, f"{UNITS}.service", f"{UNITS}.timer"):
        node.path(path).unlink()
    node.write(OWNER, "chart\n")


def test_a_node_of_the_chart_needs_neither_link_nor_timer(node: InstalledNode) -> None:
    installed_by_chart(node)
    assert node.doctor() == (0, [])
    assert "installed by: the Helm chart" in node.machine.run("doctor", *node.options).stdout
    node.path(PROGRAM).unlink()
    remedies = [it["remedy"] for it in node.doctor()[1]]
    assert not [it for it in remedies if "resctrl-mon-hook.pyz install" in it]
    assert BY_CHART in remedies


def test_remedy_on_a_packaged_node_is_to_reinstall_the_package(node: InstalledNode) -> None:
    node.write(OWNER, "deb\n")
    assert node.doctor() == (0, [])
    node.path(LINK).unlink()
    (found,) = node.doctor()[1]
    assert found["remedy"] == "apt install --reinstall resctrl-mon-hook; if installed elsewhere: doctor --prefix=DIR"


ENV = 'add "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] to its hook'


def no_env(path: str) -> Callable[[InstalledNode], object]:
    return changed(path, lambda it: it["hook"].pop("env"))


def no_env_in_copy(node: InstalledNode) -> None:
    copied_to_etc(node)
    node.write("/etc/containers/containers.conf", f'[engine]\nhooks_dir = ["{HOOKS_DIR}", "{ETC}"]\n')
    node.write("/etc/crio/crio.conf", f'[crio.runtime]\nhooks_dir = ["{HOOKS_DIR}", "{ETC}"]\n')
    no_env(f"{ETC}/{os.path.basename(PODMAN)}")(node)


@pytest.mark.parametrize(
    ("owner", "change", "path", "remedy"),
    [
        ("", no_env(PODMAN), PODMAN, f"edit {PODMAN}: {ENV}"),
        ("deb", no_env(PODMAN), PODMAN, "apt install --reinstall resctrl-mon-hook"),
        ("rpm", no_env(PODMAN), PODMAN, "dnf reinstall resctrl-mon-hook"),
        ("chart", no_env(KUBERNETES), KUBERNETES, BY_CHART),
        ("deb", no_env_in_copy, f"{ETC}/{os.path.basename(PODMAN)}", f"edit {ETC}/{os.path.basename(PODMAN)}: {ENV}"),
        ("chart", no_env_in_copy, f"{ETC}/{os.path.basename(PODMAN)}", f"edit {ETC}/{os.path.basename(PODMAN)}: {ENV}"),
    ],
)
def test_remedy_of_a_hooks_d_file_is_its_owners_and_a_copy_is_edited(
    node: InstalledNode, owner: str, change: Callable[[InstalledNode], object], path: str, remedy: str
) -> None:
    if owner:
        node.write(OWNER, f"{owner}\n")
    change(node)
    (found,) = [it for it in node.doctor()[1] if it["found"].startswith("no env")]
    assert (found["subject"], found["remedy"]) == (path, remedy)


def test_options_of_the_timer_are_set_in_the_file_that_its_unit_reads(node: InstalledNode) -> None:
    """A copy of the unit in /etc takes the place of the packaged one. The options of that were compared."""
    node.write(OWNER, "deb\n")
    node.write(CONF, "OPTIONS=--linger=1 --adopt\n")
    hooked = json.loads(node.path(KUBERNETES).read_text())["hook"]["args"][2:]
    history = "--history=/var/log/resctrl-mon-hook/history.jsonl"  # of the other file, which is Podman's
    line = " ".join(["OPTIONS=" + " ".join(it for it in hooked if "--containers" not in it), history, "--adopt"])
    (found,) = node.doctor()[1]
    assert found["remedy"] == f"set {line} in {CONF}"
    node.write(CONF, line)
    assert node.doctor() == (0, [])
    node.write(CONF, line.replace(history, ""))
    assert [it["remedy"] for it in node.doctor()[1]] == [f"set {line} in {CONF}"]
    copy = f"/etc/systemd/system/{os.path.basename(UNITS)}.service"
    node.path(CONF).unlink()
    node.write(copy, "[Service]\nEnvironment=OPTIONS=--linger=2\n")
    (found,) = node.doctor()[1]
    remedy = f'set Environment="{line.removesuffix(" --adopt")}" in {copy}, then systemctl daemon-reload'
    assert (found["found"], found["remedy"]) == (f"the options in {copy} differ from those of the hook", remedy)


def test_timer_that_is_masked_is_unmasked_and_one_without_its_unit_is_installed_again(node: InstalledNode) -> None:
    node.write(OWNER, "deb\n")
    systemctl("[ $1 != is-active ] && exit 1; echo inactive >&2; exit 3")(node)
    timer = f"{os.path.basename(UNITS)}.timer"
    assert node.doctor()[1][0]["remedy"] == f"systemctl enable --now {timer}"
    node.write(f"/etc/systemd/system/{timer}", "")
    node.path(f"/etc/systemd/system/{timer}").unlink()
    node.path(f"/etc/systemd/system/{timer}").symlink_to("/dev/null")
    assert node.doctor()[1][0]["remedy"] == f"systemctl unmask {timer}; systemctl enable --now {timer}"
    node.path(f"/etc/systemd/system/{timer}").unlink()
    node.path(f"{UNITS}.timer").unlink()
    assert node.doctor()[1][0]["remedy"] == "apt install --reinstall resctrl-mon-hook"


# --- Does it work here?


def test_self_test(hook: Hook) -> None:
    """On the model, and on the kernel's own."""
    command = [str(PYZ), "doctor", "--self-test", f"--resctrl-root={hook.resctrl_root}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, count = done.stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["made", "read", "moved", "its", "removed"]
    assert count == "0 failures, 0 warnings, 5 ok"
    assert hook.groups() == set()


def test_self_test_where_nothing_can_be_made(tmp_path: Path, node: InstalledNode) -> None:
    (tmp_path / "small").mkdir()
    with task(), mounted(tmp_path / "small", rmids=1) as resctrl:
        done = node.machine.run("doctor", "--self-test", f"--resctrl-root={resctrl.root}")
    assert done.returncode == 1
    assert done.stdout.startswith("1 failure, 0 warnings, 0 ok\nFAIL     self-test: no RMID is left")
    done = node.machine.run("doctor", "--self-test", f"--resctrl-root={tmp_path}")
    assert f"\nFAIL     self-test: {tmp_path} is not mounted, or does not support monitoring" in done.stdout
