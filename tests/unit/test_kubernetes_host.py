"""What the chart's containers do to a host's files: a directory tree stands for the host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import build
from hook import hooksd
from hook.steps import Refused

import host

PREFIX, HOOKS_DIR = "/usr/local", "/usr/share/containers/oci/hooks.d"
PROGRAM = "/usr/local/libexec/oci/hooks.d/resctrl-mon-hook.pyz"
JSON = f"{HOOKS_DIR}/10-resctrl-mon-hook-kubernetes.json"
OURS = "--containers=kubernetes"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "resctrl-mon-hook.pyz"
    build.build(output=path, bytecode=[])
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
    assert files(root) == sorted([PROGRAM, JSON])
    assert at(root, PROGRAM).read_bytes() == pyz.read_bytes()
    assert at(root, PROGRAM).stat().st_mode & 0o7777 == 0o755
    assert at(root, JSON).stat().st_mode & 0o7777 == 0o644
    file = hooksd.read(str(at(root, JSON))).file
    assert file is not None
    assert (file.hook.path, file.hook.args) == (PROGRAM, ["resctrl-mon-hook", "hook", OURS, "--linger=5"])
    assert node("--linger=5").is_installed()


def test_the_json_comes_last(root: Path) -> None:
    """Runtimes read it as soon as it is there, and each container would then be without its hook."""
    assert node().install() == [f"write {at(root, PROGRAM)}", f"write {at(root, JSON)}"]


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
def test_reconcile_gets_the_options_that_stand_in_the_json() -> None:
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


def test_a_package_that_is_installed_already_is_left_alone(root: Path) -> None:
    packaged = json.dumps(
        {
            "version": "1.0.0",
            "hook": {"path": "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz"},
            "when": {"always": True},
            "stages": ["poststop"],
        }
    )
    at(root, JSON).write_text(packaged)
    with pytest.raises(Refused, match="was installed by other means"):
        node().install()
    node().remove_json()
    assert files(root) == [JSON]
    assert at(root, JSON).read_text() == packaged


def test_what_is_called_from_a_second_directory_is_refused(root: Path) -> None:
    node().install()
    other = root / "etc/containers/oci/hooks.d"
    other.mkdir(parents=True)
    at(root, JSON).rename(other / "50-mine.json")
    with pytest.raises(Refused, match="has the hook called already"):
        node().install()


# --- The end


def bundle(directory: Path, *parts: str, path: str = PROGRAM, text: str | None = None) -> None:
    config = directory.joinpath("bundles", *parts, "config.json")
    config.parent.mkdir(parents=True)
    config.write_text(
        text or json.dumps({"hooks": {"createRuntime": [{"path": "/bin/x"}], "poststop": [{"path": path}]}})
    )


def test_the_json_goes_first_and_the_program_only_when_told(root: Path) -> None:
    node().install()
    node().remove_json()
    assert files(root) == [PROGRAM]
    assert node().remove_json() == []
    node().remove_program()
    assert files(root) == []
    assert node().remove_program() == []


@pytest.mark.usefixtures("root")
def test_who_still_calls_the_program(tmp_path: Path) -> None:
    assert node().callers() == []
    bundle(tmp_path, "of-containerd")
    bundle(tmp_path, "of-crio", "userdata")
    bundle(tmp_path, "hooked-by-others", path="/usr/bin/other")
    bundle(tmp_path, "not-hooked", text='{"hooks": null}')
    bundle(tmp_path, "torn", text='{"hooks": {"po')
    bundle(tmp_path, "odd", text="[]")
    assert node().callers() == ["odd", "of-containerd", "of-crio", "torn"]


@pytest.mark.usefixtures("root")
def test_a_bundle_that_vanishes_meanwhile_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "bundles/gone").mkdir(parents=True)
    (tmp_path / "bundles/gone/config.json").symlink_to("nowhere")
    assert node().callers() == []
