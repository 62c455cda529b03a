# SPDX-License-Identifier: Apache-2.0
"""What the chart's containers do to a host's files: a directory tree stands for the host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hook.base import container_tasks
from hook.base.container_tasks import Process
from hook.install.steps import Refused
from hook.node import hooksd
from hook.node import host as of_host
from hook.node.door import Tree
from hook.node.host import Found
from pyz import archive

import host

PREFIX, HOOKS_DIR = "/usr", "/usr/share/containers/oci/hooks.d"
PROGRAM = "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz"
MARK = "/usr/libexec/oci/hooks.d/resctrl-mon-hook.owner"
JSON = f"{HOOKS_DIR}/10-resctrl-mon-hook-kubernetes.json"
OURS = "--containers=kubernetes"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "resctrl-mon-hook.pyz"
    archive.build(output=path)
    return path


@pytest.fixture
def root(tmp_path: Path, pyz: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with Python 3.11, and with the directories that are mounted."""
    root = tmp_path / "host"
    for directory in (os.path.dirname(PROGRAM), HOOKS_DIR, "/usr/lib/python3.11", "/usr/bin"):
        Path(f"{root}{directory}").mkdir(parents=True)
    (root / "usr/lib/python3.11/os.py").touch()
    (root / "usr/lib/os-release").write_text('NAME=Some\nPRETTY_NAME="Some Linux 12"\n')
    (root / "usr/bin/python3.11").touch(0o755)
    (root / "usr/bin/python3").symlink_to("python3.11")
    (tmp_path / "resctrl").mkdir()
    monkeypatch.setattr(host, "RESCTRL", str(tmp_path / "resctrl"))
    monkeypatch.setattr(host, "HOST", str(root))
    monkeypatch.setattr(host, "PYZ", str(pyz))
    monkeypatch.setattr(host, "BUNDLES", str(tmp_path / "bundles"))
    return root


def node(*words: str) -> host.Host:
    return host.Host(PREFIX, HOOKS_DIR, words)


def files(root: Path) -> list[str]:
    """Everything of ours and of others in the two directories."""
    found = [
        f"{directory}/{name}"
        for directory in (os.path.dirname(PROGRAM), HOOKS_DIR)
        for name in os.listdir(f"{root}{directory}")
    ]
    return sorted(found)


def at(root: Path, path: str) -> Path:
    return Path(f"{root}{path}")


def test_the_program_and_the_json_are_put_in_place_and_nothing_else(root: Path, pyz: Path) -> None:
    assert not node().is_installed()
    node("--linger=5").install()
    assert files(root) == sorted([MARK, PROGRAM, JSON])
    assert at(root, PROGRAM).read_bytes() == pyz.read_bytes()
    assert at(root, PROGRAM).stat().st_mode & 0o7777 == 0o755
    assert at(root, JSON).stat().st_mode & 0o7777 == 0o644
    file = hooksd.read(str(at(root, JSON))).file
    assert file is not None
    assert (file.hook.path, file.hook.args) == (PROGRAM, ["resctrl-mon-hook", "hook", OURS, "--linger=5"])
    assert node("--linger=5").is_installed()


def test_the_json_comes_last(root: Path) -> None:
    """Runtimes read it as soon as it is there, and each container would then be without its hook."""
    assert node().install() == [f"write {at(root, path)}" for path in (MARK, PROGRAM, JSON)]


def test_installed_is_what_this_version_and_these_options_are(root: Path) -> None:
    node().install()
    assert not node("--monitor=opt-in").is_installed()
    node("--monitor=opt-in").install()
    assert node("--monitor=opt-in").is_installed()
    with at(root, PROGRAM).open("ab") as file:
        file.write(b"\n")
    assert not node("--monitor=opt-in").is_installed()


def test_to_install_again_changes_nothing(root: Path) -> None:
    node().install()
    before = identities(root)
    assert node().install() == []
    assert identities(root) == before


def identities(root: Path) -> list[tuple[int, int, int]]:
    """Of all files; when they were read last is not asked."""
    found = [os.stat(f"{root}{path}") for path in files(root)]
    return [(it.st_ino, it.st_mode, it.st_ctime_ns) for it in found]


@pytest.mark.usefixtures("root")
def test_reconcile_gets_the_options_of_the_json() -> None:
    assert node("--monitor=opt-in").options == [OURS, "--linger=600", "--monitor=opt-in"]
    assert node("--linger=5").options == [OURS, "--linger=5"]


@pytest.mark.usefixtures("root")
def test_a_wrong_option_is_refused_before_each_container_complains() -> None:
    with pytest.raises(Refused, match="unknown option '--lingr'"):
        node("--lingr=5")


# --- Hosts that cannot run hooks


def refusal(root: Path) -> str:
    with pytest.raises(Refused) as refused:
        node().install()
    assert files(root) == []
    return str(refused.value)


def test_without_python_nothing_is_installed(root: Path) -> None:
    for path in (root / "usr/bin").iterdir():
        path.unlink()
    (root / "usr/lib/os-release").write_text('PRETTY_NAME="Fedora CoreOS 43"\n')
    told = refusal(root)
    assert "Fedora CoreOS 43 has no /usr/bin/python3: hooks cannot run there" in told
    assert "remedy" in told


def test_without_resctrl_nothing_is_installed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "resctrl").rmdir()
    assert "Some Linux 12: its CPU or its kernel has no resctrl" in refusal(root)


@pytest.mark.parametrize("target", ["python3.6", "python3.8", "pypy3", "/usr/bin/python2.7"])
def test_with_another_python_nothing_is_installed(root: Path, target: str) -> None:
    link = root / "usr/bin/python3"
    link.unlink()
    link.symlink_to(target)
    (root / "usr/bin" / os.path.basename(target)).touch(0o755)
    assert "Python 3.9 or newer" in refusal(root)


def test_a_python_without_its_library_is_none(root: Path) -> None:
    (root / "usr/lib/python3.11/os.py").unlink()
    assert "not its standard library" in refusal(root)


def test_a_python_that_is_not_in_sight_is_not_taken_for_one(root: Path) -> None:
    """RHEL 8 leads to /etc/alternatives, which is not mounted."""
    (root / "usr/bin/python3").unlink()
    (root / "usr/bin/python3").symlink_to("/etc/alternatives/python3")
    assert "leads to /etc/alternatives/python3, which is not in sight" in refusal(root)


def test_links_of_the_host_are_the_hosts(root: Path) -> None:
    (root / "usr/bin/python3").unlink()
    (root / "usr/bin/python3").symlink_to("/usr/bin/python3.11")
    node().install()
    assert node().is_installed()


def test_links_in_a_circle_are_no_python(root: Path) -> None:
    (root / "usr/bin/python3.11").unlink()
    (root / "usr/bin/python3.11").symlink_to("python3")
    assert "has no /usr/bin/python3" in refusal(root)


# --- Files of others


@pytest.mark.parametrize("path", [PROGRAM, "/usr/local/libexec/oci/hooks.d/resctrl-mon-hook.pyz"])
def test_a_package_that_is_installed_already_is_left_alone(root: Path, path: str) -> None:
    """Also one whose files are where the chart's would be."""
    packaged = json.dumps(
        {"version": "1.0.0", "hook": {"path": path}, "when": {"always": True}, "stages": ["poststop"]}
    )
    at(root, JSON).write_text(packaged)
    with pytest.raises(Refused, match="was installed by other means"):
        node().install()
    node().remove_json()
    assert files(root) == [JSON]
    assert at(root, JSON).read_text() == packaged


def test_a_program_that_a_package_has_left_to_its_containers_is_left_alone(root: Path) -> None:
    at(root, PROGRAM).write_text("theirs")
    with pytest.raises(Refused, match=r"hook\.pyz is not the chart's"):
        node().install()
    assert node().is_needed(), "a removal does not wait for those who call it, either"
    assert node().remove_program() == []
    assert at(root, PROGRAM).read_text() == "theirs"


def test_a_package_that_was_put_over_the_chart_is_left_alone_from_then_on(root: Path) -> None:
    """It brings an owner's file of its own."""
    node().install()
    at(root, MARK).write_text("deb\n")
    assert not node().is_installed()
    with pytest.raises(Refused, match="was installed by other means"):
        node().install()
    assert node().remove_json() == node().remove_program() == []


def test_an_installation_that_was_killed_goes_on(root: Path) -> None:
    node().install()
    for path in (JSON, PROGRAM):
        at(root, path).unlink()
        node().install()
        assert node().is_installed()


def test_what_is_called_from_a_second_directory_is_refused(root: Path) -> None:
    node().install()
    other = root / "etc/containers/oci/hooks.d"
    other.mkdir(parents=True)
    at(root, JSON).rename(other / "50-mine.json")
    with pytest.raises(Refused, match="already calls the hook"):
        node().install()


# --- The end


def bundle(
    directory: Path,
    *parts: str,
    path: str = PROGRAM,
    text: str | None = None,
    annotations: dict[str, str] | None = None,
) -> None:
    config = directory.joinpath("bundles", *parts, "config.json")
    config.parent.mkdir(parents=True)
    hooks = {"createRuntime": [{"path": "/bin/x"}], "poststop": [{"path": path}]}
    config.write_text(text or json.dumps({"hooks": hooks, "annotations": annotations}))


def test_the_json_is_removed_first_and_the_program_only_on_request(root: Path) -> None:
    node().install()
    node().remove_json()
    assert files(root) == [MARK, PROGRAM]
    assert node().remove_json() == []
    node().remove_program()
    assert files(root) == []
    assert node().remove_program() == []


@pytest.mark.usefixtures("root")
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


@pytest.fixture
def cgroups(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cgroups that have processes."""
    places = [":/kubepods.slice/kubepods-pod1.slice/crio-" + LIVE + ".scope", ":/user.slice"]
    monkeypatch.setattr(container_tasks, "table", lambda: {7: Process(7, 1, 1, tuple(places))})
    assert root.exists()
    return places


def old(directory: Path) -> None:
    """Every bundle is of yesterday."""
    for config in directory.glob("bundles/**/config.json"):
        os.utime(config, (config.stat().st_mtime - 86400,) * 2)


@pytest.mark.usefixtures("cgroups")
def test_users_of_the_program_are_live_containers_only(tmp_path: Path) -> None:
    assert node().callers() == ([], [])
    bundle(tmp_path, LIVE, "userdata", annotations=CRIO)
    bundle(tmp_path, ENDED, annotations=CONTAINERD)
    bundle(tmp_path, "hooked-by-others", path="/usr/bin/other")
    bundle(tmp_path, "not-hooked", text='{"hooks": null}')
    bundle(tmp_path, TORN, text='{"hooks": {"po')
    bundle(tmp_path, ODD, text="[]")
    old(tmp_path)
    bundle(tmp_path, YOUNG)
    live, ended = node().callers()
    assert live == [r"shop/web-1 app\nroot (a1a1a1a1a1a1)", "?/? ? (c3c3c3c3c3c3)"]
    unknown = "whose config.json cannot be understood"
    assert ended == ["batch/job-2 main (b2b2b2b2b2b2)", f"d4d4d4d4d4d4, {unknown}", f"e5e5e5e5e5e5, {unknown}"]


@pytest.mark.parametrize(
    "place",
    [
        ":/kubepods/burstable/pod1/" + ENDED,
        ":/kubepods.slice/pod1.slice/cri-containerd-" + ENDED + ".scope",
        "name=systemd:/system.slice/kubelet.slice/pod1.slice:cri-containerd:" + ENDED,
        ":/libpod-" + ENDED + "/container",
    ],
)
def test_a_container_lives_as_long_as_its_cgroup_has_processes(cgroups: list[str], tmp_path: Path, place: str) -> None:
    bundle(tmp_path, ENDED)
    old(tmp_path)
    assert node().callers() == ([], ["?/? ? (b2b2b2b2b2b2)"])
    cgroups.append(place)
    assert node().callers() == (["?/? ? (b2b2b2b2b2b2)"], [])


def test_a_cgroup_that_another_container_named_after_it_keeps_no_container_alive(
    cgroups: list[str], tmp_path: Path
) -> None:
    bundle(tmp_path, ENDED)
    old(tmp_path)
    cgroups.append(f":/libpod-{LIVE}.scope/libpod-{ENDED}.scope")
    assert node().callers() == ([], ["?/? ? (b2b2b2b2b2b2)"])


@pytest.mark.usefixtures("cgroups")
def test_in_a_pid_namespace_of_its_own_it_takes_no_container_for_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_FIRST_PID_NAMESPACE", 1)
    bundle(tmp_path, ENDED)
    old(tmp_path)
    assert node().callers() == (["?/? ? (b2b2b2b2b2b2)"], [])


@pytest.mark.usefixtures("root")
def test_a_bundle_that_vanishes_meanwhile_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "bundles/gone").mkdir(parents=True)
    (tmp_path / "bundles/gone/config.json").symlink_to("nowhere")
    assert node().callers() == ([], [])


def test_a_base_runtime_spec_that_names_it_is_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """containerd would start no container without it. Its files are looked at as it sees them."""
    node().install()
    config = at(root, "/etc/containerd/config.toml")
    config.parent.mkdir(parents=True)
    config.write_text('imports = ["x.toml"]\n')
    (config.parent / "x.toml").write_text('base_runtime_spec = "/etc/spec.json"\n')
    at(root, "/etc/spec.json").write_text(json.dumps({"hooks": {"createRuntime": [{"path": PROGRAM}]}}))
    running = Found({os.getpid(): ["/usr/bin/containerd"]})
    monkeypatch.setattr(of_host, "find", lambda _is_wanted: running)
    monkeypatch.setattr(of_host, "see_files", lambda _pid: Tree(str(root)))
    monkeypatch.setattr(of_host, "read_start_time", lambda _pid: float("inf"))
    remedy = "take it out of the configuration and restart containerd"
    assert node().specs() == [f"containerd's base_runtime_spec /etc/spec.json calls {PROGRAM}: {remedy}"]
    (config.parent / "x.toml").unlink()
    assert node().specs() == ["cannot read /etc/containerd/x.toml of containerd's configuration: ENOENT"]
