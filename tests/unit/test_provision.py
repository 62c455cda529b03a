# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import provision

PINS = ["tool==1"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """A machine as told; the commands that would have been run, each of which answers as `answers` says."""

    def tell(
        present: Sequence[str] = (),
        uid: int = 0,
        debian: bool = True,
        answers: Callable[[Sequence[str]], str] | None = None,
    ) -> list[list[str]]:
        ran: list[list[str]] = []

        def run(command: Sequence[str], _environment: dict[str, str] | None = None) -> str:
            ran.append(list(command))
            return answers(command) if answers else ""

        monkeypatch.setattr(provision, "_present", present.__contains__)
        monkeypatch.setattr(provision, "_is_debian", lambda: debian)
        monkeypatch.setattr(provision, "_cannot_open", lambda _device: "")
        monkeypatch.setattr(provision, "_run", run)
        monkeypatch.setattr(provision, "_venv", lambda *_: Path("python"))
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        return ran

    return tell


@pytest.mark.parametrize("group", ["dev", "faults"])
def test_the_requirements_are_the_dependency_group(group: str) -> None:
    tomllib = pytest.importorskip("tomllib", reason="came with Python 3.11")
    text = (provision.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert provision.requirements(text, group) == tomllib.loads(text)["dependency-groups"][group]


@pytest.mark.parametrize("group", ["dev", "faults"])
def test_every_requirement_is_pinned(group: str) -> None:
    text = (provision.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all("==" in pin for pin in provision.requirements(text, group))


def test_the_campaign_has_a_venv_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, list[str]]] = []

    def make(directory: Path, pins: list[str]) -> None:
        made.append((directory.name, pins))

    monkeypatch.setattr(provision, "_make_venv", make)
    monkeypatch.setattr(provision, "_is_current", lambda *_: False)
    monkeypatch.setattr(provision, "_alone", lambda _: nullcontext())
    text = (provision.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert provision.campaign() == provision.ROOT / ".venv-faults/bin/python"
    assert made == [(".venv-faults", [*provision.requirements(text), *provision.requirements(text, "faults")])]


def test_a_pyproject_without_the_group_is_named() -> None:
    with pytest.raises(provision.CannotProvision, match="no dependency group `dev`"):
        provision.requirements("[project]\n")


def test_a_machine_that_has_everything_is_left_alone(
    machine: Callable[..., list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    ran = machine(present=provision.TEST)
    provision.ensure(apt=provision.TEST)
    assert ran == []
    assert capsys.readouterr().err == ""


def test_only_what_is_missing_is_installed_and_that_is_announced(
    machine: Callable[..., list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    ran = machine(present=[name for name in provision.TEST if name not in ("runc", "crun")])
    provision.ensure(apt=provision.TEST)
    assert [command[-2:] for command in ran] == [["runc", "crun"]]
    assert {"--no-install-recommends", "--no-remove"} <= set(ran[0])
    assert capsys.readouterr().err.splitlines()[0] == "provision: installing Debian packages: runc crun"


def test_package_lists_are_refreshed_only_when_apt_cannot_do_without(machine: Callable[..., list[list[str]]]) -> None:
    outcomes = iter(["E: Unable to locate package runc", "", ""])
    ran = machine(answers=lambda _command: next(outcomes))
    provision.ensure(apt=["runc"])
    assert [("update" in command, "install" in command) for command in ran] == [
        (False, True),
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        ({"uid": 1000}, "as root: apt-get install --no-install-recommends fuse3"),
        ({"debian": False}, "this is no Debian: install by hand what Debian calls so"),
        ({"answers": lambda _: "E: no route"}, "apt-get could not install (offline?): E: no route"),
    ],
)
def test_packages_that_cannot_be_installed_are_reported_in_one_line(
    facts: dict[str, object],
    advice: str,
    machine: Callable[..., list[list[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine(**facts)
    provision.ensure(apt=["fuse3"])
    assert capsys.readouterr().err.splitlines()[-1] == f"provision: not installed: fuse3; {advice}"


def test_missing_names_the_device_and_the_privilege(
    machine: Callable[..., list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(present=provision.DEMO, uid=1000)
    monkeypatch.setattr(provision, "_cannot_open", lambda _device: "No such file or directory")
    device, privilege = provision.missing(provision.DEMO)
    assert device.startswith("/dev/fuse: No such file or directory")
    assert privilege.startswith("not root: podman runc ")


def test_a_package_without_a_probe_of_its_own_is_the_command_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provision.missing(["no-such-tool"]) == ["not installed: no-such-tool"]
    (tmp_path / "no-such-tool").touch(mode=0o755)
    assert provision.missing(["no-such-tool"]) == []


def test_a_dynamic_busybox_does_not_pass_for_a_static_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"\x7fELF" + bytes(600) + b"/lib64/ld-linux-x86-64.so.2")
    busybox.chmod(0o755)
    assert provision.missing(["busybox-static"]) == ["not installed: busybox-static"]
    busybox.write_bytes(b"\x7fELF" + bytes(600))
    assert provision.missing(["busybox-static"]) == []


def test_a_missing_device_is_reported() -> None:
    assert provision._cannot_open("/nonexistent") == os.strerror(2)
    assert provision._cannot_open("/dev/null") == ""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", ""),
        ("echo reading; echo 'E: no such package'; echo 'E: so failed'; echo bye; exit 100", "E: no such package"),
        ("echo well; echo only this >&2; exit 1", "only this"),
        ("exit 7", "exit status 7"),
    ],
)
def test_the_first_error_of_a_failed_command_is_reported(script: str, said: str) -> None:
    assert provision._run(["sh", "-c", script]) == said


# --- the venv, with a maker that makes only what the stamp looks at


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    directory = tmp_path / ".venv"
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").symlink_to(sys.executable)
    (directory / "stamp").write_text(provision._stamp(directory, PINS), encoding="ascii")
    return directory


def test_a_whole_venv_is_current(venv: Path) -> None:
    assert provision._is_current(venv, PINS)


def test_other_pins_make_it_stale(venv: Path) -> None:
    assert not provision._is_current(venv, ["tool==2"])


def test_one_without_a_stamp_is_half_made(venv: Path) -> None:
    (venv / "stamp").unlink()
    assert not provision._is_current(venv, PINS)


def test_one_that_was_moved_is_stale(venv: Path) -> None:
    assert not provision._is_current(venv.rename(venv.with_name("moved")), PINS)


def test_one_whose_interpreter_is_gone_is_stale(venv: Path) -> None:
    (venv / "bin" / "python").unlink()
    assert not provision._is_current(venv, PINS)


def test_a_failure_leaves_no_stamp(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(command: Sequence[str], _environment: dict[str, str] | None = None) -> str:
        return "ERROR: no matching distribution" if "pip" in command else ""

    monkeypatch.setattr(provision, "_run", no_network)
    with pytest.raises(provision.CannotProvision, match=r"offline\?.*no matching distribution"):
        provision._make_venv(venv, ["tool==2"])
    assert not provision._is_current(venv, ["tool==2"])


def test_two_at_once_make_it_once(tmp_path: Path) -> None:
    """Two processes, both without a venv: one makes it, and the other finds it made."""
    program = f"""
import pathlib, sys, time
from tests import provision

def make(directory, pins):
    with open({str(tmp_path / "made")!r}, "a") as log:
        log.write("x")
    time.sleep(0.3)
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").symlink_to(sys.executable)
    (directory / "stamp").write_text(provision._stamp(directory, pins))

provision._make_venv = make
print(provision._venv(pathlib.Path({str(tmp_path / ".venv")!r}), ["tool==1"]))
"""
    both = [
        subprocess.Popen([sys.executable, "-c", program], cwd=provision.ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=300)[0].strip() for process in both]
    assert answers == [str(tmp_path / ".venv/bin/python")] * 2
    assert (tmp_path / "made").read_text(encoding="ascii") == "x"


@pytest.mark.parametrize(
    ("arguments", "packages"),
    [
        (["deb"], ["dpkg"]),
        (["rpm"], ["rpm"]),
        ([], ["dpkg", "rpm"]),
        (["--check"], ["dpkg", "rpm", "lintian", "rpmlint"]),
        (["--check", "rpm"], ["rpm", "rpmlint"]),
    ],
)
def test_packing_needs_the_makers_and_with_check_the_linters(arguments: list[str], packages: list[str]) -> None:
    assert provision.needed_to_package(arguments) == packages


def test_the_demo_takes_this_python_if_it_has_the_tools(
    machine: Callable[..., list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(present=provision.DEMO)
    monkeypatch.setattr(provision, "_is_importable", lambda _pin: True)
    assert provision.demo() == Path(sys.executable)


@pytest.mark.parametrize("has_tools", [True, False])
def test_demo_uses_the_tools_venv_or_makes_its_own(
    machine: Callable[..., list[list[str]]], monkeypatch: pytest.MonkeyPatch, has_tools: bool
) -> None:
    machine(present=provision.DEMO)
    asked: dict[str, list[str]] = {}
    monkeypatch.setattr(provision, "_is_importable", lambda _pin: False)
    monkeypatch.setattr(provision, "_is_current", lambda *_: has_tools)
    monkeypatch.setattr(provision, "_venv", lambda directory, pins: asked.update({directory.name: pins}))
    provision.demo()
    if has_tools:
        assert list(asked) == [".venv"]
    else:
        ((name, pins),) = asked.items()
        assert (name, [pin.partition("==")[0] for pin in pins]) == (".venv-demo", ["mfusepy"])


def test_a_tool_in_another_version_does_not_count() -> None:
    assert provision._is_importable(f"pytest=={pytest.__version__}")
    assert not provision._is_importable("pytest==0.1")
    assert not provision._is_importable("no-such-tool==1")


@pytest.mark.parametrize(
    ("blocks", "flags", "scratch"), [(1 << 22, 0, "/dev/shm"), (1, 0, None), (1 << 22, os.ST_NOEXEC, None)]
)
def test_scratch_is_in_memory_where_there_is_room_and_programs_run(
    monkeypatch: pytest.MonkeyPatch, blocks: int, flags: int, scratch: str | None
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_flag=flags))
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert provision.find_scratch() == (scratch or tempfile.gettempdir())
