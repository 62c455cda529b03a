# SPDX-License-Identifier: Apache-2.0
"""What the chart's containers do to a host's files, which pyfakefs has below /host."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hook.install.steps import Refused
from hook.node import hooksd
from pyz import archive
from tests.unit.nodes import add_process

import host

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

PREFIX, HOOKS_DIR = "/usr", "/usr/share/containers/oci/hooks.d"
PROGRAM = "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz"
OWNER = "/usr/libexec/oci/hooks.d/resctrl-mon-hook.owner"
JSON = f"{HOOKS_DIR}/10-resctrl-mon-hook-kubernetes.json"
OURS = "--containers=kubernetes"
RESCTRL = "/sys/fs/resctrl"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return archive.build(output=tmp_path_factory.mktemp("image") / "resctrl-mon-hook.pyz").read_bytes()


@pytest.fixture(autouse=True)
def _host(fs: FakeFilesystem, pyz: bytes) -> None:
    """A host with Python 3.11, as far as a container has it mounted."""
    root = host.HOST
    for path in (os.path.dirname(PROGRAM), HOOKS_DIR):
        fs.create_dir(f"{root}{path}")
    fs.create_file(f"{root}/usr/lib/python3.11/os.py")
    fs.create_file(f"{root}/usr/lib/os-release", contents='NAME=Some\nPRETTY_NAME="Some Linux 12"\n')
    fs.create_file(f"{root}/usr/bin/python3.11", st_mode=0o100755)
    fs.create_symlink(f"{root}/usr/bin/python3", "python3.11")
    fs.create_dir(RESCTRL)
    fs.create_file(host.PYZ, contents=pyz)
    fs.create_file("/proc/self/ns/pid").st_ino = host._FIRST_PID_NAMESPACE


def node(*words: str) -> host.Host:
    return host.Host(PREFIX, HOOKS_DIR, words)


def at(path: str) -> Path:
    return Path(f"{host.HOST}{path}")


def files() -> list[str]:
    """Everything of ours and of others in the two directories."""
    directories = (os.path.dirname(PROGRAM), HOOKS_DIR)
    return sorted(f"{directory}/{name}" for directory in directories for name in os.listdir(at(directory)))


def test_the_program_and_the_json_are_put_in_place_and_nothing_else(pyz: bytes) -> None:
    assert not node().is_installed()
    node("--linger=5").install()
    assert files() == sorted([OWNER, PROGRAM, JSON])
    assert at(PROGRAM).read_bytes() == pyz
    assert at(OWNER).read_text() == "chart\n"
    assert {path: at(path).stat().st_mode & 0o7777 for path in files()} == {OWNER: 0o644, PROGRAM: 0o755, JSON: 0o644}
    file = hooksd.read_entry(str(at(JSON))).file
    assert file is not None
    assert (file.hook.path, file.hook.args) == (PROGRAM, ["resctrl-mon-hook", "hook", OURS, "--linger=5"])
    assert node("--linger=5").is_installed()


def test_the_json_comes_last_and_to_install_again_changes_nothing() -> None:
    """Runtimes read it as soon as it is there, and each container would then be without its hook."""
    assert node().install() == [f"write {at(path)}" for path in (OWNER, PROGRAM, JSON)]
    before = [at(path).stat().st_ino for path in files()]
    assert node().install() == []
    assert [at(path).stat().st_ino for path in files()] == before


def test_installed_is_what_this_version_and_these_options_are() -> None:
    node().install()
    assert not node("--monitor=opt-in").is_installed()
    node("--monitor=opt-in").install()
    assert node("--monitor=opt-in").is_installed()
    with at(PROGRAM).open("ab") as file:
        file.write(b"\n")
    assert not node("--monitor=opt-in").is_installed()


def test_reconcile_gets_the_options_of_the_json_and_a_wrong_one_is_refused_before_each_container_complains() -> None:
    assert node("--monitor=opt-in").options == [OURS, "--linger=600", "--monitor=opt-in"]
    assert node("--linger=5").options == [OURS, "--linger=5"]
    with pytest.raises(Refused, match="unknown option '--lingr'"):
        node("--lingr=5")


# --- Hosts that cannot run hooks

PYTHON, REAL, LIBRARY = "/usr/bin/python3", "/usr/bin/python3.11", "/usr/lib/python3.11/os.py"


@pytest.mark.parametrize(
    ("link", "gone", "said"),
    [
        (None, PYTHON, "Some Linux 12 has no /usr/bin/python3: hooks cannot run there"),
        *(
            (target, None, "Python 3.9 or newer")
            for target in ("python3.6", "python3.8", "pypy3", "/usr/bin/python2.7")
        ),
        (None, LIBRARY, "not its standard library"),
        # RHEL 8 leads there, which is not mounted
        ("/etc/alternatives/python3", None, "leads to /etc/alternatives/python3, which is not in sight"),
        ("/usr/bin/python3", None, "has no /usr/bin/python3"),  # in a circle
    ],
)
def test_a_host_without_a_python_that_runs_hooks_is_refused(link: str | None, gone: str | None, said: str) -> None:
    if link is not None:
        at(PYTHON).unlink()
        at(PYTHON).symlink_to(link)
        if link not in ("/etc/alternatives/python3", PYTHON):
            (at("/usr/bin") / os.path.basename(link)).touch(0o755)
    if gone is not None:
        at(gone).unlink()
    with pytest.raises(Refused, match=re.escape(said)):
        node().install()
    assert files() == []


def test_links_of_the_host_are_the_hosts() -> None:
    at(PYTHON).unlink()
    at(PYTHON).symlink_to(REAL)
    node().install()
    assert node().is_installed()


def test_without_resctrl_nothing_is_installed() -> None:
    os.rmdir(RESCTRL)
    with pytest.raises(Refused, match="Some Linux 12: its CPU or its kernel has no resctrl that monitors"):
        node().install()
    assert files() == []


# --- Files of others


@pytest.mark.parametrize("path", [PROGRAM, "/usr/local/libexec/oci/hooks.d/resctrl-mon-hook.pyz"])
def test_a_package_that_is_installed_already_is_left_alone(path: str) -> None:
    """Also one whose files are where the chart's would be."""
    hook_file = {"version": "1.0.0", "hook": {"path": path}, "when": {"always": True}, "stages": ["poststop"]}
    at(JSON).write_text(json.dumps(hook_file))
    with pytest.raises(Refused, match="was installed by other means"):
        node().install()
    node().remove_json()
    assert files() == [JSON]
    assert json.loads(at(JSON).read_text()) == hook_file


def test_a_program_that_a_package_has_left_to_its_containers_is_left_alone() -> None:
    at(PROGRAM).write_text("theirs")
    with pytest.raises(Refused, match=r"hook\.pyz is not the chart's"):
        node().install()
    assert node().is_needed(), "a removal does not wait for those who call it, either"
    assert node().remove_program() == []
    assert at(PROGRAM).read_text() == "theirs"


def test_a_package_that_was_put_over_the_chart_is_left_alone_from_then_on() -> None:
    """It brings an owner's file of its own."""
    node().install()
    at(OWNER).write_text("deb\n")
    assert not node().is_installed()
    with pytest.raises(Refused, match="was installed by other means"):
        node().install()
    assert node().remove_json() == node().remove_program() == []


def test_an_installation_that_was_killed_goes_on() -> None:
    node().install()
    for path in (JSON, PROGRAM):
        at(path).unlink()
        node().install()
        assert node().is_installed()


def test_what_is_called_from_a_second_directory_is_refused() -> None:
    node().install()
    other = at("/etc/containers/oci/hooks.d")
    other.mkdir(parents=True)
    at(JSON).rename(other / "50-mine.json")
    with pytest.raises(Refused, match="already calls the hook"):
        node().install()


# --- The end


def test_the_json_is_removed_first_and_the_program_only_on_request() -> None:
    node().install()
    node().remove_json()
    assert files() == [OWNER, PROGRAM]
    assert node().remove_json() == []
    node().remove_program()
    assert files() == []
    assert node().remove_program() == []


def test_a_program_that_was_installed_again_stays() -> None:
    """A removal may wait for months, and the chart may be there again before it is done."""
    node().install()
    node().remove_json()
    assert not node().is_needed()
    node("--linger=5").install()
    assert node().is_needed()
    assert node().remove_program() == []
    assert node("--linger=5").is_installed()


LIVE, ENDED, YOUNG, ODD, TORN = ("a1" * 32, "b2" * 32, "c3" * 32, "d4" * 32, "e5" * 32)
CRIO = {
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.name": "web-1",
    "io.kubernetes.container.name": "app\nroot",
}
CONTAINERD = {
    "io.kubernetes.cri.sandbox-namespace": "batch",
    "io.kubernetes.cri.sandbox-name": "job-2",
    "io.kubernetes.cri.container-name": "main",
}
NAMED = "?/? ? (b2b2b2b2b2b2)"


def bundle(
    *parts: str, path: str = PROGRAM, text: str = "", annotations: dict[str, str] | None = None, age: int = 86400
) -> None:
    """The configuration of a container that was made some seconds ago."""
    config = Path(host.BUNDLES, *parts, "config.json")
    config.parent.mkdir(parents=True)
    hooks = {"createRuntime": [{"path": "/bin/x"}], "poststop": [{"path": path}]}
    config.write_text(text or json.dumps({"hooks": hooks, "annotations": annotations}))
    os.utime(config, (time.time() - age,) * 2)


def test_live_containers_that_call_the_program_keep_it() -> None:
    assert node().callers() == ([], [])
    add_process(7, cgroup=f"/kubepods.slice/kubepods-pod1.slice/crio-{LIVE}.scope")
    bundle(LIVE, "userdata", annotations=CRIO)
    bundle(ENDED, annotations=CONTAINERD)
    bundle("hooked-by-others", path="/usr/bin/other")
    bundle("not-hooked", text='{"hooks": null}')
    bundle(TORN, text='{"hooks": {"po')
    bundle(ODD, text="[]")
    bundle(YOUNG, age=1)
    Path(host.BUNDLES, "gone").mkdir()
    Path(host.BUNDLES, "gone/config.json").symlink_to("nowhere")
    live, ended = node().callers()
    assert live == [r"shop/web-1 app\nroot (a1a1a1a1a1a1)", "?/? ? (c3c3c3c3c3c3)"]
    unknown = "whose config.json cannot be understood"
    assert ended == ["batch/job-2 main (b2b2b2b2b2b2)", f"d4d4d4d4d4d4, {unknown}", f"e5e5e5e5e5e5, {unknown}"]


@pytest.mark.parametrize(
    ("cgroup", "is_live"),
    [
        ("/kubepods/burstable/pod1/" + ENDED, True),
        ("/kubepods.slice/pod1.slice/cri-containerd-" + ENDED + ".scope", True),
        ("/system.slice/kubelet.slice/pod1.slice:cri-containerd:" + ENDED, True),
        ("/libpod-" + ENDED + "/container", True),
        (f"/libpod-{LIVE}.scope/libpod-{ENDED}.scope", False),  # another container named it so
        ("/user.slice", False),
    ],
)
def test_a_container_lives_as_long_as_its_cgroup_has_processes(cgroup: str, is_live: bool) -> None:
    bundle(ENDED)
    assert node().callers() == ([], [NAMED])
    add_process(7, cgroup=cgroup)
    assert node().callers() == (([NAMED], []) if is_live else ([], [NAMED]))


def test_in_a_pid_namespace_of_its_own_it_takes_no_container_for_ended(fs: FakeFilesystem) -> None:
    fs.get_object("/proc/self/ns/pid").st_ino = 1
    bundle(ENDED)
    assert node().callers() == ([NAMED], [])


def test_a_base_runtime_spec_that_names_it_is_waited_for(fs: FakeFilesystem) -> None:
    """containerd would start no container without it. Its files are looked at as it sees them."""
    node().install()
    config = at("/etc/containerd/config.toml")
    config.parent.mkdir(parents=True)
    config.write_text('imports = ["x.toml"]\n')
    (config.parent / "x.toml").write_text('base_runtime_spec = "/etc/spec.json"\n')
    at("/etc/spec.json").write_text(json.dumps({"hooks": {"createRuntime": [{"path": PROGRAM}]}}))
    for pid in (1, 42):
        add_process(pid, starttime=2**40)
        for name in ("pid", "mnt", "user"):
            Path(f"/proc/{pid}/ns").mkdir(exist_ok=True)
            if pid == 1:
                fs.create_file(f"/proc/1/ns/{name}")
            else:
                os.link(f"/proc/1/ns/{name}", f"/proc/{pid}/ns/{name}")
    Path("/proc/42/cmdline").write_bytes(b"/usr/bin/containerd\0")
    Path("/proc/42/root").symlink_to(host.HOST)
    Path("/proc/42/cwd").symlink_to("/")
    remedy = "take it out of the configuration and restart containerd"
    assert node().specs() == [f"containerd's base_runtime_spec /etc/spec.json calls {PROGRAM}: {remedy}"]
    (config.parent / "x.toml").unlink()
    assert node().specs() == ["cannot read /etc/containerd/x.toml of containerd's configuration: ENOENT"]
