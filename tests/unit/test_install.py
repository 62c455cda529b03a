# SPDX-License-Identifier: Apache-2.0
"""install: what it refuses, and what it tells the operator."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.install import install
from hook.install.install import Wanted, find_problems, list_remarks, try_program
from hook.install.program import Program
from hook.install.steps import Refused
from hook.models import Options
from hook.node import programs
from hook.node.paths import TARGETS, Places
from hook.node.programs import Exit
from pyz import archive

HOOK = {"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": True}, "stages": ["poststop"]}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(str(archive.build(output=tmp_path_factory.mktemp("pyz") / "x.pyz")))


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    def require(path: str) -> None:
        if "python3" not in path:
            raise programs.NoPython(f"{path} is old")

    monkeypatch.setattr(programs, "require_python", require)


def test_what_would_not_work_is_refused_with_a_remedy(fs: FakeFilesystem, shipped: Program) -> None:
    def problems(places: Places = Places(), python: str | None = None) -> str:  # noqa: B008  it is never changed
        return "\n".join(find_problems(Wanted(shipped, places, TARGETS, python=python)))

    assert problems() == ""
    for python in "python3", "/with a/blank", "/" + "x" * 200, "/\u00e9":
        assert problems(python=python).startswith("--python: ")
    assert problems(python="/old") == "/old is old; remedy: install it, or name another one with --python=PATH"
    assert "a systemd unit cannot hold" in problems(Places("/opt/%h"))
    for path in Places().files():
        fs.create_file(path, contents=json.dumps(HOOK))
        assert problems() == f"{path} exists and was not installed by resctrl-mon-hook; remedy: move it away"
        fs.remove(path)
    theirs = Places(hooks_dir="/etc/containers/oci/hooks.d")
    hook = {**HOOK, "hook": {"path": theirs.program}}
    fs.create_file(theirs.json("podman"), contents=json.dumps(hook))
    assert problems(theirs) == ""
    assert problems() == (
        f"{theirs.json('podman')} already calls the hook; remedy: remove it, or its package, or "
        f"uninstall --hooks-dir={theirs.hooks_dir}"
    )


def test_the_files_of_another_owner_are_left_alone(fs: FakeFilesystem, shipped: Program) -> None:
    """The owner would write them again, or take ours away when it is removed. --force is tried with real packages."""
    fs.create_file(Places().owner, contents="chart\n")
    said = "^resctrl-mon-hook was installed by the Helm chart; remedy: helm uninstall first, or --force$"
    with pytest.raises(Refused, match=said):
        install.install(Wanted(shipped, Places(), TARGETS), dry_run=False)
    with pytest.raises(Refused, match=said):
        install.uninstall(Places(), Options(), force=False, dry_run=False)
    assert not Path(Places().program).exists()


@pytest.mark.usefixtures("fs")
def test_remarks_name_what_the_operator_has_to_do(shipped: Program) -> None:
    def remarks(*options: object) -> list[str]:
        return list_remarks(Wanted(shipped, Places(top="/mnt"), TARGETS, (), *options))  # type: ignore[arg-type]

    assert remarks() == []
    assert remarks(Options(history="/var/log/resctrl-mon-hook/history.jsonl")) == []
    (line,) = remarks(Options(history="/var/log/jobs/x", run_dir="/run/x"))
    assert line.startswith("let the units write to /run/x and /var/log/jobs: ")
    assert list_remarks(Wanted(shipped, Places(), TARGETS))[-1].startswith("systemd is not running: ")


WELL = Exit(0, "resctrl-mon-hook 1\n", "")


def test_a_program_that_selinux_keeps_from_runtimes_is_refused(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "run_program", lambda *_words, **_more: WELL)
    fs.create_file("/x")
    try_program("/x")
    enforce = fs.create_file("/sys/fs/selinux/enforce", contents="1")
    try_program("/x")
    for label, mode in (("bin_t", "1"), ("tmp_t", "0"), ("tmp_t", "")):
        os.setxattr("/x", "security.selinux", f"system_u:object_r:{label}:s0\0".encode())
        enforce.set_contents(mode)
        try_program("/x")
    enforce.set_contents("1")
    with pytest.raises(Refused, match="SELinux: /x has type tmp_t, which runtimes may not start; remedy: semanage"):
        try_program("/x")


def test_a_program_that_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, hook, problem in (
        (Exit(1, "", "broken"), WELL, "exit status 1: broken"),
        (Exit(0, "hello", ""), WELL, "it does not print its version"),
        (WELL, Exit(0, "", "usage: x\n"), "usage: x"),
    ):
        ends = {True: hook, False: version}
        monkeypatch.setattr(programs, "run_program", lambda words, ends=ends, **_more: ends["hook" in words])
        with pytest.raises(Refused, match=f"^/x does not run: {problem}; remedy: see whether its file system is"):
            try_program("/x")
